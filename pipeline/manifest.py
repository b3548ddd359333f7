"""The log of a lake directory: `_manifest/<instance>.json`.

Two logs can have the same instance name: a log that was removed and begun again, a copy, another machine's.
Records of different logs are never mixed. The manifest holds the log's identity, and the gaps of the log in
the lake with their reasons.
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
"""Directory of manifests. Spark and pyarrow ignore names that start with "_"."""


class LakeManifest(msgspec.Struct, frozen=True, kw_only=True):
    """Contents of a directory from one log."""

    version: int = 1
    instance: str
    log: str | None
    gaps: list[dict[str, Any]] = []
    first: int = 0
    last: int = 0
    files: int = 0
    records: int = 0


def manifest_path(directory: Path, instance: str) -> Path:
    """Return the path of an instance's manifest."""
    return directory / FOLDER / f"{instance}.json"


def read_manifest(directory: Path, instance: str) -> LakeManifest | None:
    """Read a manifest; None if there is none. Raises OperatorError lake_damaged."""
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
    """Write a manifest atomically. Raises OperatorError lake_unwritable."""
    write_whole(
        manifest_path(directory, manifest.instance),
        msgspec.json.format(msgspec.json.encode(manifest), indent=1),
    )


def claim_directory(directory: Path, log: LogSnapshot, tags: Sequence[str]) -> LakeManifest:
    """Return the manifest of this log in a directory, a new one if there is none.

    Raises OperatorError other_log.

    `tags` are those of the files there. A log without records may have no identity, and always passes.
    """
    instance, identity = log.location.instance, log.location.log
    known = read_manifest(directory, instance)
    if known is not None and known.log is not None:
        if known.log != identity and (identity is not None or log.segments):
            raise other_log_error(instance, "this one is", identity, f"that of the lake, {known.log},")
        return known
    foreign = sorted({tag for tag in tags if not (identity or "").startswith(tag)})
    if foreign or (identity is None and log.segments):
        lake_log = f"that of the lake, {foreign[0]}…," if foreign else None
        raise other_log_error(instance, "this one is", identity, lake_log)
    return (
        msgspec.structs.replace(known, log=identity)
        if known
        else LakeManifest(instance=instance, log=identity)
    )
