"""Importer of the slow-client settings that AMPS had before 5.0.

`ClientBufferThreshold` limits the bytes that wait for one client. Above it, `ClientOffline` moves them to
disk, or `SlowClientDisconnect` disconnects the client. Sluice has a rule for that. Releases of AMPS differ in
the details, so the rule is in shadow mode.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from broker_core.config.rule_terms import EnforcementMode, PolicyAction, Signal
from console.services.policy_import.amps_values import parse_bytes
from console.services.policy_import.result import ImportReport, parse_bool
from console.services.policy_import.variables import is_placeholder, unset_reason
from console.services.policy_import.xml_leaves import XmlElement, XmlLeaf, leaf_value

OLDER_SETTINGS: Final = ("ClientBufferThreshold", "ClientOffline", "SlowClientDisconnect")
_SHADOW: Final = "shadow, as releases of AMPS differ: compare, and enforce"
_NO_LIMIT: Final = "Without a readable ClientBufferThreshold the limit of slow clients is unknown."
_NO_ACTION: Final = (
    "Neither ClientOffline nor SlowClientDisconnect is on, so nothing happens to a client above the limit."
)
_OFFLINE_FIRST: Final = "ClientOffline comes first: the disk limit of the pool disconnects offlined clients."


def read_older_settings(
    imported: ImportReport, elements: Sequence[XmlElement], transport: str = ""
) -> list[dict[str, Any]]:
    """Return the rule for the older settings of a transport, or of the instance, in a list."""
    found: dict[str, XmlLeaf] = {}
    for element in elements:
        if element.name in OLDER_SETTINGS and element.text is not None:
            found.setdefault(element.name, element.text)
    threshold, offline, disconnect = (found.get(name) for name in OLDER_SETTINGS)
    limit = parse_bytes(leaf_value(threshold))
    reason = next((unset_reason(one.value) for one in found.values() if is_placeholder(one.value)), "")
    offlines, disconnects = _is_on(offline), _is_on(disconnect)
    if reason or not limit or not (offlines or disconnects):
        for leaf in found.values():
            imported.record_skipped(leaf, reason or (_NO_ACTION if limit else _NO_LIMIT))
        return []
    action = PolicyAction.OFFLINE if offlines else PolicyAction.DISCONNECT
    name = f"amps.buffer.{transport}" if transport else "amps.buffer"
    settings = {
        "ClientBufferThreshold": f"limit; {_SHADOW}",
        "ClientOffline": "offline" if offlines else "offline is off",
        "SlowClientDisconnect": "disconnect" if disconnects else "disconnect is off",
    }
    for key, one in found.items():
        imported.record_imported(one, f"rule {name}", settings[key])
    if disconnect is not None and offlines:
        imported.record_skipped(disconnect, _OFFLINE_FIRST)
    return [
        {
            "name": name,
            "mode": EnforcementMode.SHADOW.value,
            "signal": Signal.OUTBOUND_BYTES.value,
            "limit": limit,
            "scope": {"transport": transport} if transport else {},
            "ladder": [{"action": action.value}],
        }
    ]


def _is_on(leaf: XmlLeaf | None) -> bool:
    """Return whether a setting is "enabled" or "true"."""
    text = leaf_value(leaf).strip().lower()
    return text == "enabled" or parse_bool(text) is True
