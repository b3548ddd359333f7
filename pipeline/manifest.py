"""Whose records a directory of the lake holds: `_manifest/<instance>.json`.

Two logs may have one instance's name: one that was removed and begun anew, a copy, another machine's. What was written for
one is never taken for the other's, and they are never mixed. The manifest holds the log's identity, and what of the
log the lake doesn't hold, and why.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from broker_core.errors import OperatorError
from pipeline.lake_files import write_whole
from sluice_spark.log import LogSnapshot, other_log_error

FOLDER = "_manifest"
"""Spark and pyarrow ignore names that start with "_"."""


class LakeManifest(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of one log's part of a directory."""

    version: int = 1
    instance: str
    log: str | None
    gaps: list[dict[str, Any]] = []
    first: int = 0
    last: int = 0
    files: int = 0
    records: int = 0


def manifest_path(directory: Path, instance: str) -> Path:
    """Where it stands."""
    return directory / FOLDER / f"{instance}.json"


def read_manifest(directory: Path, instance: str) -> LakeManifest | None:
    """None when there is none. OperatorError lake_damaged."""
    path = manifest_path(directory, instance)
    try:
        return msgspec.json.decode(path.read_bytes(), type=LakeManifest)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise OperatorError(
            "lake_damaged",
            f"{path} can't be read: {error}.",
            "Restore it, or use another lake.",
            file=str(path),
        ) from error


def write_manifest(directory: Path, manifest: LakeManifest) -> None:
    """Put it in place whole. OperatorError lake_unwritable."""
    write_whole(
        manifest_path(directory, manifest.instance),
        msgspec.json.format(msgspec.json.encode(manifest), indent=1),
    )


def claim_directory(directory: Path, log: LogSnapshot, tags: Sequence[str]) -> LakeManifest:
    """Return the manifest of this log's part of a directory, a new one if there is none yet. OperatorError other_log.

    `tags` are those of the files there. A log without records may have no identity, and is refused by nothing.
    """
    instance, identity = log.place.instance, log.place.log
    known = read_manifest(directory, instance)
    if known is not None and known.log is not None:
        if known.log != identity and (identity is not None or log.segments):
            raise other_log_error(
                instance, "this one is", identity, f"the one that the lake holds, {known.log},"
            )
        return known
    foreign = sorted({tag for tag in tags if not (identity or "").startswith(tag)})
    if foreign or (identity is None and log.segments):
        held = f"the one that the lake holds, {foreign[0]}…," if foreign else None
        raise other_log_error(instance, "this one is", identity, held)
    return (
        msgspec.structs.replace(known, log=identity)
        if known
        else LakeManifest(instance=instance, log=identity)
    )
