"""Pending changes to the control plane: runs, actions, rollouts, drafts and alerts. See `kinds`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from django.utils import timezone

from broker_core.errors import OperatorError
from console.choices import PendingChangeKind, Permission, RunState
from console.models import Instance, PendingChange
from console.queries import actions as action_queries
from console.queries import policies as policy_queries
from console.queries import runs as run_queries
from console.queries.document_diff import diff_documents, group_list_changes
from console.services import alerts, drafts, policies, rollouts, runs
from console.services.actions import editor
from console.services.actions.scheduler import next_firings
from console.services.actors import Actor
from console.services.pending_changes.base import ChangeKind, ChangePreview, effect_line
from console.services.policy_effects import effect_of_ending_rollout

MAX_LINES: Final = 12
"""Maximum lines about changed settings in a preview."""


def _run(item: PendingChange, _: list[str] | None) -> ChangePreview:
    run = run_queries.run(item.target, item.instance)
    title = f"Cancel the run “{run.get_kind_display()}” of {run.actor}"
    if run.state == RunState.RUNNING:
        sentence = (
            f"It is at {run.progress:.0f} % ({run.step or 'its first step'}) and "
            "stops after this step. Completed steps are not undone."
        )
    else:
        sentence = "The run has not started, and will not start. It can be requested again."
    has_ended = run.state not in (RunState.RUNNING, RunState.WAITING, RunState.APPROVAL)
    blocked = [f"The run has ended: {run.get_state_display().lower()}."] if has_ended else []
    return ChangePreview(
        title,
        "1 run cancelled",
        [effect_line(sentence)],
        blocked=blocked,
        severe=run.state == RunState.RUNNING,
    )


def _do_run(actor: Actor, item: PendingChange, reason: str) -> str:
    run = runs.cancel(actor, run_queries.run(item.target, item.instance), reason)
    return "The run is cancelled." if run.state == RunState.CANCELLED else "The run is being cancelled."


def _action(item: PendingChange, _: list[str] | None) -> ChangePreview:
    found = action_queries.action(item.instance, item.target)
    due = next(iter(next_firings(found, timezone.now(), 1)), None)
    sentence = f"Its next run would be on {due:%Y-%m-%d %H:%M} UTC." if due else "It has no schedule."
    lines = [
        effect_line(f"{sentence} The action never runs again; its past runs stay in the list."),
        effect_line(f"It has {len(found.steps)} steps and {len(found.when)} triggers, which are deleted."),
    ]
    return ChangePreview(f"Delete the action {found.name}", "1 action deleted", lines, severe=True)


def _do_action(actor: Actor, item: PendingChange, reason: str) -> str:
    found = action_queries.action(item.instance, item.target)
    editor.delete(actor, found, reason)
    return f"{found.name} is deleted. Its past runs stay in the list."


def _rollout(word: str) -> Callable[[PendingChange, list[str] | None], ChangePreview]:
    """Return the preview function for the end of a rollout: "promote" or "stop"."""

    def preview(item: PendingChange, patterns: list[str] | None) -> ChangePreview:
        staged, base, staged_clients, wrong = _staged(item)
        if wrong:
            return ChangePreview(str(item), blocked=[wrong])
        if word == "promote":
            title = f"Put revision {staged.number} in force for all clients"
            found = drafts.preview_document(item.instance, staged.document)
        else:
            title = f"Restore revision {base.number} for {staged_clients}"
            found = drafts.preview_document(item.instance, base.document)
        found = drafts.restrict_preview(found, patterns)
        differences = group_list_changes(
            diff_documents(base.document, staged.document) if word == "promote" else found.differences
        )
        effect = effect_of_ending_rollout(found, staged.document)
        headline = (
            effect.headline
            or f"revision {staged.number} {'for all clients' if word == 'promote' else 'stopped'}"
        )
        lines = [*effect.lines, *effect.changes[:MAX_LINES]]
        return ChangePreview(
            title,
            headline,
            lines,
            effect.warnings,
            list(found.problems),
            effect.severe,
            differences=differences,
        )

    return preview


def _staged(item: PendingChange) -> tuple[Any, Any, str, str]:
    """Return staged and base revision, the rollout's clients, and why it can't end ("" if it can)."""
    rollout = policy_queries.running_rollout(item.instance)
    if rollout is None:
        return None, None, "", f"{item.instance.name} has no running rollout."
    if rollout.revision.number != item.parameters.get("revision"):
        return (
            None,
            None,
            "",
            f"Revision {rollout.revision.number} is staged now, not {item.parameters.get('revision')}.",
        )
    return rollout.revision, rollout.base, rollout.client or f"{rollout.share} % of the clients", ""


def _do_promote(actor: Actor, item: PendingChange, reason: str) -> str:
    change = rollouts.promote(
        actor, item.instance, expected_revision=item.parameters.get("revision"), reason=reason
    )
    return f"Revision {change.revision.number} is in force for all clients. {change.problem}".strip()


def _do_stop(actor: Actor, item: PendingChange, reason: str) -> str:
    change = rollouts.stop(
        actor, item.instance, reason=reason, expected_revision=item.parameters.get("revision")
    )
    return f"Revision {change.revision.number} restores the previous revision. {change.problem}".strip()


def _draft(item: PendingChange, _: list[str] | None) -> ChangePreview:
    draft = get_draft(item.instance, int(item.target))
    newest = policies.newest_revision(item.instance)
    differences = group_list_changes(diff_documents(newest.document, draft.document))
    lines = [effect_line("The policy in force doesn’t change. The draft can’t be restored.")]
    return ChangePreview(f"Delete the draft {draft.title}", "1 draft deleted", lines, differences=differences)


def _do_draft(actor: Actor, item: PendingChange, reason: str) -> str:
    draft = get_draft(item.instance, int(item.target))
    drafts.delete(actor, draft.pk, reason=reason)
    return f"The draft “{draft.title}” is deleted."


def get_draft(instance: Instance, number: int) -> Any:
    """Return a draft of this instance. Raises OperatorError `unknown_draft`."""
    draft = drafts.draft_numbered(number)
    if draft.instance_id != instance.pk:
        raise OperatorError("unknown_draft", f"The draft {number} doesn't exist.", "See the list of drafts.")
    return draft


def _alert(item: PendingChange, _: list[str] | None) -> ChangePreview:
    rule = alerts.get_rule(item.instance, item.target)
    lines = [effect_line("The alert sends no more messages, and its history is deleted.")]
    return ChangePreview(f"Delete the alert {rule.name}", "1 alert deleted", lines)


def _do_alert(actor: Actor, item: PendingChange, reason: str) -> str:
    rule = alerts.get_rule(item.instance, item.target)
    alerts.delete(actor, rule, reason)
    return f"The alert {rule.name} is deleted."


def rollout_plan(parameters: Mapping[str, Any]) -> rollouts.RolloutPlan | None:
    """Return the plan of a staged rollout in a change's parameters; None means all clients."""
    plan = parameters.get("rollout")
    if not isinstance(plan, Mapping):
        return None
    return rollouts.RolloutPlan(
        client=str(plan.get("client") or ""),
        share=plan.get("share"),
        most_decisions=int(plan.get("most_decisions") or 0),
    )


CONTROL_CHANGE_KINDS: Mapping[PendingChangeKind, ChangeKind] = {
    PendingChangeKind.RUN_CANCEL: ChangeKind(Permission.RUN_ACTIONS, _run, _do_run),
    PendingChangeKind.ACTION_DELETE: ChangeKind(Permission.EDIT_POLICIES, _action, _do_action),
    PendingChangeKind.PROMOTE: ChangeKind(Permission.EDIT_POLICIES, _rollout("promote"), _do_promote),
    PendingChangeKind.STOP: ChangeKind(Permission.EDIT_POLICIES, _rollout("stop"), _do_stop),
    PendingChangeKind.DRAFT_DELETE: ChangeKind(Permission.EDIT_POLICIES, _draft, _do_draft),
    PendingChangeKind.ALERT_DELETE: ChangeKind(Permission.EDIT_POLICIES, _alert, _do_alert),
}
