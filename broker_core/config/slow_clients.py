"""Settings for slow clients, instance-wide and per transport, with the words and defaults of seed 000."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from broker_core.config.preset_fields import AMPS_CLIENT, AMPS_POOL, read_settings
from broker_core.config.reading import Reader


@dataclass(frozen=True, slots=True)
class PoolSettings:
    """A shared budget: settings of `preset_fields.AMPS`. None means: the instance's value, and there AMPS's default."""

    message_memory_limit: int | None = None
    message_disk_limit: int | None = None
    message_disk_path: str | None = None


@dataclass(frozen=True, slots=True)
class ClientPolicy:
    """What one client may use: settings of `preset_fields.AMPS`. None means: the instance's value."""

    client_max_capacity: int | None = None
    client_message_age_limit_ms: int | None = None


def read_pool(reader: Reader, source: Mapping[str, Any], where: str) -> PoolSettings:
    """A pool's settings."""
    reader.only(source, tuple(AMPS_POOL), where)
    return PoolSettings(**read_settings(reader, AMPS_POOL, source, where))


def read_client_policy(reader: Reader, source: Mapping[str, Any], where: str) -> ClientPolicy:
    """What one client may use."""
    reader.only(source, tuple(AMPS_CLIENT), where)
    return ClientPolicy(**read_settings(reader, AMPS_CLIENT, source, where))
