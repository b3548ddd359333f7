"""Creation, change and deletion of actions, for editor and API. Each change is recorded in the audit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.core.exceptions import ValidationError
from django.db import IntegrityError, transaction
from django.utils import timezone

from broker_core.errors import OperatorError
from console.choices import MissedRunPolicy, Permission
from console.models import Action, Instance
from console.services import access, audit
from console.services.actions.definition import check_steps, check_triggers
from console.services.actions.options import bad_action_error
from console.services.actors import Actor

FIELDS = ("name", "description", "when", "steps", "enabled", "missed", "needs_approval")

_NEEDS = {
    "publish": Permission.PUBLISH,
    "disconnect": Permission.ACT_ON_CLIENTS,
    "offline": Permission.ACT_ON_CLIENTS,
    "replay": Permission.ACT_ON_CLIENTS,
    "transport": Permission.EDIT_POLICIES,
    "revision": Permission.EDIT_POLICIES,
}
"""Permission that the author of a step needs; RUN_ACTIONS for other steps.

There is no check when the step runs.
"""


def create(actor: Actor, instance: Instance, values: Mapping[str, Any]) -> Action:
    """Create an action. Raises OperatorError `bad_action`, `name_taken` or `not_allowed`."""
    return _save(actor, Action(instance=instance, started_at=timezone.now()), values, "action.create")


def change(
    actor: Actor, action: Action, values: Mapping[str, Any], expected_version: int | None = None
) -> Action:
    """Change the given fields of an action.

    Raises:
        OperatorError: `unknown_action`, `bad_action`, `name_taken`, `not_allowed`, or `revision_changed` if
            the action isn't at `expected_version`.
    """
    with transaction.atomic():
        stored = Action.objects.select_for_update().select_related("instance").filter(pk=action.pk).first()
        if stored is None:
            raise OperatorError("unknown_action", "The action was deleted.", "Check the list.")
        if expected_version is not None and stored.version != expected_version:
            raise OperatorError(
                "revision_changed",
                f"The action is at version {stored.version}, not {expected_version}.",
                "Load it again and repeat the change.",
                revision=stored.version,
            )
        return _save(actor, stored, values, "action.change")


def delete(actor: Actor, action: Action, reason: str = "") -> None:
    """Delete an action. Its past runs stay in the list."""
    with transaction.atomic():
        audit.record(
            actor,
            "action.delete",
            f"{action.instance.name}: action {action.name}",
            before=editable_fields(action),
            reason=reason,
        )
        action.delete()


def editable_fields(action: Action) -> dict[str, Any]:
    """Return the fields of an action that can be edited."""
    return {name: getattr(action, name) for name in FIELDS}


def _save(actor: Actor, action: Action, values: Mapping[str, Any], event: str) -> Action:
    """Validate and store the editable fields `values` over those of the action.

    `event` is the audit's action.
    """
    new = action.pk is None
    before = None if new else editable_fields(action)
    if unknown := [name for name in values if name not in FIELDS]:
        raise bad_action_error(f"Actions have no field {str(unknown[0])[:50]!r}.", part="action")
    fields = {**editable_fields(action), **values}
    fields["when"], fields["steps"] = check_triggers(fields["when"]), check_steps(fields["steps"])
    for part in fields["steps"]:
        if "do" in part:
            access.require_permission(
                actor, _NEEDS.get(part["do"], Permission.RUN_ACTIONS), instance=action.instance.name
            )
    if fields == before:
        return action
    _check_paths(action, fields["when"])
    for name, value in fields.items():
        setattr(action, name, value)
    if fields["missed"] not in MissedRunPolicy.values:
        raise bad_action_error(f"missed must be one of {', '.join(MissedRunPolicy.values)}.", part="missed")
    return _store(actor, action, before, event)


def _store(actor: Actor, action: Action, before: Any, event: str) -> Action:
    """Save an action as a new version, and record it in the audit. Intervals count from this moment.

    Raises:
        OperatorError: `bad_action` or `name_taken`.
    """
    action.name = str(action.name).strip()
    action.changed_by, action.changed_by_user_id = actor.name[:200], actor.user_id
    action.started_at = timezone.now()
    if before is not None:
        action.version += 1
    try:
        with transaction.atomic():
            action.full_clean(validate_unique=False, validate_constraints=False)
            action.save()
            audit.record(
                actor,
                event,
                f"{action.instance.name}: action {action.name}",
                before=before,
                after=editable_fields(action),
            )
    except ValidationError as invalid:
        field, texts = next(iter(invalid.message_dict.items()))
        raise bad_action_error(f"{field}: {' '.join(texts)}", part=field) from invalid
    except IntegrityError as conflict:
        raise OperatorError(
            "name_taken", f"The action {action.name!r} exists already.", "Choose another name."
        ) from conflict
    return action


def _check_paths(action: Action, when: list[dict[str, str]]) -> None:
    """Raise OperatorError `name_taken` if another action of the instance answers at the same request path."""
    paths = {trigger["path"] for trigger in when if trigger["on"] == "request"}
    others = Action.objects.filter(instance=action.instance).exclude(pk=action.pk) if paths else []
    for other in others:
        for trigger in other.when:
            if trigger["on"] == "request" and trigger["path"] in paths:
                raise OperatorError(
                    "name_taken",
                    f"{other.name} already uses the path {trigger['path']!r}.",
                    "Choose another path.",
                )
