"""Recognition of the system that a configuration file belongs to, for files given to the wrong importer."""

from __future__ import annotations

import re
from typing import Final

MAX_SEARCHED: Final = 100_000
"""Maximum characters that are searched for marks of a system."""
FILES: Final = {
    "activemq": "activemq.xml",
    "amps": "a configuration of AMPS",
    "artemis": "broker.xml of Artemis",
    "centrifugo": "a configuration of Centrifugo",
    "mosquitto": "mosquitto.conf",
    "nats": "a configuration of NATS",
    "qpid": "virtualhosts.xml of Qpid",
    "rabbitmq": "rabbitmq.conf or definitions of RabbitMQ",
    "redis": "redis.conf",
    "xap": "options of XAP",
}
"""Name of the file of each system."""
_MARKS: Final = {
    "artemis": r"urn:activemq|<address-settings?\b",
    "activemq": r"<policyEntr|activemq\.apache\.org/schema",
    "amps": r"<AMPSConfig\b|<TransactionLog\b|amps-action-",
    "qpid": r"<virtualhosts?\b|<slow-consumer-detection\b",
    "xap": r"com\.gs\.|\bXAP_\w+|\bGS_LOOKUP_",
    "rabbitmq": (
        r"\"rabbit_version\"|\"rabbitmq_version\"|^(consumer_timeout|listeners\.(tcp|ssl)"
        r"|vm_memory_high_watermark|default_policies|disk_free_limit|channel_max)\b"
    ),
    "centrifugo": r"queue_max_size|\"token_hmac_secret_key\"|\"history_meta_ttl\"",
    "redis": r"^(client-output-buffer-limit|maxmemory(-policy)?|appendonly|requirepass|tcp-backlog)\s",
    "mosquitto": (
        r"^(max_queued_messages|max_inflight_messages|listener|allow_anonymous|persistence(_location)?"
        r"|password_file|persistent_client_expiration|per_listener_settings)\s"
    ),
    "nats": r"^\s*(max_pending|write_deadline|jetstream|max_payload|authorization|leafnodes)\s*[:={ ]",
}
_COMPILED: Final = {system: re.compile(mark, re.MULTILINE) for system, mark in _MARKS.items()}


def recognise_system(text: str) -> str:
    """Return the system that a file belongs to, by words that only its files have; "" if unknown."""
    searched = text[:MAX_SEARCHED]
    return next((system for system, mark in _COMPILED.items() if mark.search(searched)), "")


def recognition_hint(text: str, system: str) -> str:
    """Return a sentence that names the importer for a file of another system than `system`, or ""."""
    found = recognise_system(text)
    return f"This looks like {FILES[found]}: --from {found}." if found and found != system else ""
