"""Whether the parts answer: database, Redis, broker, worker. Each says in a word what is wrong."""

from __future__ import annotations

from typing import TypedDict

import redis
from django.conf import settings
from django.db import DatabaseError, connection

from broker_core.documents.requests import GetStatus
from broker_core.errors import SluiceError
from console.broker_link import link_to

WORKER_KEY = "sluice:worker"
"""Kept alive in Redis by every worker; see console.project.celery."""


class Part(TypedDict):
    """One part's state."""

    name: str
    ok: bool
    problem: str


def readiness() -> list[Part]:
    """Ask each part, with short time-outs."""
    alive, worker = _redis()
    return [_database(), alive, worker, _broker()]


def _database() -> Part:
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
    except DatabaseError as problem:
        return {"name": "database", "ok": False, "problem": type(problem).__name__}
    return {"name": "database", "ok": True, "problem": ""}


def _redis() -> tuple[Part, Part]:
    try:
        with redis.Redis.from_url(settings.REDIS_URL, socket_timeout=2, socket_connect_timeout=2) as client:
            worker = bool(client.exists(WORKER_KEY))
    except (redis.RedisError, OSError) as problem:
        name = type(problem).__name__
        return (
            {"name": "redis", "ok": False, "problem": name},
            {"name": "worker", "ok": False, "problem": "unknown while Redis is away"},
        )
    missing = "" if worker else "no worker was heard for 15 s"
    return {"name": "redis", "ok": True, "problem": ""}, {"name": "worker", "ok": worker, "problem": missing}


def _broker() -> Part:
    try:
        link_to(settings.SLUICE_INSTANCE).call(GetStatus(), timeout_s=2.0)
    except SluiceError as problem:
        # By what it ended, if it said so.
        return {"name": "broker", "ok": False, "problem": problem.details.get("ended", problem.code)}
    return {"name": "broker", "ok": True, "problem": ""}
