"""The parts of a draft that its page edits one by one: entries of lists by their place, transports by their name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from broker_core.config import PolicyDocument
from broker_core.errors import OperatorError
from broker_core.slow_clients.rules.review import review_policy
from console.models import PolicyDraft
from console.services import drafts, policies, policy_rows
from console.services.actors import Actor

LISTS = ("rules", "xap", "activemq", "qpid", "users", "entitlements", "quotas", "destinations")
OF_ACCESS = ("users", "entitlements")


def list_entries(draft: PolicyDraft, part: str) -> list[dict[str, Any]]:
    """The entries of one list."""
    holder = draft.document.get("access") or {} if part in OF_ACCESS else draft.document
    return list(holder.get(part) or [])


def entry_at(draft: PolicyDraft, part: str, place: int) -> dict[str, Any]:
    """One entry. Raises OperatorError unknown_entry."""
    entries = list_entries(draft, part)
    if place >= len(entries):
        raise OperatorError(
            "unknown_entry", f"The draft has no entry {place + 1} of {part}.", "Load the draft again."
        )
    return entries[place]


def transport_named(draft: PolicyDraft, name: str) -> dict[str, Any]:
    """One transport. Raises OperatorError unknown_transport."""
    for transport in draft.document.get("transports") or []:
        if transport["name"] == name:
            return dict(transport)
    raise OperatorError("unknown_transport", f"The draft has no transport {name!r}.", "Load the draft again.")


def save_entry(
    actor: Actor, draft: PolicyDraft, part: str, place: int | None, entry: Mapping[str, Any], version: int
) -> PolicyDraft:
    """Change an entry, or add one at the end (`place` None). Raises what `save` raises."""
    entries = list_entries(draft, part)
    if place is None:
        entries.append(dict(entry))
    else:
        entry_at(draft, part, place)
        entries[place] = dict(entry)
    return save_changes(actor, draft, _changes(part, entries), version)


def delete_entry(actor: Actor, draft: PolicyDraft, part: str, place: int, version: int) -> PolicyDraft:
    """Delete an entry; what then contradicts itself is said by the preview. Raises OperatorError draft_changed."""
    entries = list_entries(draft, part)
    entry_at(draft, part, place)
    del entries[place]
    return drafts.edit_draft(actor, draft.pk, _changes(part, entries), expected_version=version)


def transport_settings(document: Mapping[str, Any], name: str) -> list[str]:
    """What of a document is for one transport alone, and goes nowhere without it: its limits, rules, entries, entitlements."""
    found = []
    for one in document.get("transports") or []:
        limits = [value for part in ("pool", "client_policy") for value in (one.get(part) or {}).values()]
        if one.get("name") == name and any(value is not None for value in limits):
            found.append("its own limits")
    for part, word in (
        ("rules", "rule"),
        ("xap", "XAP entry"),
        ("activemq", "ActiveMQ entry"),
        ("qpid", "Qpid entry"),
        ("quotas", "quota entry"),
    ):
        entries = document.get(part) or []
        number = sum(
            name in (one.get("transport"), (one.get("scope") or {}).get("transport")) for one in entries
        )
        found += (
            [f"{number} {word if number == 1 else f'{word}s'.replace('entrys', 'entries')}"] if number else []
        )
    entitlements = (document.get("access") or {}).get("entitlements") or []
    number = sum(list(one.get("transports") or []) == [name] for one in entitlements)
    return [*found, f"{number} entitlement{'' if number == 1 else 's'}"] if number else found


def save_changes(actor: Actor, draft: PolicyDraft, changes: Mapping[str, Any], version: int) -> PolicyDraft:
    """Lay a form's changes over a draft. A form brings no new problem: bad_policy names those it would.

    Raises also OperatorError draft_changed.
    """
    before = set(publish_problems(draft.document))
    new = [
        one for one in publish_problems(drafts.merge_changes(draft.document, changes)) if one not in before
    ]
    if new:
        raise policy_rows.bad_policy_error(new)
    return drafts.edit_draft(actor, draft.pk, changes, expected_version=version)


def publish_problems(document: Mapping[str, Any]) -> list[str]:
    """Why a document can't be published."""
    try:
        policy = PolicyDocument.from_dict({**document, "revision": 1})
    except OperatorError as problem:
        return list(problem.details.get("problems") or [problem.sentence])
    return policies.publish_problems(policy, review_policy(policy))


def _changes(part: str, entries: list[dict[str, Any]]) -> dict[str, Any]:
    return {"access": {part: entries}} if part in OF_ACCESS else {part: entries}
