"""Policies from other brokers' configuration files: the same settings as typing them would make.

`read("activemq", text)` gives what was understood, as a fragment of a policy document and as actions, and a list of
what couldn't be taken over, each with where it stood and why. Nothing is stored here.
"""

from __future__ import annotations

from collections.abc import Callable

from broker_core.errors import OperatorError
from console.services.policy_import import activemq, amps, qpid, xap
from console.services.policy_import.imported import Imported, LeftOut

READERS: dict[str, Callable[[str], Imported]] = {
    "activemq": activemq.read, "qpid": qpid.read, "amps": amps.read, "xap": xap.read,
}
MAX_TEXT = 1_048_576

__all__ = ["MAX_TEXT", "READERS", "Imported", "LeftOut", "read"]


def read(system: str, text: str) -> Imported:
    """What a system's configuration says. Raises OperatorError bad_import."""
    if system not in READERS:
        raise OperatorError("bad_import", f"There is no importer for {system!r}.", f"Choose one of {', '.join(READERS)}.")
    if len(text) > MAX_TEXT:
        raise OperatorError("bad_import", f"The file is over {MAX_TEXT} characters.", "Import the part with the policies.")
    return READERS[system](text)
