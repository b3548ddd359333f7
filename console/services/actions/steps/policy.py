"""Steps that make a new policy revision: enable or disable a transport, or restore an older revision."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from console.models import Instance
from console.queries.policies import newest_revision, revision_numbered
from console.services import drafts, policies
from console.services.actions.step_context import Options, StepContext, StepHandler, StepPlan, StepResult
from console.services.policy_effects import effect_of_ending_rollout


def _plan_transport(instance: Instance, options: Options) -> StepPlan:
    name, enabled = options["name"], options["enabled"] == "yes"
    document = policies.newest_revision(instance).document
    changed = [
        {**one, "enabled": enabled} if one.get("name") == name else one for one in document["transports"]
    ]
    sentence = _with_effect(
        f"switch the transport {name}: enabled {options['enabled']}",
        instance,
        {**document, "transports": changed},
    )
    return StepPlan(sentence)


def _with_effect(sentence: str, instance: Instance, document: Mapping[str, Any]) -> str:
    """Return the sentence followed by the warnings that the console shows before it applies a document.

    Connected clients change often, so the plan's hash doesn't cover these warnings.
    """
    warnings = effect_of_ending_rollout(drafts.preview_document(instance, document), document).warnings
    return ". ".join([sentence, *(one.rstrip(".") for one in warnings)])


def _transport(context: StepContext, options: Options) -> StepResult:
    change = policies.change_transport(
        context.actor,
        options["name"],
        {"enabled": options["enabled"] == "yes"},
        reason=f"action run {context.run.pk}",
        instance_name=context.instance.name,
    )
    return _done(context, change)


def _revision(context: StepContext, options: Options) -> StepResult:
    change = policies.restore(
        context.actor,
        int(float(options["number"])),
        reason=f"action run {context.run.pk}",
        instance_name=context.instance.name,
    )
    return _done(context, change)


def _done(context: StepContext, change: policies.PolicyChange) -> StepResult:
    if change.problem:
        context.progress.log(f"not in force yet: {change.problem}")
    return StepResult({"revision": change.revision.number, "in_force": change.applied})


def _plan_revision(instance: Instance, options: Options) -> StepPlan:
    revision, newest = revision_numbered(instance, int(float(options["number"]))), newest_revision(instance)
    return StepPlan(
        _with_effect(f"restore the policy of revision {revision.number}", instance, revision.document),
        [revision.number, newest.number if newest else 0],
    )


STEPS = {
    "transport": StepHandler(_plan_transport, _transport),
    "revision": StepHandler(_plan_revision, _revision),
}
