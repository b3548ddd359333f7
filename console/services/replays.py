"""Operators' commands for managed replays, and storage of brokers' reports about them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

import msgspec

from broker_core.documents import requests
from broker_core.documents.replays import ReplayEntry
from broker_core.errors import SluiceError
from console.broker_link import link_to
from console.choices import AuditResult
from console.models import Instance, ManagedReplay
from console.queries.policies import instance_named
from console.services import audit
from console.services.actors import Actor

Steering = requests.PauseReplay | requests.ResumeReplay | requests.SetReplayRate | requests.CancelReplay
STEER: Mapping[str, type[Steering]] = {
    "pause": requests.PauseReplay,
    "resume": requests.ResumeReplay,
    "rate": requests.SetReplayRate,
    "cancel": requests.CancelReplay,
}
"""Request class of each command for a running replay, by the command's name in addresses and forms."""


def create(actor: Actor, request: requests.CreateReplay, instance_name: str | None = None) -> ReplayEntry:
    """Create a managed replay for a client, which receives it when it subscribes.

    Raises:
        OperatorError: `replay_exists`, and other refusals of the broker.
        BrokerUnavailable: the broker doesn't answer.
    """
    instance = instance_named(instance_name)
    made = _do(actor, instance, "create", request)
    record_replays(instance, [made])
    rows = ManagedReplay.objects.filter(
        instance=instance, name=made.name, created_at=_moment(made.created_at)
    )
    rows.update(author=actor.name)
    return made


def control_replay(actor: Actor, request: Steering, instance_name: str | None = None) -> ReplayEntry:
    """Pause, resume or cancel a replay, or change its rate.

    Raises OperatorError `unknown_replay` or `replay_ended`.
    """
    instance = instance_named(instance_name)
    word = next(word for word, kind in STEER.items() if isinstance(request, kind))
    made = _do(actor, instance, word, request)
    record_replays(instance, [made])
    return made


def forget_replay(actor: Actor, name: str, instance_name: str | None = None) -> None:
    """Remove an ended replay from the list. Raises OperatorError `unknown_replay` or `replay_not_ended`."""
    instance = instance_named(instance_name)
    target, link = _target(instance, name), link_to(instance.name)
    audit.require_database()
    try:
        link.call(requests.ForgetReplay(name=name))
    except SluiceError as problem:
        audit.record(actor, "replay.forget", target, result=AuditResult.FAILED, message=problem.sentence)
        raise
    audit.record(actor, "replay.forget", target)
    ManagedReplay.objects.filter(instance=instance, name=name).delete()


def record_replays(
    instance: Instance, replays: Sequence[ReplayEntry], complete: bool = False, member: str = ""
) -> None:
    """Store a broker's report of its replays.

    With `complete` the report has all of the broker's replays, so stored ones that are missing in it are
    deleted.
    """
    now = datetime.now(UTC)
    rows = [
        ManagedReplay(
            instance=instance,
            member=member,
            name=one.name,
            client=one.client,
            topic=one.topic,
            state=one.state,
            progress=one.progress,
            shown=msgspec.to_builtins(one),
            created_at=_moment(one.created_at),
            reported_at=now,
        )
        for one in replays
    ]
    ManagedReplay.objects.bulk_create(
        rows,
        update_conflicts=True,
        unique_fields=["instance", "name", "created_at"],
        update_fields=["state", "progress", "shown", "reported_at", *(["member"] if complete else [])],
    )
    if complete:
        names = [one.name for one in replays]
        ManagedReplay.objects.filter(instance=instance, member=member).exclude(name__in=names).delete()


def _do(
    actor: Actor, instance: Instance, word: str, request: requests.CreateReplay | Steering
) -> ReplayEntry:
    """Send a request about a replay to the broker, and record success or refusal in the audit."""
    target = _target(instance, request.name)
    audit.require_database()
    try:
        made = link_to(instance.name).call(request)
    except SluiceError as problem:
        audit.record(actor, f"replay.{word}", target, result=AuditResult.FAILED, message=problem.sentence)
        raise
    options = {key: value for key, value in msgspec.structs.asdict(request).items() if key != "name"}
    audit.record(actor, f"replay.{word}", target, after={**options, "state": made.state})
    return made


def _target(instance: Instance, name: str) -> str:
    return f"{instance.name}: replay {name}"


def _moment(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1_000, UTC)
