"""`<instance>.leases/`: readers in other processes that need the log from a sequence on, each for a limited time.

A replay holds the log by a pin in the broker's memory. A Spark job has no connection to the broker, may run on another
machine that shares the directory, and outlives a broker's restart; so it leaves a small file, and renews it while it
runs. The broker reads the files when it plans a removal and when it removes. Who writes one and then looks which segments
there are has either been seen by the broker, or sees what it removed.

A file is `<name>.json`: {"owner", "sequence", "expires_at" (ns UTC)}. It is replaced whole; one that can't be read, or has
expired, holds nothing.
"""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any, Final, NamedTuple

import orjson

from broker_core.journal.files import FileSystem, replace_durably
from broker_core.journal.open_segments import Pin
from broker_core.names import is_name

MAX_LEASES: Final = 1_000
MAX_LEASE_BYTES: Final = 4_096
LONGEST_NS: Final = 7 * 86_400 * 1_000_000_000
"""A file that says it expires later than that is taken for a mistake and holds nothing."""

LEFT_NS: Final = 86_400 * 1_000_000_000


class ReaderLease(NamedTuple):
    """Everything from `sequence` on is needed until `expires_at`."""

    owner: str
    sequence: int
    expires_at: int


def leases_path(directory: Path, instance: str) -> Path:
    """The directory of an instance's leases."""
    return directory / f"{instance}.leases"


def write_lease(files: FileSystem, directory: Path, instance: str, name: str, lease: ReaderLease) -> None:
    """Put a lease in place, or renew it. ValueError for a name that can't be a file's; OSError."""
    if not is_name(name):
        raise ValueError(f"{name!r} can't name a lease")
    home = leases_path(directory, instance)
    home.mkdir(exist_ok=True)
    replace_durably(files, home / f"{name}.json", orjson.dumps(lease._asdict()))


def release_lease(directory: Path, instance: str, name: str) -> None:
    """Hold nothing any more; dropping twice is harmless. OSError."""
    home = leases_path(directory, instance)
    (home / f"{name}.json").unlink(missing_ok=True)
    with suppress(OSError):  # another reader's lease stands in it
        home.rmdir()


def remove_expired_leases(directory: Path, instance: str, now_ns: int) -> None:
    """Remove what readers left that were killed, a day after it expired: only MAX_LEASES are read. What can't be removed stays."""
    for path in leases_path(directory, instance).glob("*.json"):
        with suppress(OSError, ValueError):
            if _lease(orjson.loads(path.read_bytes()[:MAX_LEASE_BYTES])).expires_at < now_ns - LEFT_NS:
                path.unlink()


def read_leases(directory: Path, instance: str, now_ns: int) -> list[Pin]:
    """Who needs what now, with the moment until which; by name, MAX_LEASES at most."""
    found: list[Pin] = []
    for path in islice(sorted(leases_path(directory, instance).glob("*.json")), MAX_LEASES):
        try:
            with path.open("rb") as file:
                lease = _lease(orjson.loads(file.read(MAX_LEASE_BYTES)))
        except (OSError, ValueError):
            continue
        if now_ns < lease.expires_at <= now_ns + LONGEST_NS:
            until = datetime.fromtimestamp(lease.expires_at // 1_000_000_000, UTC)
            owner = f"pipeline {lease.owner[:200]} until {until:%Y-%m-%d %H:%M:%S}Z"
            found.append(Pin(owner, lease.sequence, _until_it_expires))
    return found


def _until_it_expires(lease: Pin) -> None:
    """Only its file's owner lets go of it."""


def _lease(told: Any) -> ReaderLease:
    """ValueError when it isn't one."""
    match told:
        case {"owner": str(owner), "sequence": int(sequence), "expires_at": int(expires_at)}:
            return ReaderLease(owner, sequence, expires_at)
    raise ValueError("not a lease")
