"""Policies from other brokers' configuration files: the same settings as typing them would make.

`read("activemq", text)` gives what was understood, as a fragment of a policy document and as actions, and says
of each leaf of the file whether it was taken (into what), left out (why), or isn't about policy. Nothing is
stored here.
"""

from __future__ import annotations

from collections.abc import Callable

from broker_core.errors import OperatorError
from console.services.policy_import import activemq, amps, qpid, xap
from console.services.policy_import.result import (
    ImportedSetting,
    ImportReport,
    SkippedSetting,
    UnrelatedSetting,
)

READERS: dict[str, Callable[[str], ImportReport]] = {
    "activemq": activemq.import_activemq,
    "qpid": qpid.import_qpid,
    "amps": amps.import_amps,
    "xap": xap.import_xap,
}
MAX_TEXT = 1_048_576
_LOOKED_FOR = {
    "activemq": '<policyEntry topic="…"> with a prefetch, a pendingMessageLimitStrategy or a slowConsumerStrategy',
    "qpid": '<slow-consumer-detection> of topics, or <topic key="…"> with a <consumer>',
    "amps": "<AMPSConfig> with MessageMemoryLimit and its like, Transports, a TransactionLog or Actions",
    "xap": f"{xap.PREFIX}enabled, throughput, latency or retries",
}

__all__ = [
    "MAX_TEXT",
    "READERS",
    "ImportReport",
    "ImportedSetting",
    "SkippedSetting",
    "UnrelatedSetting",
    "import_hint",
    "import_policy",
]


def import_policy(system: str, text: str) -> ImportReport:
    """What a system's configuration says. Raises OperatorError bad_import; nothing_imported if nothing is taken."""
    if system not in READERS:
        raise OperatorError(
            "bad_import", f"There is no importer for {system!r}.", f"Choose one of {', '.join(READERS)}."
        )
    if len(text) > MAX_TEXT:
        raise OperatorError(
            "bad_import",
            f"The file is over {MAX_TEXT} characters.",
            "Import only the part with the policies.",
        )
    if not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text):
        raise OperatorError("bad_import", "The file holds half a surrogate pair.", "Save it as UTF-8.")
    imported = READERS[system](text.removeprefix("\ufeff"))
    if imported.is_empty():
        raise imported.nothing_imported_error(import_hint(system))
    return imported


def import_hint(system: str) -> str:
    """What an importer looks for, for whoever gave it a file without."""
    return f"Give the file that has {_LOOKED_FOR[system]}, or choose the system whose file it is."
