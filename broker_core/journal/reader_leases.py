"""Directory `<instance>.leases/`: readers in other processes that pin the log for a limited time.

A replay pins the log in the broker's memory. A Spark job has no connection to the broker, may run on another
machine that shares the directory, and outlives a restart of the broker. So it writes a small file, and renews
it while it runs. The broker reads the files when it plans a removal, and again once the
removal's receipt is durable. A reader writes its lease first, and then reads segments and receipts: either
the broker has read the lease and keeps the segments, or the reader sees the receipt and waits for the
removal to end.

A file is `<name>.json`: {"owner", "sequence", "expires_at" (ns UTC)}. It is replaced as a whole. An
unreadable or expired file pins nothing.
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
"""Maximum number of leases that are read."""
MAX_LEASE_BYTES: Final = 4_096
"""Maximum bytes read of a lease's file."""
LONGEST_NS: Final = 7 * 86_400 * 1_000_000_000
"""Longest accepted time to the expiry, ns (7 days). A later expiry counts as a mistake, and pins nothing."""

EXPIRED_RETENTION_NS: Final = 86_400 * 1_000_000_000
"""Time in ns after which an expired lease is removed: a day."""


class ReaderLease(NamedTuple):
    """Lease of one reader: it needs the log from `sequence` on until `expires_at` (ns UTC)."""

    owner: str
    sequence: int
    expires_at: int


def leases_path(directory: Path, instance: str) -> Path:
    """Return the directory of an instance's leases."""
    return directory / f"{instance}.leases"


def write_lease(files: FileSystem, directory: Path, instance: str, name: str, lease: ReaderLease) -> None:
    """Write or renew a lease. Raises ValueError for a name that can't be a file name; OSError."""
    if not is_name(name):
        raise ValueError(f"{name!r} can't name a lease")
    home = leases_path(directory, instance)
    home.mkdir(exist_ok=True)
    replace_durably(files, home / f"{name}.json", orjson.dumps(lease._asdict()))


def release_lease(directory: Path, instance: str, name: str) -> None:
    """Remove a lease. A second call has no effect. Raises OSError."""
    home = leases_path(directory, instance)
    (home / f"{name}.json").unlink(missing_ok=True)
    with suppress(OSError):  # fails while another reader's lease is in it
        home.rmdir()


def remove_expired_leases(directory: Path, instance: str, now_ns: int) -> None:
    """Remove the leases of killed readers a day after they expired, because only MAX_LEASES are read.

    Files that can't be removed stay.
    """
    for path in leases_path(directory, instance).glob("*.json"):
        with suppress(OSError, ValueError):
            if (
                _parse_lease(orjson.loads(path.read_bytes()[:MAX_LEASE_BYTES])).expires_at
                < now_ns - EXPIRED_RETENTION_NS
            ):
                path.unlink()


def read_leases(directory: Path, instance: str, now_ns: int) -> list[Pin]:
    """Return the valid leases as pins, by name, at most MAX_LEASES. Their owner names the expiry."""
    found: list[Pin] = []
    for path in islice(sorted(leases_path(directory, instance).glob("*.json")), MAX_LEASES):
        try:
            with path.open("rb") as file:
                lease = _parse_lease(orjson.loads(file.read(MAX_LEASE_BYTES)))
        except (OSError, ValueError):
            continue
        if now_ns < lease.expires_at <= now_ns + LONGEST_NS:
            until = datetime.fromtimestamp(lease.expires_at // 1_000_000_000, UTC)
            owner = f"pipeline {lease.owner[:200]} until {until:%Y-%m-%d %H:%M:%S}Z"
            found.append(Pin(owner, lease.sequence, _until_it_expires))
    return found


def _until_it_expires(lease: Pin) -> None:
    """Do nothing: only the reader that wrote the file removes it."""


def _parse_lease(document: Any) -> ReaderLease:
    """Parse a lease. Raises ValueError when it isn't one."""
    match document:
        case {"owner": str(owner), "sequence": int(sequence), "expires_at": int(expires_at)}:
            return ReaderLease(owner, sequence, expires_at)
    raise ValueError("not a lease")
