"""Parts of a draft that its page edits one by one: list entries by index, transports by name."""

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
    """Return the entries of one list of the draft."""
    holder = draft.document.get("access") or {} if part in OF_ACCESS else draft.document
    return list(holder.get(part) or [])


def entry_at(draft: PolicyDraft, part: str, index: int) -> dict[str, Any]:
    """Return the entry at `index` of one list. Raises OperatorError `unknown_entry`."""
    entries = list_entries(draft, part)
    if index >= len(entries):
        raise OperatorError(
            "unknown_entry", f"The draft has no entry {index + 1} of {part}.", "Load the draft again."
        )
    return entries[index]


def transport_named(draft: PolicyDraft, name: str) -> dict[str, Any]:
    """Return the draft's transport of that name. Raises OperatorError `unknown_transport`."""
    for transport in draft.document.get("transports") or []:
        if transport["name"] == name:
            return dict(transport)
    raise OperatorError("unknown_transport", f"The draft has no transport {name!r}.", "Load the draft again.")


def save_entry(
    actor: Actor, draft: PolicyDraft, part: str, index: int | None, entry: Mapping[str, Any], version: int
) -> PolicyDraft:
    """Change the entry at `index` of one list, or append one if `index` is None.

    Raises like `save_changes`.
    """
    entries = list_entries(draft, part)
    if index is None:
        entries.append(dict(entry))
    else:
        entry_at(draft, part, index)
        entries[index] = dict(entry)
    return save_changes(actor, draft, _changes(part, entries), version)


def delete_entry(actor: Actor, draft: PolicyDraft, part: str, index: int, version: int) -> PolicyDraft:
    """Delete an entry.

    The preview reports contradictions that this causes. Raises OperatorError `draft_changed`.
    """
    entries = list_entries(draft, part)
    entry_at(draft, part, index)
    del entries[index]
    return drafts.edit_draft(actor, draft.pk, _changes(part, entries), expected_version=version)


def transport_settings(document: Mapping[str, Any], name: str) -> list[str]:
    """Return phrases for the settings that apply to one transport only.

    Limits, rules, entries and entitlements are included. These settings are lost when the transport is
    removed.
    """
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
    """Merge a form's changes into a draft, unless they would add a problem.

    Raises:
        OperatorError: `bad_policy` with the new problems, or `draft_changed`.
    """
    before = set(publish_problems(draft.document))
    new = [
        one for one in publish_problems(drafts.merge_changes(draft.document, changes)) if one not in before
    ]
    if new:
        raise policy_rows.bad_policy_error(new)
    return drafts.edit_draft(actor, draft.pk, changes, expected_version=version)


def publish_problems(document: Mapping[str, Any]) -> list[str]:
    """Return the reasons why a document can't be published."""
    try:
        policy = PolicyDocument.from_dict({**document, "revision": 1})
    except OperatorError as problem:
        return list(problem.details.get("problems") or [problem.sentence])
    return policies.publish_problems(policy, review_policy(policy))


def _changes(part: str, entries: list[dict[str, Any]]) -> dict[str, Any]:
    return {"access": {part: entries}} if part in OF_ACCESS else {part: entries}
