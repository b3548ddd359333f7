"""The file `<instance>.kept.json`: everything that is kept for clients that are away, as one JSON object.

    {"version": 2, "crc": 1234, "kept": [{"kind": "durable", "name": …}, {"kind": "managed", "name": …}]}

`emptied` is there when shared subscriptions were deleted: {"crc": 5678, "upto": {"queue.x": 17}}, how far the log was then.
A release before it passes it over. So it does `taken`, of a group's member, in the same form: up to which record of the log the file says
what was told there. One that can't be believed counts as none: then the journal is read from its beginning, and what is known already changes nothing.

`crc` is the CRC32C of the list as it stands there, without white space around it: a flipped bit in a position would be a
position still. Version 1, of earlier releases, has none. Releases before it kept durable subscriptions and managed replays
in two files, each {"version": 1} with a list under `durables` or `replays`. They are read when the one file isn't there yet, and renamed when it is on disk.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeVar

import msgspec
import structlog

from broker_core.checksum import crc32c
from broker_core.errors import OperatorError
from broker_core.journal.files import Files, replace_durably, sweep_temporaries
from broker_core.replay.kept import Durable, ManagedReplay

log = structlog.get_logger("sluice.kept")
VERSION: Final = 2
UNCHECKED: Final = 1
"""The version without a checksum, and that of the two files before it."""
MIGRATED: Final = ".migrated"
"""What is put behind the name of an earlier release's file when it was taken over."""

Entry = Durable | ManagedReplay
E = TypeVar("E", bound=Entry)
T = TypeVar("T")
_MISSING: Final = msgspec.Raw(b"null")


class Earlier(NamedTuple):
    """Where an earlier release kept the same."""

    durables: Path
    replays: Path


class _Checked(msgspec.Struct):
    """How far the log was, and the checksum of that as it stands there."""

    crc: int
    upto: msgspec.Raw


def encode(entries: Iterable[Entry], emptied: Mapping[str, int] = MappingProxyType({})) -> bytes:
    """The file's content."""
    return joined(encode_entries(list(entries)), emptied)


def encode_entries(entries: Sequence[Entry]) -> bytes:
    """Some of them, as they stand in the list: with a comma in between."""
    return msgspec.json.encode(entries)[1:-1]


def joined(entries: bytes, emptied: Mapping[str, int], taken: int = 0) -> bytes:
    """The file's content, of all that were encoded. `taken`: up to which record of a group's log it says what that does."""
    kept, upto = b"[%b]" % entries, msgspec.json.encode(dict(emptied))
    said: dict[str, Any] = {"version": VERSION, "crc": crc32c(kept), "kept": msgspec.Raw(kept)}
    if emptied:
        said["emptied"] = _Checked(crc32c(upto), msgspec.Raw(upto))
    if taken:
        upto = msgspec.json.encode(taken)
        said["taken"] = _Checked(crc32c(upto), msgspec.Raw(upto))
    return msgspec.json.encode(said)


def load_upto(path: Path) -> int:
    """Up to which record of a group's log a file says what that does; 0 when it doesn't say, or not for certain. After `load`."""
    try:
        return _checked(path, "taken", int) or 0
    except ValueError as problem:
        log.warning("kept_read_anew", file=str(path), why=str(problem))
        return 0


def load(files: Files, path: Path, earlier: Earlier) -> Sequence[Entry]:
    """What is kept; what an earlier release kept is taken over. Not while anybody writes the file.

    Raises OperatorError bad_kept_positions (bad_durables and bad_replays of the earlier files) when a file is there
    and can't be read; OSError.
    """
    for one in (path, *earlier):
        if one.parent.is_dir():
            sweep_temporaries(files, one)
    without = "nothing is kept of clients that are away"
    found = _read(path, "kept", list[Entry], "bad_kept_positions", without, (UNCHECKED, VERSION))
    if found is None:
        durables = _read(
            earlier.durables, "durables", list[Durable], "bad_durables", "no durable subscription is known"
        )
        replays = _read(
            earlier.replays, "replays", list[ManagedReplay], "bad_replays", "no managed replay is known"
        )
        if durables is None and replays is None:
            return ()
        found = [*(durables or ()), *(replays or ())]
        replace_durably(files, path, encode(found))
    for one in earlier:
        if one.exists():
            files.rename(one, one.with_name(one.name + MIGRATED))
            files.sync_directory(one.parent)
    return found


def load_emptied(path: Path) -> dict[str, int]:
    """Which shared subscriptions were deleted, and how far the log was then. After `load`, and raises what that does."""
    try:
        return _checked(path, "emptied", dict[str, int]) or {}
    except ValueError as problem:
        raise OperatorError(
            "bad_kept_positions",
            f"{path} can't be read: {problem}.",
            "Restore it, or move it away, which forgets what is kept for clients that are away.",
        ) from problem


def _checked(path: Path, field: str, of: type[T]) -> T | None:
    """What the file says under its own checksum; None when it doesn't. ValueError."""
    if not path.exists():
        return None
    found = msgspec.json.decode(path.read_bytes(), type=dict[str, msgspec.Raw]).get(field)
    if found is None:
        return None
    said = msgspec.json.decode(found, type=_Checked)
    if said.crc != crc32c(said.upto):
        raise ValueError(f"the checksum of {field} doesn't fit")
    return msgspec.json.decode(said.upto, type=of)


def _read(
    path: Path, field: str, of: type[list[E]], code: str, without: str, versions: Sequence[int] = (UNCHECKED,)
) -> list[E] | None:
    """What the file has in that field; None when there is no file."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    try:
        found = msgspec.json.decode(content, type=dict[str, msgspec.Raw])
        version, crc = (msgspec.json.decode(found.get(name, _MISSING)) for name in ("version", "crc"))
        kept = found.get(field, _MISSING)
        if version not in versions:
            raise ValueError(f"version {version}")
        if version != UNCHECKED and crc != crc32c(kept):
            raise ValueError("its checksum doesn't fit")
        return msgspec.json.decode(kept, type=of)
    except ValueError as problem:
        raise OperatorError(
            code, f"{path} can't be read: {problem}.", f"Restore it, or move it away: then {without}."
        ) from problem
