"""The file `<instance>.kept.json`: everything that is kept for clients that are away, as one JSON object.

    {"version": 2, "crc": 1234, "kept": [{"kind": "durable", "name": …}, {"kind": "managed", "name": …}]}

`crc` is the CRC32C of the list as it stands there, without white space around it: a flipped bit in a position would be a
position still. Version 1, of earlier releases, has none. Releases before it kept durable subscriptions and managed replays
in two files, each {"version": 1} with a list under `durables` or `replays`. They are read when the one file isn't there yet, and renamed when it is on disk.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

import msgspec
from crc32c import crc32c

from broker_core.errors import OperatorError
from broker_core.journal.files import Files, replace_durably, sweep_temporaries
from broker_core.replay.kept import Durable
from broker_core.replay.managed import ManagedReplay

VERSION: Final = 2
UNCHECKED: Final = 1
"""The version without a checksum, and that of the two files before it."""
MIGRATED: Final = ".migrated"
"""What is put behind the name of an earlier release's file when it was taken over."""

Entry = Durable | ManagedReplay
F = TypeVar("F", "_EarlierDurables", "_EarlierReplays")


class Earlier(NamedTuple):
    """Where an earlier release kept the same."""

    durables: Path
    replays: Path


class _Version(msgspec.Struct):
    version: int


class _File(msgspec.Struct):
    version: int
    crc: int
    kept: msgspec.Raw


class _Unchecked(msgspec.Struct):
    version: int
    kept: list[Entry]


class _EarlierDurables(msgspec.Struct):
    durables: list[Durable]


class _EarlierReplays(msgspec.Struct):
    replays: list[ManagedReplay]


def encode(entries: Iterable[Entry]) -> bytes:
    """The file's content."""
    kept = msgspec.json.encode(list(entries))
    return msgspec.json.encode(_File(VERSION, crc32c(kept), msgspec.Raw(kept)))


def load(files: Files, path: Path, earlier: Earlier) -> Sequence[Entry]:
    """What is kept; what an earlier release kept is taken over. Not while anybody writes the file.

    Raises OperatorError bad_kept_positions (bad_durables and bad_replays of the earlier files) when a file is there
    and can't be read; OSError.
    """
    for one in (path, *earlier):
        if one.parent.is_dir():
            sweep_temporaries(files, one)
    kept = _kept(path)
    if kept is None:
        durables = _read(
            earlier.durables, _EarlierDurables, "bad_durables", "no durable subscription is known"
        )
        replays = _read(earlier.replays, _EarlierReplays, "bad_replays", "no managed replay is known")
        if durables is None and replays is None:
            return ()
        kept = [*(durables.durables if durables else ()), *(replays.replays if replays else ())]
        replace_durably(files, path, encode(kept))
    for one in earlier:
        if one.exists():
            files.rename(one, one.with_name(one.name + MIGRATED))
            files.sync_directory(one.parent)
    return kept


def _kept(path: Path) -> list[Entry] | None:
    with _refusing(path, "bad_kept_positions", "nothing is kept of clients that are away"):
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            return None
        if msgspec.json.decode(content, type=_Version).version == UNCHECKED:
            return msgspec.json.decode(content, type=_Unchecked).kept
        found = msgspec.json.decode(content, type=_File)
        if found.version != VERSION:
            raise ValueError(f"version {found.version}")
        if crc32c(found.kept) != found.crc:
            raise ValueError("its checksum doesn't fit")
        return msgspec.json.decode(found.kept, type=list[Entry])


def _read(path: Path, kind: type[F], code: str, without: str) -> F | None:
    """An earlier release's file; None when there is no file."""
    with _refusing(path, code, without):
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            return None
        version = msgspec.json.decode(content, type=_Version).version
        if version != UNCHECKED:
            raise ValueError(f"version {version}")
        return msgspec.json.decode(content, type=kind)


@contextmanager
def _refusing(path: Path, code: str, without: str) -> Iterator[None]:
    try:
        yield
    except ValueError as problem:
        raise OperatorError(
            code, f"{path} can't be read: {problem}.", f"Restore it, or move it away: then {without}."
        ) from problem
