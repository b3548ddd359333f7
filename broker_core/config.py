"""Settings: typed, frozen, checked once, with the words and defaults of seed 000. Also the JSON of a policy revision.

A policy document is one whole revision: the instance's settings and every transport's. `from_dict` lists every
problem at once and never repairs a value.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from broker_core.errors import OperatorError
from broker_core.names import is_name

MIB = 1024 * 1024
TRANSPORT_KINDS = ("tcp", "websocket")


@dataclass(frozen=True, slots=True)
class PoolSettings:
    """A shared budget. None means: the instance's value, and there AMPS's default.

    message_memory_limit   bytes; default the lower of 10 % of host memory and 10 % of the ulimit
    message_disk_limit     bytes; default the higher of 1 GB and the memory limit
    message_disk_path      directory of spool files; default below the instance's data directory
    """

    message_memory_limit: int | None = None
    message_disk_limit: int | None = None
    message_disk_path: str | None = None


@dataclass(frozen=True, slots=True)
class ClientPolicy:
    """What one client may use. None means: the instance's value.

    client_max_capacity           percent of the memory limit before offlining, of the disk limit after; default 50
    client_message_age_limit_ms   how far a client may lag behind, milliseconds; default no limit
    """

    client_max_capacity: int | None = None
    client_message_age_limit_ms: int | None = None


@dataclass(frozen=True, slots=True)
class TransportSettings:
    """One listener: name, kind (tcp or websocket), where it listens, and what differs from the instance."""

    name: str
    kind: str
    port: int
    host: str = "127.0.0.1"
    enabled: bool = True
    pool: PoolSettings = field(default_factory=PoolSettings)
    client_policy: ClientPolicy = field(default_factory=ClientPolicy)


@dataclass(frozen=True, slots=True)
class InstanceSettings:
    """The instance: its name, which topics are journaled, and its journal's files.

    journaled_topics     patterns; default everything
    unjournaled_topics   patterns taken out of those; default scratch.>
    journal_size         bytes of a segment; default 128 MiB, at least 1 MiB
    preallocated_files   segments made in advance; default 2, at least 1
    """

    name: str
    journaled_topics: tuple[str, ...] = (">",)
    unjournaled_topics: tuple[str, ...] = ("scratch.>",)
    journal_size: int = 128 * MIB
    preallocated_files: int = 2


@dataclass(frozen=True, slots=True)
class PolicyDocument:
    """One revision, whole. The instance-wide client policy always has a capacity."""

    revision: int
    instance: InstanceSettings
    pool: PoolSettings
    client_policy: ClientPolicy
    transports: tuple[TransportSettings, ...]

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> PolicyDocument:
        """Read and check a document. Raises OperatorError bad_policy with every problem in details["problems"]."""
        reader = _Reader()
        policy = reader.document(document)
        if reader.problems or policy is None:
            raise OperatorError(
                "bad_policy",
                "The policy can't be used: " + "; ".join(reader.problems) + ".",
                "Correct the settings named and save again.",
                problems=reader.problems,
            )
        return policy

    def to_dict(self) -> dict[str, Any]:
        """The document as JSON-able data; from_dict(to_dict()) is the same policy."""
        made = asdict(self)
        for key in ("journaled_topics", "unjournaled_topics"):
            made["instance"][key] = list(made["instance"][key])
        made["transports"] = list(made["transports"])
        return made

    def transport(self, name: str) -> TransportSettings:
        """The transport of that name. Raises OperatorError unknown_transport."""
        for transport in self.transports:
            if transport.name == name:
                return transport
        raise OperatorError("unknown_transport", f"There is no transport {name!r}.", "See /api/v1/transports.")

    def client_policy_of(self, transport: TransportSettings) -> ClientPolicy:
        """A transport's client policy with the instance's values where it says nothing."""
        mine, instance = transport.client_policy, self.client_policy
        return ClientPolicy(
            instance.client_max_capacity if mine.client_max_capacity is None else mine.client_max_capacity,
            instance.client_message_age_limit_ms
            if mine.client_message_age_limit_ms is None
            else mine.client_message_age_limit_ms,
        )


def default_policy(instance_name: str, *, tcp_port: int = 9007, websocket_port: int = 9008) -> PolicyDocument:
    """Revision 1 of a new instance: TCP on 9007 and WebSocket on 9008, AMPS's defaults."""
    return PolicyDocument(
        1,
        InstanceSettings(instance_name),
        PoolSettings(),
        ClientPolicy(client_max_capacity=50),
        (TransportSettings("tcp", "tcp", tcp_port), TransportSettings("websocket", "websocket", websocket_port)),
    )


class _Reader:
    """Reads a document and gathers every problem instead of stopping at the first."""

    def __init__(self) -> None:
        self.problems: list[str] = []

    def document(self, source: Mapping[str, Any]) -> PolicyDocument | None:
        self._only(source, ("revision", "instance", "pool", "client_policy", "transports"), "policy")
        revision = self._number(source, "revision", "policy", 1, 2**31 - 1) or 0
        instance = self._instance(self._mapping(source, "instance"))
        pool = self._pool(self._mapping(source, "pool"), "pool")
        client = self._client_policy(self._mapping(source, "client_policy"), "client_policy")
        if client.client_max_capacity is None:
            client = ClientPolicy(50, client.client_message_age_limit_ms)
        listed = source.get("transports")
        if not isinstance(listed, (list, tuple)) or not 1 <= len(listed) <= 64:
            self.problems.append("transports must be a list of 1 to 64")
            return None
        transports = tuple(self._transport(item) for item in listed if isinstance(item, Mapping))
        if len(transports) != len(listed):
            self.problems.append("every transport must be an object")
        self._unique([transport.name for transport in transports], "transport name")
        self._unique([(t.host, t.port) for t in transports if t.port], "address of a transport")
        return PolicyDocument(revision, instance, pool, client, transports)

    def _instance(self, source: Mapping[str, Any]) -> InstanceSettings:
        where = "instance"
        self._only(source, tuple(InstanceSettings.__dataclass_fields__), where)
        name = source.get("name", "")
        if not isinstance(name, str) or not is_name(name):
            self.problems.append("instance.name must be 1 to 64 letters, digits, dots, dashes, underscores")
        return InstanceSettings(
            str(name),
            self._texts(source, "journaled_topics", (">",)),
            self._texts(source, "unjournaled_topics", ("scratch.>",)),
            self._number(source, "journal_size", where, MIB, 16 * 1024 * MIB) or 128 * MIB,
            self._number(source, "preallocated_files", where, 1, 64) or 2,
        )

    def _transport(self, source: Mapping[str, Any]) -> TransportSettings:
        name = source.get("name", "")
        where = f"transport {name!r}"
        self._only(source, tuple(TransportSettings.__dataclass_fields__), where)
        if not isinstance(name, str) or not is_name(name):
            self.problems.append(f"{where}: name must be 1 to 64 letters, digits, dots, dashes, underscores")
        kind, host, enabled = source.get("kind"), source.get("host", "127.0.0.1"), source.get("enabled", True)
        if kind not in TRANSPORT_KINDS:
            self.problems.append(f"{where}: kind must be one of {', '.join(TRANSPORT_KINDS)}")
        if not isinstance(host, str) or not host:
            self.problems.append(f"{where}: host must be an address")
        if not isinstance(enabled, bool):
            self.problems.append(f"{where}: enabled must be true or false")
        port = self._number(source, "port", where, 0, 65_535)
        if port is None:
            self.problems.append(f"{where}: port is needed")
        return TransportSettings(
            str(name), str(kind), port or 0, str(host), bool(enabled),
            self._pool(self._mapping(source, "pool"), where),
            self._client_policy(self._mapping(source, "client_policy"), where),
        )

    def _pool(self, source: Mapping[str, Any], where: str) -> PoolSettings:
        self._only(source, tuple(PoolSettings.__dataclass_fields__), where)
        path = source.get("message_disk_path")
        if path is not None and (not isinstance(path, str) or not path.startswith("/")):
            self.problems.append(f"{where}: message_disk_path must be an absolute path")
        return PoolSettings(
            self._number(source, "message_memory_limit", where, 1, 2**62),
            self._number(source, "message_disk_limit", where, 1, 2**62),
            path,
        )

    def _client_policy(self, source: Mapping[str, Any], where: str) -> ClientPolicy:
        self._only(source, tuple(ClientPolicy.__dataclass_fields__), where)
        return ClientPolicy(
            self._number(source, "client_max_capacity", where, 1, 100),
            self._number(source, "client_message_age_limit_ms", where, 1, 2**53),
        )

    def _only(self, source: Mapping[str, Any], known: tuple[str, ...], where: str) -> None:
        self.problems += [f"{where}: there is no setting {key!r}" for key in source if key not in known]

    def _mapping(self, source: Mapping[str, Any], key: str) -> Mapping[str, Any]:
        value = source.get(key)
        if value is None:
            return {}
        if not isinstance(value, Mapping):
            self.problems.append(f"{key} must be an object")
            return {}
        return value

    def _number(self, source: Mapping[str, Any], key: str, where: str, low: int, high: int) -> int | None:
        value = source.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            self.problems.append(f"{where}: {key} must be a whole number from {low} to {high}")
            return None
        return value

    def _texts(self, source: Mapping[str, Any], key: str, default: tuple[str, ...]) -> tuple[str, ...]:
        value = source.get(key)
        if value is None:
            return default
        if not isinstance(value, (list, tuple)) or len(value) > 1_000 or not all(isinstance(v, str) for v in value):
            self.problems.append(f"instance: {key} must be a list of topic patterns")
            return default
        return tuple(value)

    def _unique(self, values: list[Any], what: str) -> None:
        for value in {value for value in values if values.count(value) > 1}:
            self.problems.append(f"two transports have the {what} {value}")
