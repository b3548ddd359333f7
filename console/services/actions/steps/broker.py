"""Steps that a running broker performs, requested over its control socket."""

from __future__ import annotations

import base64
from collections.abc import Mapping

import msgspec

from broker_core.documents import requests
from broker_core.documents.base import Document
from broker_core.errors import OperatorError, SluiceError
from broker_core.names import RESERVED_PREFIX
from console.choices import AuditResult
from console.models import Instance
from console.services import audit
from console.services.actions.causes import PUBLISHED
from console.services.actions.step_context import (
    Options,
    StepContext,
    StepHandler,
    StepPlan,
    StepResult,
    template_plan,
)
from console.services.actions.variables import expand_bytes
from console.services.manual_downgrades import change_member_or_link

REPLAYS: Mapping[str, type[requests.PauseReplay | requests.ResumeReplay]] = {
    "pause": requests.PauseReplay,
    "resume": requests.ResumeReplay,
}
MAX_BODY = 1024 * 1024


def _publish(context: StepContext, options: Options) -> StepResult:
    """Publish a message through the broker, and record it in the audit, also if the broker refuses."""
    body = expand_bytes(options["data"], context.variables)
    if options["topic"].startswith(RESERVED_PREFIX):
        raise OperatorError(
            "topic_refused", "Topics that start with $ are reserved for the broker.", "Choose another topic."
        )
    if len(body) > MAX_BODY:
        raise OperatorError(
            "message_too_long", f"The message has {len(body):,} bytes, over {MAX_BODY:,}.", "Publish less."
        )
    target = f"{context.instance.name}: topic {options['topic']}"
    facts = {"bytes": len(body), "run": str(context.run.pk)}
    try:
        context.link.call(
            requests.PublishRawMessage(topic=options["topic"], body=base64.b64encode(body).decode())
        )
    except SluiceError as problem:
        # Possibly only the reply was lost, so the audit needs the publisher for the two-person rule.
        failed = AuditResult.FAILED
        audit.record(context.actor, PUBLISHED, target, after=facts, result=failed, message=problem.sentence)
        raise
    audit.record(context.actor, PUBLISHED, target, after=facts)
    return StepResult({"topic": options["topic"], "bytes": len(body)})


def _disconnect(context: StepContext, options: Options) -> StepResult:
    client, reason = _client(options), options["reason"] or "an action of the operator"
    return _done(context, requests.DisconnectClient(name=client, reason=reason))


def _offline(context: StepContext, options: Options) -> StepResult:
    return _done(context, requests.OfflineClient(name=_client(options)))


def _replay(context: StepContext, options: Options) -> StepResult:
    return _done(context, REPLAYS[options["change"]](name=options["name"]))


def _replication(context: StepContext, options: Options) -> StepResult:
    one = change_member_or_link(
        context.link, options["change"], options["member"], f"action run {context.run.pk}"
    )
    return StepResult(
        {
            "member": options["member"],
            "mode": one.mode,
            "confirmed": one.confirmed,
            "unconfirmed_ms": one.unconfirmed_ms,
        }
    )


def _shut_down(context: StepContext, options: Options) -> StepResult:
    return _done(context, requests.ShutDown(reason=f"action run {context.run.pk}"))


def _client(options: Options) -> str:
    """Return the client's name. Raises OperatorError `unknown_client` if an empty variable made it empty."""
    if not options["client"]:
        raise OperatorError(
            "unknown_client",
            "The step has no client, because its variable is empty.",
            "Check the trigger's variables.",
        )
    return options["client"]


def _done(context: StepContext, request: requests.Request[Document]) -> StepResult:
    return StepResult(msgspec.to_builtins(context.link.call(request)))


def _plan_publish(instance: Instance, options: Options) -> StepPlan:
    return StepPlan(
        f"publish a message on {options['topic'][:200]}", details={"data": options["data"][:2_000]}
    )


STEPS = {
    "publish": StepHandler(_plan_publish, _publish),
    "disconnect": StepHandler(template_plan("disconnect {client}: {reason}"), _disconnect),
    "offline": StepHandler(template_plan("offline {client}"), _offline),
    "replay": StepHandler(template_plan("{change} the managed replay {name}"), _replay),
    "replication": StepHandler(
        template_plan(
            "{change} {member}, a member of the group or the link of a destination, for the "
            "acknowledgements of this broker"
        ),
        _replication,
    ),
    "shut_down": StepHandler(
        template_plan("shut the broker down; its supervisor doesn't restart it"), _shut_down
    ),
}
