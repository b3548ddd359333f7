"""Redaction of policies, rollouts and actions for an account that may see only some clients.

Such an account gets no users, no entitlements, and no entry that selects other clients or users. Operators'
reasons are free text, which may name any client, so it gets none of them. `patterns` are the name patterns of
the visible clients (`EffectiveAccess.client_patterns`); None means all clients, and changes nothing.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence
from typing import Any

from broker_core.names import name_matches
from console.models import Action, PolicyDraft, PolicyRevision, StagedRollout
from console.queries.policies import PolicyStatus

ENTRY_LISTS = ("xap", "activemq", "qpid", "rules", "quotas")
"""Lists of a policy document whose entries can select clients or users."""
PART_TYPES = ("on", "if", "do")
"""Keys that give the type of an action's part."""
OTHER_CLIENT = "another client"
"""Text that replaces the name of a client that the account may not see."""


def patterns_overlap(one: str, other: str) -> bool:
    """Return whether some name matches both patterns, in which `*` stands for any characters."""
    if "*" not in one:
        return name_matches(other, one)
    if "*" not in other:
        return name_matches(one, other)
    first, other_first = one.partition("*")[0], other.partition("*")[0]
    last, other_last = one.rpartition("*")[2], other.rpartition("*")[2]
    # Each `*` can stand for the middle of the other pattern, so only beginnings and ends can contradict.
    return (first.startswith(other_first) or other_first.startswith(first)) and (
        last.endswith(other_last) or other_last.endswith(last)
    )


def is_client_visible(client: str, patterns: Sequence[str] | None) -> bool:
    """Return whether a client's name or pattern selects a visible client; "" selects every client."""
    return patterns is None or not client or any(patterns_overlap(one, client) for one in patterns)


def visible_document(document: Any, patterns: Sequence[str] | None) -> Any:
    """Return the part of a policy document that the account may see.

    Entries of a draft that are no entries are unchanged.
    """
    if patterns is None or not isinstance(document, Mapping):
        return document
    made = dict(document)
    for key in ENTRY_LISTS:
        if isinstance(made.get(key), (list, tuple)):
            made[key] = [_visible_entry(one, patterns) for one in made[key] if _is_visible(one, patterns)]
    if "access" in made:
        made["access"] = {"users": [], "entitlements": []}
    return made


def is_entry_path(path: str) -> bool:
    """Return whether a difference between two documents concerns entries, users or entitlements."""
    return re.split(r"[^a-z_]", path, maxsplit=1)[0] in (*ENTRY_LISTS, "access")


def visible_revision(revision: PolicyRevision, patterns: Sequence[str] | None) -> PolicyRevision:
    """Return a copy of a revision as the account may see it. The copy must not be saved."""
    if patterns is None:
        return revision
    made = copy.copy(revision)
    made.document = visible_document(revision.document, patterns)
    made.reason = ""
    rollout = getattr(revision, "rollout", None)
    if rollout is not None:
        cache = {**revision._state.fields_cache, "rollout": visible_rollout(rollout, patterns)}
        made._state = copy.copy(revision._state)
        made._state.fields_cache = cache
    return made


def visible_draft(draft: PolicyDraft, patterns: Sequence[str] | None) -> PolicyDraft:
    """Return a copy of a draft as the account may see it. The copy must not be saved."""
    if patterns is None:
        return draft
    made = copy.copy(draft)
    made.document = visible_document(draft.document, patterns)
    return made


def visible_rollout(rollout: StagedRollout, patterns: Sequence[str] | None) -> StagedRollout:
    """Return a copy of a rollout as the account may see it. The copy must not be saved."""
    if patterns is None:
        return rollout
    made = copy.copy(rollout)
    if not is_client_visible(rollout.client, patterns):
        made.client = OTHER_CLIENT
    made.why = f"The rollout was {rollout.state}." if rollout.why else ""
    return made


def visible_status(state: PolicyStatus, patterns: Sequence[str] | None) -> PolicyStatus:
    """Return a policy status without the name of a rollout's client that the account may not see."""
    if is_client_visible(state["staged_client"], patterns):
        return state
    return {
        **state,
        "staged": state["staged"].replace(state["staged_client"], OTHER_CLIENT),
        "staged_client": OTHER_CLIENT,
    }


def visible_action(action: Action, patterns: Sequence[str] | None) -> Action:
    """Return a copy of an action as the account may see it. The copy must not be saved.

    A trigger, condition or step that names other clients keeps only its type.
    """
    if patterns is None:
        return action
    made = copy.copy(action)
    made.when = [_visible_part(one, patterns) for one in action.when]
    made.steps = [_visible_part(one, patterns) for one in action.steps]
    return made


def _is_visible(entry: Any, patterns: Sequence[str]) -> bool:
    """Return whether an entry applies to visible clients, and names no user."""
    if not isinstance(entry, Mapping):
        return True
    scope = entry.get("scope")
    selected = scope if isinstance(scope, Mapping) else entry
    client = str(selected.get("client") or "")
    if selected.get("user") or (selected.get("subscription") and not client):
        return False
    return is_client_visible(client, patterns)


def _visible_entry(entry: Any, patterns: Sequence[str]) -> Any:
    """Return an entry without protected clients that the account may not see."""
    if not isinstance(entry, Mapping) or not isinstance(entry.get("protected"), (list, tuple)):
        return entry
    return {
        **entry,
        "protected": [one for one in entry["protected"] if is_client_visible(str(one), patterns)],
    }


def _visible_part(part: Any, patterns: Sequence[str]) -> Any:
    if not isinstance(part, Mapping):
        return part
    client = str(part.get("client") or "")
    if "{{" in client or is_client_visible(client, patterns):
        return part
    return {key: part[key] for key in PART_TYPES if key in part}
