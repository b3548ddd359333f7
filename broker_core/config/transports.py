"""Settings of one transport: its listener, authentication, limits and STOMP options."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, NamedTuple

from broker_core.batch import MAX_BATCH_BYTES
from broker_core.config.access import TlsSettings, read_authentication, read_origins
from broker_core.config.document_reader import DocumentReader
from broker_core.config.preset_settings import ClientPolicy, PoolSettings
from broker_core.config.presets import read_client_policy, read_pool
from broker_core.names import is_host_name

TRANSPORT_KINDS = ("tcp", "websocket", "stomp", "stomp-ws")
STOMP_KINDS: Final = frozenset(("stomp", "stomp-ws"))
WEBSOCKET_KINDS: Final = frozenset(("websocket", "stomp-ws"))
_SCHEMES: Final = {"tcp": "tcp", "websocket": "ws", "stomp": "stomp", "stomp-ws": "ws"}
_ALL_ADDRESSES: Final = frozenset(("0.0.0.0", "::"))
MAX_BODY: Final = MAX_BATCH_BYTES - 1024 * 1024
"""Maximum bytes of a STOMP message's body.

The rest of the batch is reserved for the message's headers, whose escapes may double them, and for topics.
"""
MIN_BODY: Final = 1_024


class ResumeFrom(StrEnum):
    """Position from which a STOMP client continues after a policy dropped it and it subscribes as before."""

    NOW = "now"
    """Continue with new messages. The broker reports the missed interval."""
    LAST_ACKED = "last-acked"
    """Continue with the first message that the client had not acknowledged."""


class TransportField(NamedTuple):
    """Optional setting of a transport."""

    default_json: object
    """Default value, as JSON."""
    kinds: frozenset[str] = frozenset(TRANSPORT_KINDS)
    """Kinds of transports that have the setting."""


TRANSPORT_FIELDS: Final[Mapping[str, TransportField]] = {
    "authentication": TransportField("none"),
    "restricted": TransportField(False),
    "tls": TransportField(None),
    "origins": TransportField([], WEBSOCKET_KINDS),
    "resume": TransportField(ResumeFrom.NOW.value, STOMP_KINDS),
    "max_body": TransportField(None, STOMP_KINDS),
}
"""Optional settings of a transport, besides its identity, its address and its limits."""
TRANSPORT_DEFAULTS: Final[Mapping[str, object]] = {
    name: field.default_json for name, field in TRANSPORT_FIELDS.items()
}


RESTRICTED_FIELDS: Final[Mapping[str, frozenset[str]]] = {
    name: field.kinds for name, field in TRANSPORT_FIELDS.items() if field.kinds < set(TRANSPORT_KINDS)
}
"""Settings that only some kinds of transports have, and those kinds."""


@dataclass(frozen=True, slots=True)
class TransportSettings:
    """Listener of an instance: its address, and the settings that differ from those of the instance.

    Attributes:
        name: Unique name of the transport.
        kind: One of TRANSPORT_KINDS.
        port: Port to listen on. 0: the system chooses one.
        host: Address to listen on. Default 127.0.0.1.
        enabled: Whether the transport listens. Default true.
        pool: AMPS pool settings of this transport.
        client_policy: AMPS client limits of this transport.
        authentication: Credentials that clients need at logon: none, token, password or certificate (a TLS
            client certificate).
        restricted: Whether clients may do only what an entitlement permits. Default false: clients may do
            everything.
        tls: Certificate files. None: no TLS.
        origins: Origins of web pages that may connect by WebSocket, such as https://desk.example. `*` permits
            all. Programs send no origin and are permitted.
        resume: STOMP only: position of a client that a policy dropped and that subscribes as before.
        max_body: STOMP only: maximum bytes of a message's body. None: as many as fit a batch.
    """

    name: str
    kind: str
    port: int
    host: str = "127.0.0.1"
    enabled: bool = True
    pool: PoolSettings = field(default_factory=PoolSettings)
    client_policy: ClientPolicy = field(default_factory=ClientPolicy)
    authentication: str = "none"
    restricted: bool = False
    tls: TlsSettings | None = None
    origins: tuple[str, ...] = ()
    resume: ResumeFrom = ResumeFrom.NOW
    max_body: int | None = None

    @property
    def listener_key(self) -> tuple[object, ...]:
        """Settings that cannot change while the listener is open. Equal tuples mean the same listener."""
        return self.kind, self.host, self.port, self.tls

    def address(self, machine: str, port: int) -> str:
        """Return the transport's address for other machines.

        Args:
            machine: Host name to use if the transport listens on all addresses.
            port: Port on which the transport listens.
        """
        scheme = _SCHEMES[self.kind] + ("s" if self.tls is not None else "")
        host = machine if self.host in _ALL_ADDRESSES else self.host
        return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def transports_to_close(before: Iterable[TransportSettings], after: Iterable[TransportSettings]) -> set[str]:
    """Return the names of open transports that must close: removed, disabled, or with a changed listener."""
    listener_keys = {one.name: one.listener_key for one in after if one.enabled}
    return {one.name for one in before if one.enabled and listener_keys.get(one.name) != one.listener_key}


def read_transport(reader: DocumentReader, source: Mapping[str, Any]) -> TransportSettings:
    """Read the settings of one transport."""
    where = f"transport {source.get('name', '')!r}"
    reader.check_known_keys(source, TransportSettings.__dataclass_fields__, where)
    name = reader.read_name(source, where)
    kind, host, enabled = source.get("kind"), source.get("host", "127.0.0.1"), source.get("enabled", True)
    if kind not in TRANSPORT_KINDS:
        reader.problems.append(f"{where}: kind must be one of {', '.join(TRANSPORT_KINDS)}")
    if not isinstance(host, str) or not is_host_name(host):
        reader.problems.append(f"{where}: host must be an address")
    if not isinstance(enabled, bool):
        reader.problems.append(f"{where}: enabled must be true or false")
    port = reader.read_int(source, "port", where, 0, 65_535)
    if port is None:
        reader.problems.append(f"{where}: port is needed")
    return TransportSettings(
        name,
        str(kind),
        port or 0,
        str(host),
        bool(enabled),
        read_pool(reader, reader.read_object(source, "pool"), where),
        read_client_policy(reader, reader.read_object(source, "client_policy"), where),
        *read_authentication(reader, source, where),
        read_origins(reader, source, where),
        *read_stomp(reader, source, where),
    )


def read_stomp(
    reader: DocumentReader, source: Mapping[str, Any], where: str
) -> tuple[ResumeFrom, int | None]:
    """Read the settings that only STOMP transports have: `resume` and `max_body`.

    A value other than the default on another kind of transport is a problem.
    """
    resume = reader.read_enum(source, "resume", where, ResumeFrom) or ResumeFrom.NOW
    max_body = reader.read_int(source, "max_body", where, MIN_BODY, MAX_BODY)
    for key, value in (("resume", resume), ("max_body", max_body)):
        if value != TRANSPORT_DEFAULTS[key] and source.get("kind") not in TRANSPORT_FIELDS[key].kinds:
            reader.problems.append(f"{where}: {key} is a setting of transports of kind stomp and stomp-ws")
    return resume, max_body
