"""Settings for slow clients, instance-wide and per transport, with the words and defaults of seed 000."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from broker_core.config.reading import Reader


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


def read_pool(reader: Reader, source: Mapping[str, Any], where: str) -> PoolSettings:
    """A pool's settings."""
    reader.only(source, tuple(PoolSettings.__dataclass_fields__), where)
    path = source.get("message_disk_path")
    if path is not None and (not isinstance(path, str) or not path.startswith("/")):
        reader.problems.append(f"{where}: message_disk_path must be an absolute path")
    return PoolSettings(
        reader.number(source, "message_memory_limit", where, 1, 2**62),
        reader.number(source, "message_disk_limit", where, 1, 2**62),
        path,
    )


def read_client_policy(reader: Reader, source: Mapping[str, Any], where: str) -> ClientPolicy:
    """What one client may use."""
    reader.only(source, tuple(ClientPolicy.__dataclass_fields__), where)
    return ClientPolicy(
        reader.number(source, "client_max_capacity", where, 1, 100),
        reader.number(source, "client_message_age_limit_ms", where, 1, 2**53),
    )
