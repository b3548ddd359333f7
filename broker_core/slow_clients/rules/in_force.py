"""What holds for one connected client and its subscriptions: each setting with its unit and where it comes from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, is_dataclass
from typing import Any, Final, NamedTuple

from broker_core.config.vocabulary import SIGNALS, Unit
from broker_core.slow_clients.rules.rule import PoolLimits
from broker_core.slow_clients.rules.scopes import Effective

_UNITS: Final = {
    "amps": {"message_memory_limit": "bytes", "message_disk_limit": "bytes", "client_max_capacity": "%",
             "client_message_age_limit_ms": "ms"},
    "xap": {"throughput": "bytes/s", "latency": "ms", "retries": "times"},
    "activemq": {"prefetch": "messages", "constant_pending_message_limit_strategy": "messages", "max_slow_count": "times",
                 "max_slow_duration": "ms", "check_period": "ms"},
    "qpid": {"depth": "bytes", "message_age": "ms", "message_count": "messages"},
}  # fmt: skip
_UNITS_OF_OWN: Final = {
    "percent": "%", "hold_ms": "ms", "window_ms": "ms", "check_ms": "ms", "cooldown_ms": "ms", "count": "times", "guard_bytes": "bytes",
}  # fmt: skip


class Setting(NamedTuple):
    """One setting in force."""

    setting: str
    """Its system, or the operator's rule, and its name: `amps.client_max_capacity`, `behind.limit`."""
    value: Any
    """None: there is no such limit."""
    unit: str
    """"" for what has none."""
    origin: str
    """`default`, `instance`, `transport ws`, or the entry of a preset or a rule."""

    def as_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "setting": self.setting,
            "value": _plain(self.value),
            "unit": self.unit,
            "origin": self.origin,
        }


class OfSubscription(NamedTuple):
    """What holds for a subscription besides what holds for its client."""

    subscription: str
    topic: str
    settings: tuple[Setting, ...]


class InForce(NamedTuple):
    """What holds for a client."""

    client: str
    transport: str
    user: str
    pool: str
    revision: int
    """The policy's that it is judged by."""
    settings: tuple[Setting, ...]
    subscriptions: tuple[OfSubscription, ...]

    def as_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "client": self.client, "transport": self.transport, "user": self.user, "pool": self.pool, "revision": self.revision,
            "settings": [one.as_dict() for one in self.settings],
            "subscriptions": [
                {"subscription": one.subscription, "topic": one.topic, "settings": [s.as_dict() for s in one.settings]}
                for one in self.subscriptions
            ],
        }  # fmt: skip


def settings_of(found: Mapping[str, Effective], pool: PoolLimits) -> Iterator[Setting]:
    """Settings with their units. What the policy leaves to the host is said as what it comes to in the client's pool."""
    worked_out = {
        "amps.message_memory_limit": pool.memory, "amps.message_disk_limit": pool.disk, "amps.message_disk_path": pool.disk_path,
    }  # fmt: skip
    for name, (value, origin) in found.items():
        yield Setting(name, worked_out.get(name) if value is None else value, _unit(name, found), origin)


def _unit(name: str, found: Mapping[str, Effective]) -> str:
    group, _, field = name.rpartition(".")
    if group in _UNITS:
        return _UNITS[group].get(field, "")
    if field in ("limit", "clear"):
        signal = found[f"{group}.signal"].value
        return (SIGNALS[signal].unit if signal is not None else Unit.TIMES).value
    return _UNITS_OF_OWN.get(field, "")


def _plain(value: Any) -> Any:
    if isinstance(value, (tuple, list)):
        return [_plain(one) for one in value]
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else value
