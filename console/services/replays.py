"""What operators do to managed replays, and what brokers report of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from broker_core.errors import SluiceError
from console.broker_link import link_to
from console.choices import AuditResult
from console.models import Instance, ManagedReplay
from console.queries.policies import instance_named
from console.services import audit
from console.services.actors import Actor

Shown = dict[str, Any]


def create(actor: Actor, asked: Mapping[str, Any], instance_name: str | None = None) -> Shown:
    """Make one for a client that will come for it. Raises OperatorError replay_exists and what the broker refuses."""
    instance = instance_named(instance_name)
    shown = _do(actor, instance, "create", str(asked["name"]), **{key: value for key, value in asked.items() if key != "name"})
    record(instance, [shown])
    ManagedReplay.objects.filter(instance=instance, name=shown["name"], created_at=_moment(shown["created_at"])).update(author=actor.name)
    return shown


def steer(actor: Actor, word: str, name: str, instance_name: str | None = None, **options: Any) -> Shown:
    """`pause`, `resume`, `rate` (with `rate` and `rate_max_gap`) or `cancel` one. Raises unknown_replay, replay_ended."""
    instance = instance_named(instance_name)
    shown = _do(actor, instance, word, name, **options)
    record(instance, [shown])
    return shown


def forget(actor: Actor, name: str, instance_name: str | None = None) -> None:
    """Take an ended one off the list. Raises unknown_replay, replay_not_ended."""
    instance = instance_named(instance_name)
    _do(actor, instance, "forget", name)
    ManagedReplay.objects.filter(instance=instance, name=name).delete()


def record(instance: Instance, replays: Sequence[Mapping[str, Any]], complete: bool = False) -> None:
    """Store what a broker says. With `complete` these are all it has: others that weren't ended are gone with its file."""
    now = datetime.now(UTC)
    rows = [
        ManagedReplay(
            instance=instance, name=one["name"], client=one["client"], topic=one["topic"], state=one["state"],
            progress=one["progress"], shown=dict(one), created_at=_moment(one["created_at"]), reported_at=now,
        )
        for one in replays
    ]  # fmt: skip
    ManagedReplay.objects.bulk_create(
        rows, update_conflicts=True, unique_fields=["instance", "name", "created_at"],
        update_fields=["state", "progress", "shown", "reported_at"],
    )  # fmt: skip
    if complete:
        names = [one["name"] for one in replays]
        ManagedReplay.objects.filter(instance=instance).exclude(name__in=names).delete()


def _do(actor: Actor, instance: Instance, word: str, name: str, **options: Any) -> Shown:
    target = f"{instance.name}: replay {name}"
    try:
        shown: Shown = link_to(instance.name).call(f"replay_{word}", name=name, **options)
    except SluiceError as problem:
        audit.record(actor, f"replay.{word}", target, result=AuditResult.FAILED, message=problem.sentence)
        raise
    audit.record(actor, f"replay.{word}", target, after={**options, "state": shown.get("state")})
    return shown


def _moment(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1_000, UTC)
