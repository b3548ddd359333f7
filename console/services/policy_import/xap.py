"""XAP's JVM system properties (seed 001), from a properties file or from -D options."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from console.services.policy_import.imported import Imported, flag, whole

PREFIX = "com.gs.transport_protocol.lrmi.slow-consumer."
_SETTINGS: dict[str, Callable[[str | None], Any]] = {
    "enabled": flag, "throughput": whole, "latency": whole, "retries": whole,
}
_CLIENTS = {
    "com.gs.transport_protocol.lrmi.threadpool.queue-size": "It bounds a buffer in the client; Sluice's client is bounded.",
    "com.gs.fifo_notify.queue": "It bounds a buffer in the client; Sluice's client is bounded.",
}


def read(text: str) -> Imported:
    """The slow-consumer properties as the instance's entry of `xap`. Properties of other parts are left out."""
    imported = Imported()
    made: dict[str, Any] = {}
    for name, value in properties(text):
        setting = name.removeprefix(PREFIX)
        convert = _SETTINGS.get(setting) if name.startswith(PREFIX) else None
        found = convert(value) if convert is not None else None
        if found is not None:
            made[setting] = found
        elif convert is not None:
            imported.leave_out(name, value, "It isn't a value of this setting.")
        elif name.startswith("com.gs."):
            imported.leave_out(name, value, _CLIENTS.get(name, "It isn't about slow consumers."))
    if made:
        imported.document["xap"] = [made]
    return imported


def properties(text: str) -> Iterator[tuple[str, str]]:
    """Names and values: one a line, `name=value` or `name: value`, also as `-Dname=value` words of a command line."""
    for line in text.splitlines():
        stripped = line.strip()
        if not stripped or stripped[0] in "#!":
            continue
        for word in stripped.split() if "-D" in stripped else [stripped]:
            if "-D" in stripped and not word.startswith("-D"):
                continue
            name, separator, value = word.removeprefix("-D").partition("=")
            if not separator:
                name, _, value = word.partition(":")
            yield name.strip(), value.strip().strip('"')
