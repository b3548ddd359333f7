"""Import of policies from other brokers' configuration files.

`import_policy("activemq", text)` returns a fragment of a policy document and actions. For each leaf of the
file it also says whether it was imported (into which setting), skipped (for which reason), or isn't about
policy. Nothing is stored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from broker_core.errors import OperatorError
from console.services.policy_import import activemq, amps, qpid, xap
from console.services.policy_import.recognition import recognition_hint
from console.services.policy_import.result import (
    ImportedSetting,
    ImportReport,
    SkippedSetting,
    UnrelatedSetting,
)
from console.services.policy_import.rule_tables import TABLES, import_by_table
from console.services.policy_import.variables import Variables, parse_assignments

READERS: dict[str, Callable[[str, Variables], ImportReport]] = {
    "activemq": activemq.import_activemq,
    "qpid": qpid.import_qpid,
    "amps": amps.import_amps,
    "xap": xap.import_xap,
    **{system: partial(import_by_table, table) for system, table in TABLES.items()},
}
MAX_TEXT_BYTES = 1_048_576
"""Maximum bytes of a file's text in UTF-8."""
_LOOKED_FOR = {
    "activemq": (
        '<policyEntry topic="…"> with a prefetch, a pendingMessageLimitStrategy or a slowConsumerStrategy'
    ),
    "qpid": '<slow-consumer-detection> of topics, or <topic key="…"> with a <consumer>',
    "amps": "<AMPSConfig> with MessageMemoryLimit and its like, Transports, a TransactionLog or Actions",
    "xap": f"{xap.PREFIX}enabled, throughput, latency or retries",
    "nats": "max_pending or write_deadline",
    "redis": "client-output-buffer-limit pubsub",
    "centrifugo": "client.queue_max_size, in JSON",
    "rabbitmq": "consumer_timeout, or policies with max-length (rabbitmq.conf, or definitions in JSON)",
    "mosquitto": "max_queued_messages",
    "artemis": '<address-setting match="…"> with slow-consumer-threshold',
}
"""Contents that each importer needs, for hints."""

__all__ = [
    "MAX_TEXT_BYTES",
    "READERS",
    "ImportReport",
    "ImportedSetting",
    "SkippedSetting",
    "UnrelatedSetting",
    "import_hint",
    "import_policy",
    "large_text_error",
    "parse_assignments",
    "recognition_hint",
    "refuse_large_text",
]


def refuse_large_text(text: str, max_bytes: int, name: str = "The file") -> None:
    """Raise OperatorError `bad_import` if a text has over `max_bytes` bytes in UTF-8."""
    # An unpaired surrogate is reported by the reader of the text.
    if len(text) > max_bytes or len(text.encode("utf-8", "surrogatepass")) > max_bytes:
        raise large_text_error(max_bytes, name)


def large_text_error(max_bytes: int, name: str = "The file") -> OperatorError:
    """Return the OperatorError `bad_import` for a text of more than `max_bytes` bytes."""
    return OperatorError(
        "bad_import",
        f"{name} is over {max_bytes} bytes, counted in UTF-8.",
        "Import only the part with the policy.",
    )


def import_policy(system: str, text: str, values: Mapping[str, str] | None = None) -> ImportReport:
    """Import a system's configuration file.

    Args:
        system: Key of `READERS`.
        text: The file.
        values: Values of variables in the file, such as those of `${NAME}`, by name.

    Raises:
        OperatorError: `bad_import` for an unreadable file, or a value for a variable that it doesn't have;
            `nothing_imported` if no setting was imported.
    """
    if system not in READERS:
        raise OperatorError(
            "bad_import", f"Sluice has no importer for {system!r}.", f"Choose one of {', '.join(READERS)}."
        )
    refuse_large_text(text, MAX_TEXT_BYTES)
    if not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text):
        raise OperatorError("bad_import", "The file contains half of a surrogate pair.", "Save it as UTF-8.")
    variables = Variables(values)
    try:
        imported = READERS[system](text.removeprefix("\ufeff"), variables)
        if imported.is_empty():
            raise imported.nothing_imported_error(import_hint(system))
    except OperatorError as problem:
        if hint := recognition_hint(text, system):
            problem.fix = hint
        raise
    if unused := list(variables.unused()):
        raise OperatorError(
            "bad_import",
            f"The file has no variable {', '.join(repr(name[:80]) for name in unused[:10])}.",
            "Set only variables of the file: the report of an import names them.",
        )
    return imported


def import_hint(system: str) -> str:
    """Return a hint about the contents that a system's importer needs."""
    return f"Use the file that has {_LOOKED_FOR[system]}, or choose the system of this file."
