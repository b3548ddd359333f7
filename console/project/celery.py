"""The Celery application: `celery -A console.project worker` and `… beat`."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Any

import redis
from celery import Celery
from celery.signals import heartbeat_sent, worker_ready

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "console.project.settings")

app = Celery("sluice")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks(["console"])

WORKER_KEY_LIVES_S = 15


@heartbeat_sent.connect
def refresh_worker_key(sender: Any = None, **kwargs: Any) -> None:
    """Refresh a key in Redis for each queue that this worker serves, at each heartbeat of its event loop.

    /readyz reads the keys, because Celery's `inspect ping` takes a second.
    """
    from django.conf import settings

    from console.live.workers import worker_key

    with redis.Redis.from_url(settings.REDIS_URL, socket_timeout=2) as connection:
        try:
            for queue in app.amqp.queues.consume_from:
                connection.set(worker_key(queue), os.getpid(), ex=WORKER_KEY_LIVES_S)
        except redis.RedisError:
            return  # the worker's own connection reports the problem


@worker_ready.connect
def begin_pulse(sender: Any = None, **kwargs: Any) -> None:
    """Start each queue's pulse now. Time without a worker doesn't count as stuck."""
    from django.conf import settings

    from console.live.workers import note_pulse

    with suppress(redis.RedisError), redis.Redis.from_url(settings.REDIS_URL, socket_timeout=2) as connection:
        for queue in app.amqp.queues.consume_from:
            note_pulse(connection, queue)
