"""Settings of one transport."""

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

TRANSPORT_KINDS = ("tcp", "websocket", "stomp", "stomp-ws")
STOMP_KINDS: Final = frozenset(("stomp", "stomp-ws"))
WEBSOCKET_KINDS: Final = frozenset(("websocket", "stomp-ws"))
_SCHEMES: Final = {"tcp": "tcp", "websocket": "ws", "stomp": "stomp", "stomp-ws": "ws"}
_ALL_ADDRESSES: Final = frozenset(("0.0.0.0", "::"))
MAX_BODY: Final = MAX_BATCH_BYTES - 64 * 1024
"""Bytes of a STOMP message's body; the rest of the batch is for its headers."""
LEAST_BODY: Final = 1_024


class ResumeFrom(StrEnum):
    """Where a STOMP client goes on that a policy dropped and that subscribes as before."""

    NOW = "now"
    """With what comes; it is told what it missed."""
    LAST_ACKED = "last-acked"
    """With what it hadn't acknowledged."""


class TransportField(NamedTuple):
    """A setting that a transport's document may leave out."""

    silent: object
    """Its value, as JSON, where nothing is said."""
    kinds: frozenset[str] = frozenset(TRANSPORT_KINDS)
    """Of the transports that it means something to."""


TRANSPORT_FIELDS: Final[Mapping[str, TransportField]] = {
    "authentication": TransportField("none"),
    "restricted": TransportField(False),
    "tls": TransportField(None),
    "origins": TransportField([], WEBSOCKET_KINDS),
    "resume": TransportField(ResumeFrom.NOW.value, STOMP_KINDS),
    "max_body": TransportField(None, STOMP_KINDS),
}
"""What a document says of a transport beside what it is, where it listens and its limits: the one list of them."""
SILENT: Final[Mapping[str, object]] = {name: field.silent for name, field in TRANSPORT_FIELDS.items()}


OF_SOME_KINDS: Final[Mapping[str, frozenset[str]]] = {
    name: field.kinds for name, field in TRANSPORT_FIELDS.items() if field.kinds < set(TRANSPORT_KINDS)
}
"""The settings that not every kind of transport has, and the kinds that have them."""


@dataclass(frozen=True, slots=True)
class TransportSettings:
    """One listener: name, kind (one of TRANSPORT_KINDS), where it listens, and what differs from the instance.

    authentication   what clients must show at logon: none, token, password or certificate (a TLS client certificate)
    restricted       whether clients may only do what an entitlement allows them; else they may do everything
    tls              its files; None is plain
    origins          of the pages that may connect by WebSocket, as https://desk.example; * is any. Programs name none
    resume           of STOMP: where a client goes on that a policy dropped and that subscribes as before
    max_body         of STOMP: bytes of a message's body; None is as many as a batch takes
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
    def has_same_listener(self) -> tuple[object, ...]:
        """What a listener can't change while it listens."""
        return self.kind, self.host, self.port, self.tls

    def address(self, machine: str, port: int) -> str:
        """Return its address for other machines; `machine` is the host of one that listens on all addresses."""
        scheme = _SCHEMES[self.kind] + ("s" if self.tls is not None else "")
        host = machine if self.host in _ALL_ADDRESSES else self.host
        return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def transports_to_close(before: Iterable[TransportSettings], after: Iterable[TransportSettings]) -> set[str]:
    """Names of transports that listen and will not, or not there and so: they were taken away, disabled or moved."""
    wanted = {one.name: one.has_same_listener for one in after if one.enabled}
    return {one.name for one in before if one.enabled and wanted.get(one.name) != one.has_same_listener}


def read_transport(reader: DocumentReader, source: Mapping[str, Any]) -> TransportSettings:
    """One transport's settings."""
    where = f"transport {source.get('name', '')!r}"
    reader.check_known_keys(source, TransportSettings.__dataclass_fields__, where)
    name = reader.read_name(source, where)
    kind, host, enabled = source.get("kind"), source.get("host", "127.0.0.1"), source.get("enabled", True)
    if kind not in TRANSPORT_KINDS:
        reader.problems.append(f"{where}: kind must be one of {', '.join(TRANSPORT_KINDS)}")
    if not isinstance(host, str) or not host:
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
    """What STOMP transports alone have: `resume` and `max_body`."""
    resume = reader.read_enum(source, "resume", where, ResumeFrom) or ResumeFrom.NOW
    max_body = reader.read_int(source, "max_body", where, LEAST_BODY, MAX_BODY)
    for key, value in (("resume", resume), ("max_body", max_body)):
        if value != SILENT[key] and source.get("kind") not in TRANSPORT_FIELDS[key].kinds:
            reader.problems.append(f"{where}: {key} is a setting of transports of kind stomp and stomp-ws")
    return resume, max_body
