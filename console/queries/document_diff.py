"""Differences between two policy documents, path by path. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from console.access.policy_secrets import SET
from console.units import labels
from console.units.format import as_json, duration, size
from console.units.labels import OF_RULES, SIGNALS_BY_CODE

_MISSING = object()
"""Value of a path that a document lacks."""
ABSENT = "not there"
"""Text for a value that a document lacks."""
_NAMED = {
    "transports": ("name",),
    "rules": ("name", "scope"),
    "xap": ("transport",),
    "activemq": ("topic", "transport"),
    "qpid": ("topic", "transport"),
    "quotas": ("user", "transport"),
    "destinations": ("name",),
    "access.users": ("name",),
    "access.entitlements": ("who", "transports"),
}
"""Lists whose entries are identified by fields, not by position, and these fields."""
_SECRETS = (".password", ".token")
"""Endings of paths whose values are secrets."""


class DocumentChange(NamedTuple):
    """Changed setting with its values as page texts."""

    path: str
    before: str
    after: str


def diff_documents(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[DocumentChange]:
    """Return each setting that differs, in the order of the newer document.

    The revision number is not a setting.
    """
    old, new = dict(_flatten(before, "")), dict(_flatten(after, ""))
    paths = [*new, *(path for path in old if path not in new)]
    return [
        DocumentChange(
            path,
            _text(path, old.get(path, _MISSING)),
            _after(path, old.get(path, _MISSING), new.get(path, _MISSING)),
        )
        for path in paths
        if path != "revision" and old.get(path, _MISSING) != new.get(path, _MISSING)
    ]


def group_list_changes(found: Sequence[DocumentChange]) -> list[DocumentChange]:
    """Return the changes with each added or removed list entry combined into one, for pages with little
    space.
    """
    made: list[DocumentChange] = []
    for change in found:
        title, _, field = change.path.rpartition(".")
        is_entry = title.partition(" ")[0] in _NAMED and (change.before == ABSENT) != (change.after == ABSENT)
        if is_entry and made and made[-1].path == title:
            before, after = made[-1][1:]
            made[-1] = DocumentChange(
                title,
                *(
                    _append_field(part, field, value)
                    for part, value in ((before, change.before), (after, change.after))
                ),
            )
        elif is_entry:
            made.append(DocumentChange(title, *(_append_field("", field, value) for value in change[1:])))
        else:
            made.append(change)
    return made


def _append_field(text: str, field: str, value: str) -> str:
    """Return the text of a list entry with another field appended."""
    return (
        ABSENT
        if value == ABSENT
        else ", ".join(part for part in (text, f"{OF_RULES.get(field, field)} {value}") if part)
    )


def _flatten(value: Any, path: str) -> list[tuple[str, Any]]:
    """Return the settings of a document as (path, value)."""
    if isinstance(value, Mapping):
        return [
            leaf
            for key, part in value.items()
            for leaf in _flatten(part, f"{path}.{key}" if path else str(key))
        ]
    if path in _NAMED and isinstance(value, Sequence) and all(isinstance(entry, Mapping) for entry in value):
        # An entry is identified by its naming fields, so that its position in the list does not matter.
        return [leaf for entry in value for leaf in _entry(path, entry)]
    return [(path, value)]


def _entry(path: str, entry: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Return the settings of a list entry, with its naming fields as the path."""
    names = _NAMED[path]
    called = " ".join(text for name in names if (text := _called(entry.get(name))))
    title = called if path == "transports" else f"{path} {called}".strip()
    return _flatten(
        {key: value for key, value in entry.items() if key not in names and value is not None}, title
    )


def _called(value: Any) -> str:
    """Return the text of a naming field."""
    if isinstance(value, Mapping):
        return " ".join(f"{key}={text}" for key, text in value.items() if text)
    return ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value or "")


def _after(path: str, old: Any, new: Any) -> str:
    """Return the text of a new value. A replaced secret is reported only as replaced."""
    return (
        "set anew"
        if path.endswith(_SECRETS) and new not in (_MISSING, None) and old not in (_MISSING, None)
        else _text(path, new)
    )


def _text(path: str, value: Any) -> str:
    """Return a value in readable form, by the ending of its path."""
    if value is _MISSING:
        return ABSENT
    if path.endswith(_SECRETS) and value:
        return SET
    if isinstance(value, int) and not isinstance(value, bool):
        if path.endswith("_ms"):
            return duration(value)
        if path.endswith(("_limit", "journal_size")):
            return size(value)
        if path.endswith("client_max_capacity"):
            return f"{value} %"
    if path.endswith(".mode"):
        return labels.mode_label(value)
    if path.endswith(".shape"):
        return str(value).replace("_", " ")
    if path.endswith(".ladder") and isinstance(value, (list, tuple)):
        return ", then ".join(map(labels.rung, value)) or "none"
    if isinstance(value, (list, tuple)):
        return (
            ", ".join(_text(path, item) if isinstance(item, Mapping) else str(item) for item in value)
            or "none"
        )
    if isinstance(value, Mapping):
        return " ".join(f"{key} {_text(key, part)}" for key, part in value.items())
    return SIGNALS_BY_CODE.get(str(value), as_json(value)) if path.endswith(".signal") else as_json(value)
