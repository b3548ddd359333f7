"""Importer of AMPS's `<Actions>`: events and steps that Sluice also has, by AMPS's module names.

Source: facts of AMPS's actions.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from console.services.policy_import.amps_values import topic_pattern
from console.services.policy_import.result import ImportReport
from console.services.policy_import.variables import (
    is_placeholder,
    unset_reason,
    without_templates,
)
from console.services.policy_import.xml_leaves import XmlElement, XmlLeaf, leaf_value

_EVENTS: Final[dict[str, tuple[str, dict[str, str]]]] = {
    "on-schedule": ("schedule", {"Every": "every"}),
    "on-startup": ("startup", {}),
    "on-shutdown": ("shutdown", {}),
    "on-admin": ("request", {"Path": "path", "RequiredParameter": "parameters"}),
    "on-connect-client": ("connect", {}),
    "on-logon": ("logon", {}),
    "on-disconnect-client": ("disconnect", {}),
    "on-offline-start": ("offline_start", {}),
    "on-offline-stop": ("offline_stop", {}),
    "on-subscribe": ("subscribe", {"Topic": "topic"}),
    "on-unsubscribe": ("unsubscribe", {"Topic": "topic"}),
    "on-publish-message": ("publish", {"Topic": "topic", "Filter": "filter"}),
    "on-deliver-message": ("deliver", {"Topic": "topic", "Filter": "filter"}),
    "on-execute-event": ("event", {"Event": "name"}),
}
_STEPS: Final[dict[str, tuple[str, dict[str, str]]]] = {
    "do-archive-journal": ("archive", {"Age": "age"}),
    "do-compress-journal": ("compress", {"Age": "age"}),
    "do-remove-journal": ("remove", {"Age": "age"}),
    "do-truncate-statistics": ("truncate", {"Age": "age"}),
    "do-rotate-logs": ("rotate_log", {}),
    "do-publish-message": ("publish", {"Topic": "topic", "Data": "data"}),
    "do-execute-event": ("event", {"Event": "name"}),
    "do-disconnect-client": ("disconnect", {"ClientName": "client"}),
    "do-shutdown": ("shut_down", {}),
}
_SKIP_REASONS: Final = {
    "do-execute-system": "Sluice's actions run no commands of the system.",
    "do-remove-files": "Sluice removes files only in declared directories: create this step manually.",
    "do-compress-files": "Sluice compresses files only in declared directories: create this step manually.",
}
_NOTHING: Final = "Sluice has no equivalent."
_HALF: Final = "A partial action would have a different effect."
_MESSAGE_TYPE: Final = "The journaled topics set the type of a topic."
MAX_NAME: Final = 100
MAX_DESCRIPTION: Final = 500
MAX_REMARK: Final = 200
"""Maximum characters of a remark that names the missing options of an action."""


@dataclass(slots=True)
class _ActionParts:
    """Parts of an action read so far, and the leaves imported into them.

    `is_complete`: every part could be imported.
    """

    on: list[dict[str, str]] = field(default_factory=list)
    do: list[dict[str, str]] = field(default_factory=list)
    imported: list[tuple[XmlLeaf, str]] = field(default_factory=list)
    description: str = ""
    is_complete: bool = True


def read_actions(imported: ImportReport, element: XmlElement) -> None:
    """Import each `<Action>` whose parts Sluice has; skip an action with any other part.

    An option that Sluice lacks may narrow the action, so the action's description, the report on the action
    and the report on the option name it.
    """
    for number, one in enumerate((child for child in element.children if child.name == "Action"), 1):
        if unset := [
            leaf.value for leaf in one.all_leaves() if is_placeholder(without_templates(leaf.value))
        ]:
            imported.record_skipped(one, unset_reason(without_templates(" ".join(unset))))
            continue
        parts = _ActionParts()
        for child in one.children:
            _part(imported, child, parts)
        if not (parts.is_complete and parts.on and parts.do):
            imported.record_skipped(one, _HALF)
            continue
        name = _free(imported, _name(one) or f"imported {number}")
        made: dict[str, Any] = {"name": name, "when": parts.on, "steps": parts.do}
        for leaf, setting in parts.imported:
            imported.record_imported(leaf, f"action {name}", setting)
        missing = dict.fromkeys(leaf.name for leaf in imported.leaves_without_outcome(one))
        lacks = f"imported without {', '.join(missing)}, so it may act on more than in AMPS"[:MAX_REMARK]
        if missing:
            imported.remark(f"action {name}", f"switched off: {lacks}")
            parts.description = f"{lacks[0].upper()}{lacks[1:]}. {parts.description}".strip()
        if parts.description:
            made["description"] = parts.description[:MAX_DESCRIPTION]
        imported.actions.append(made)
        imported.record_skipped(
            one,
            f"Sluice has no such option, so the action {name} may act on more than in AMPS. It is switched "
            "off: narrow it before you switch it on.",
        )


def _part(imported: ImportReport, element: XmlElement, parts: _ActionParts) -> None:
    """Read an On or Do element. If Sluice lacks it, it is skipped and the action is incomplete."""
    leaf = element.text_of("Module")
    module = leaf_value(leaf).removeprefix("amps-action-")
    table, word, listed = (_EVENTS, "on", parts.on) if element.name == "On" else (_STEPS, "do", parts.do)
    found = table.get(module) if element.name in ("On", "Do") else None
    if found is None or leaf is None:
        parts.is_complete = False
        imported.record_skipped(element, _SKIP_REASONS.get(module, _NOTHING))
        return
    kind, names = found
    made = {word: kind}
    parts.imported.append((leaf, f"{word} {kind}"))
    for options in (child for child in element.children if child.name == "Options"):
        for option in options.children:
            if option.text is not None:
                _option(imported, option.text, names, made, parts)
    if "topic" in made:
        made["topic"] = topic_pattern(made["topic"])
    listed.append(made)


def _option(
    imported: ImportReport, leaf: XmlLeaf, names: dict[str, str], made: dict[str, str], parts: _ActionParts
) -> None:
    """Read one option of a part into the definition `made`."""
    key = names.get(leaf.name)
    if key is not None and (key not in made or key == "parameters"):
        made[key] = f"{made[key]},{leaf.value}" if key in made else leaf.value
        parts.imported.append((leaf, key))
    elif leaf.name == "Name":
        parts.imported.append((leaf, "name"))
    elif leaf.name == "Description" and not parts.description:
        parts.description = leaf.value
        parts.imported.append((leaf, "description"))
    elif leaf.name == "MessageType":
        imported.record_skipped(leaf, _MESSAGE_TYPE)


def _name(element: XmlElement) -> str:
    """Return an action's name: that of its first event, or the path at which it answers, or ""."""
    on = element.child("On")
    options = on.child("Options") if on is not None else None
    found = (leaf_value(options.text_of(name)) for name in ("Name", "Path")) if options is not None else ()
    return next((text[:MAX_NAME] for text in found if text), "")


def _free(imported: ImportReport, name: str) -> str:
    """Return the name, with a number if an action of the file has it already."""
    known = {action["name"] for action in imported.actions}
    numbered = (f"{name[: MAX_NAME - 6]} {number}" for number in range(2, len(known) + 3))
    return name if name not in known else next(one for one in numbered if one not in known)
