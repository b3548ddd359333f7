"""AMPS's `<Actions>`: events and steps that Sluice has, by their modules' names (facts of its actions)."""

from __future__ import annotations

from xml.etree.ElementTree import Element

from console.services.policy_import.amps_words import topic_pattern
from console.services.policy_import.imported import Imported

_EVENTS: dict[str, tuple[str, dict[str, str]]] = {
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
_STEPS: dict[str, tuple[str, dict[str, str]]] = {
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
_WHY = {
    "do-execute-system": "Sluice's actions run no commands of the system.",
    "do-remove-files": "Files are removed inside declared folders only: make this step by hand.",
    "do-compress-files": "Files are compressed inside declared folders only: make this step by hand.",
}
_QUIET = {"Name", "Description", "MessageType"}
"""Options that are taken over elsewhere, or that Sluice doesn't need."""


def read_actions(imported: Imported, root: Element) -> None:
    """Each `<Action>` all of whose parts Sluice has; one with a part it hasn't is left out whole, by name."""
    for place, element in enumerate(root.iterfind("Actions/Action"), 1):
        name = _name(element) or f"imported {place}"
        where = f"Action {name}"
        parts: dict[str, list[dict[str, str]]] = {"On": [], "Do": []}
        whole = True
        for child in element:
            part = _part(imported, child, where)
            if part is None:
                whole = False
            else:
                parts[child.tag].append(part)
        if whole and parts["On"] and parts["Do"]:
            imported.actions.append({"name": name, "when": parts["On"], "steps": parts["Do"]})
        else:
            imported.leave_out(where, "the action", "Half of an action would do something else than the whole.")


def _part(imported: Imported, element: Element, where: str) -> dict[str, str] | None:
    module = (element.findtext("Module") or "").strip().removeprefix("amps-action-")
    table, word = (_EVENTS, "on") if element.tag == "On" else (_STEPS, "do")
    found = table.get(module) if element.tag in ("On", "Do") else None
    if found is None:
        imported.leave_out(where, f"{element.tag} {module}", _WHY.get(module, "Sluice has nothing that does this."))
        return None
    kind, names = found
    part = {word: kind}
    for option in element.iterfind("Options/*"):
        text = (option.text or "").strip()
        if option.tag in names:
            key = names[option.tag]
            part[key] = f"{part[key]},{text}" if key in part else text
        elif option.tag not in _QUIET:
            imported.leave_out(where, f"{module} {option.tag} {text}", "It isn't an option here.")
    if "topic" in part:
        part["topic"] = topic_pattern(part["topic"])
    return part


def _name(element: Element) -> str:
    for path in ("On/Options/Name", "On/Options/Path"):
        if text := (element.findtext(path) or "").strip():
            return text[:100]
    return ""
