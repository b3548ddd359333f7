"""The file `<instance>.kept.json`: everything that is kept for clients that are away, as one JSON object.

    {"version": 2, "crc": 1234, "kept": [{"kind": "durable", "name": …}, {"kind": "managed", "name": …}]}

`emptied` is there when shared subscriptions were deleted: {"crc": 5678, "upto": {"queue.x": 17}}, how far the log was then.
A group's member adds `taken` in the same form: up to which record of the log the file says what was told there.
One that can't be believed counts as none: then the journal is read from its beginning, and what is known already changes nothing.

`crc` is the CRC32C of the list as it stands there, without white space around it: a flipped bit in a position would be a
position still.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, TypeVar

import msgspec
import structlog

from broker_core.checksum import crc32c
from broker_core.errors import OperatorError
from broker_core.journal.files import FileSystem, remove_temporaries
from broker_core.replay.kept import Durable, ManagedReplay

log = structlog.get_logger("sluice.kept")
VERSION: Final = 2

Entry = Durable | ManagedReplay
T = TypeVar("T")
_MISSING: Final = msgspec.Raw(b"null")


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


def load(files: FileSystem, path: Path) -> Sequence[Entry]:
    """Read what is kept, and remove temporary files. Not while anybody writes the file.

    Raises OperatorError bad_kept_positions when the file is there and can't be read; OSError.
    """
    if path.parent.is_dir():
        remove_temporaries(files, path)
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return ()
    try:
        found = msgspec.json.decode(content, type=dict[str, msgspec.Raw])
        version, crc = (msgspec.json.decode(found.get(name, _MISSING)) for name in ("version", "crc"))
        kept = found.get("kept", _MISSING)
        if version != VERSION:
            raise ValueError(f"version {version}")
        if crc != crc32c(kept):
            raise ValueError("its checksum doesn't fit")
        return msgspec.json.decode(kept, type=list[Entry])
    except ValueError as problem:
        raise OperatorError(
            "bad_kept_positions",
            f"{path} can't be read: {problem}.",
            "Restore it, or move it away: then nothing is kept of clients that are away.",
        ) from problem


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
