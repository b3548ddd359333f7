"""Steps that don't need the broker: pipeline jobs, custom events, webhooks."""

from __future__ import annotations

import json

from broker_core.errors import OperatorError
from console.choices import RunKind
from console.models import Instance
from console.services import pipeline, webhooks
from console.services.actions import chains
from console.services.actions.step_context import (
    Options,
    StepContext,
    StepHandler,
    StepPlan,
    StepResult,
    template_plan,
)
from console.services.actions.steps.journals import RunStep
from console.services.actions.triggers import TriggerEvent
from console.services.actions.variables import expand_bytes
from console.services.actions.webhook_address import check_address

MAX_BODY = 1024 * 1024
MAX_DEPTH = 8
"""Maximum length of a chain of events that raise each other."""


def _pipeline(context: StepContext, options: Options) -> StepResult:
    parameters = {"job": options["job"], "options": pipeline.parse_options(options["options"])}
    part = RunStep(RunKind.PIPELINE, parameters, context.instance, context.run.member, context.run.pk)
    return StepResult(pipeline.perform_run(part, context.progress))  # type: ignore[arg-type]


def _event(context: StepContext, options: Options) -> StepResult:
    """Raise a custom event. Each action that waits for it gets a run with this run's variables."""
    depth = int(context.run.trigger.get("depth", 0)) + 1
    if depth > MAX_DEPTH:
        raise OperatorError(
            "event_loop", f"Events have triggered each other {depth} times.", "Break the cycle of actions."
        )
    event = TriggerEvent("event", {**context.variables, "SLUICE_EVENT": options["name"]})
    # The run's plan named the actions that the event starts, and was checked when the worker claimed the run.
    started = context.happened(
        context.instance,
        [event],
        depth=depth,
        actor=context.actor,
        causes=context.run.causes,
        planned=bool(context.run.plan_hash),
    )
    return StepResult({"event": options["name"], "runs": [str(run.pk) for run in started]})


def _webhook(context: StepContext, options: Options) -> StepResult:
    """POST to a declared host: one attempt, one deadline, no redirects.

    Any answer other than 2xx fails the step.

    Cancelling the run ends the call, but the host may have processed it already.
    """
    address = check_address(options["url"])
    body, kind = _body(context, options["data"])
    try:
        answer = webhooks.post_webhook(address, body, kind, context.once_key, context.progress.heartbeat)
    except OperatorError as problem:
        if "status" in problem.details:
            context.progress.log(
                f"{address.hostname} answered {problem.details['status']}: {problem.details['answer']}"
            )
        raise
    text = answer.text
    context.progress.log(f"{address.hostname} answered {answer.status}: {text[:500]}")
    return StepResult(
        {"status": answer.status, "answer": text[:2_000]}, {"SLUICE_STATUS": str(answer.status)}
    )


def _body(context: StepContext, template: str) -> tuple[bytes, str]:
    """Return body and content type of a webhook call. An empty template sends the run's variables."""
    if template:
        body = expand_bytes(template, context.variables)
        kind = "application/json" if body.lstrip()[:1] in (b"{", b"[") else "text/plain; charset=utf-8"
    else:
        body, kind = (
            json.dumps({"run": str(context.run.pk), "variables": context.variables}).encode(),
            "application/json",
        )
    if len(body) > MAX_BODY:
        raise OperatorError(
            "message_too_long", f"The body has {len(body):,} bytes, over {MAX_BODY:,}.", "Send less."
        )
    return body, kind


def _plan_event(instance: Instance, options: Options) -> StepPlan:
    """Name the actions that the event starts, also through each other: an approval covers them."""
    started = chains.started_actions(instance, [{"do": "event", "name": options["name"]}])
    names = ", ".join(one.name for one in started) or "no action"
    return StepPlan(
        f"raise the event {options['name']}, which starts {names}",
        [[one.name, one.version, one.steps] for one in started],
        {"starts": [{"action": one.name, "steps": one.steps} for one in started]},
    )


def _plan_webhook(instance: Instance, options: Options) -> StepPlan:
    return StepPlan(f"call {check_address(options['url']).hostname}", details={"url": options["url"]})


STEPS = {
    "pipeline": StepHandler(template_plan("run the pipeline job {job}"), _pipeline),
    "event": StepHandler(_plan_event, _event),
    "webhook": StepHandler(_plan_webhook, _webhook),
}
