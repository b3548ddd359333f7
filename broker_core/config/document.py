"""The JSON of a policy revision."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import msgspec

from broker_core.config.access import AccessSettings, read_access
from broker_core.config.destinations import DestinationSettings, read_destinations
from broker_core.config.instance import GROUP_SILENT, InstanceSettings, read_instance
from broker_core.config.preset_fields import (
    DEFAULT_CLIENT_MAX_CAPACITY,
    ActiveMqPolicy,
    ClientPolicy,
    PoolSettings,
    QpidTopic,
    QuotaSettings,
    XapPolicy,
)
from broker_core.config.presets import (
    read_activemq,
    read_client_policy,
    read_pool,
    read_qpid,
    read_quotas,
    read_xap,
)
from broker_core.config.reading import Reader, bad_policy
from broker_core.config.rule_settings import RuleSettings
from broker_core.config.rules import read_rules
from broker_core.config.transports import SILENT, TransportSettings, read_transport
from broker_core.errors import OperatorError


@dataclass(frozen=True, slots=True)
class PolicyDocument:
    """One revision, whole. The instance-wide client policy always has a capacity."""

    revision: int
    instance: InstanceSettings
    pool: PoolSettings
    client_policy: ClientPolicy
    transports: tuple[TransportSettings, ...]
    rules: tuple[RuleSettings, ...] = ()
    """The operator's own rules."""
    xap: tuple[XapPolicy, ...] = ()
    activemq: tuple[ActiveMqPolicy, ...] = ()
    qpid: tuple[QpidTopic, ...] = ()
    access: AccessSettings = field(default_factory=AccessSettings)
    """Who may log on, and what they may do."""
    quotas: tuple[QuotaSettings, ...] = ()
    """What one user and one client may take."""
    destinations: tuple[DestinationSettings, ...] = ()
    """Where records are carried to."""

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> PolicyDocument:
        """Read and check a document. Raises OperatorError bad_policy with every problem in details["problems"]."""
        reader = Reader()
        policy = _read(reader, document)
        if reader.problems or policy is None:
            raise bad_policy(reader.problems)
        return policy

    def to_dict(self) -> dict[str, Any]:
        """The document as JSON-able data; from_dict(to_dict()) is the same policy."""
        made: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(self))
        made["instance"]["journaled_topics"] = [topic.as_json() for topic in self.instance.journaled_topics]
        # What says nothing stays out, so that documents without it are as they were.
        for key, silent in GROUP_SILENT.items():
            if made["instance"][key] == silent:
                del made["instance"][key]
        if self.access == AccessSettings():
            del made["access"]
        if not self.destinations:
            del made["destinations"]
        for transport in made["transports"]:
            for key, silent in SILENT.items():
                if transport[key] == silent:
                    del transport[key]
        return made

    def transport(self, name: str) -> TransportSettings:
        """The transport of that name. Raises OperatorError unknown_transport."""
        for transport in self.transports:
            if transport.name == name:
                return transport
        raise OperatorError(
            "unknown_transport", f"There is no transport {name!r}.", "See /api/v1/transports."
        )

    def client_policy_of(self, transport: str) -> ClientPolicy:
        """What holds for a transport's clients: the instance's values where it says nothing, or isn't there."""
        for own in self.transports:
            if own.name == transport:
                said = {key: value for key, value in asdict(own.client_policy).items() if value is not None}
                return replace(self.client_policy, **said)
        return self.client_policy


def default_policy(
    instance_name: str,
    *,
    tcp_port: int = 9007,
    websocket_port: int = 9008,
    stomp_port: int = 61613,
    stomp_ws_port: int = 61614,
) -> PolicyDocument:
    """Revision 1 of a new instance: TCP on 9007 and WebSocket on 9008, AMPS's defaults; STOMP where ActiveMQ has it."""
    return PolicyDocument(
        1,
        InstanceSettings(instance_name),
        PoolSettings(),
        ClientPolicy(client_max_capacity=DEFAULT_CLIENT_MAX_CAPACITY),
        (
            TransportSettings("tcp", "tcp", tcp_port),
            TransportSettings("websocket", "websocket", websocket_port),
            TransportSettings("stomp", "stomp", stomp_port),
            TransportSettings("stomp-ws", "stomp-ws", stomp_ws_port),
        ),
    )


def _read(reader: Reader, source: Mapping[str, Any]) -> PolicyDocument | None:
    reader.only(source, PolicyDocument.__dataclass_fields__, "policy")
    revision = reader.number(source, "revision", "policy", 1, 2**31 - 1) or 0
    instance = read_instance(reader, reader.mapping(source, "instance"))
    pool = read_pool(reader, reader.mapping(source, "pool"), "pool")
    client = read_client_policy(reader, reader.mapping(source, "client_policy"), "client_policy")
    if client.client_max_capacity is None:
        client = ClientPolicy(DEFAULT_CLIENT_MAX_CAPACITY, client.client_message_age_limit_ms)
    listed = source.get("transports")
    if not isinstance(listed, (list, tuple)) or not 1 <= len(listed) <= 64:
        reader.problems.append("transports must be a list of 1 to 64")
        return None
    transports = tuple(read_transport(reader, item) for item in listed if isinstance(item, Mapping))
    if len(transports) != len(listed):
        reader.problems.append("every transport must be an object")
    reader.unique([transport.name for transport in transports], "transport name")
    reader.unique([(t.host, t.port) for t in transports if t.port], "address of a transport")
    return PolicyDocument(
        revision, instance, pool, client, transports,
        read_rules(reader, source.get("rules")),
        read_xap(reader, source.get("xap")),
        read_activemq(reader, source.get("activemq")),
        read_qpid(reader, source.get("qpid")),
        read_access(reader, reader.mapping(source, "access")),
        read_quotas(reader, source.get("quotas")),
        read_destinations(reader, source.get("destinations")),
    )  # fmt: skip
