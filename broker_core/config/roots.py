"""Roots: the directories under which a policy may have the broker write. They come from the environment, not from a policy, so
that whoever may edit policies can't point the service at any place of the machine."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import NamedTuple

from broker_core.config.document import PolicyDocument
from broker_core.errors import OperatorError


class DirectoryDefaults(NamedTuple):
    """Directories of an installation where its policy names none."""

    journal: Path
    archive: Path
    spool: Path


def misplaced_directories(
    policy: PolicyDocument,
    roots: Sequence[Path],
    reserved: Sequence[Path] = (),
    defaults: DirectoryDefaults | None = None,
) -> list[str]:
    """Return a sentence for each directory that a policy may not name.

    A directory lies under a root, overlaps no reserved path, and spools lie apart from segments: neither
    contains the other. Links are followed.
    """
    named = list(_named_directories(policy))
    if unreadable := _unreadable_paths(named):
        return unreadable
    return misplaced_paths(named, roots, reserved) + _mixed(policy, named, defaults)


def misplaced_paths(
    named: Sequence[tuple[str, Path]], roots: Sequence[Path], reserved: Sequence[Path]
) -> list[str]:
    """Return a sentence for each setting whose path is relative, lies under no root, or overlaps a reserved
    path. A relative path would depend on the directory in which a process was started."""
    allowed = [root.resolve() for root in roots]
    relative = [
        f"{setting}: {path} isn't an absolute path" for setting, path in named if not path.is_absolute()
    ]
    if unreadable := _unreadable_paths(named):
        return relative + unreadable
    outside = [
        f"{setting}: {path} isn't under {', '.join(map(str, roots))} (SLUICE_DIRECTORY_ROOTS)"
        for setting, path in named
        if path.is_absolute() and not any(path.resolve().is_relative_to(root) for root in allowed)
    ]
    overlapping = [
        f"{setting}: {path} overlaps {other}, which has another purpose"
        for (setting, path), other in product(named, reserved)
        if overlap(path, other)
    ]
    return relative + outside + overlapping


def overlap(one: Path, other: Path) -> bool:
    """Whether two paths are the same, or one contains the other. Links are followed, and mounts compared."""
    first, second = one.resolve(), other.resolve()
    return _contains(first, second) or _contains(second, first)


def _contains(outer: Path, inner: Path) -> bool:
    """Whether a resolved path is another one or stands above it, also where it is mounted a second time."""
    if inner.is_relative_to(outer):
        return True
    found = _identity(outer)
    return found is not None and any(_identity(one) == found for one in (inner, *inner.parents))


def _identity(path: Path) -> tuple[int, int] | None:
    """Return the device and the inode of a path; None while there is nothing."""
    try:
        there = path.stat()
    except OSError:
        return None
    return there.st_dev, there.st_ino


def _unreadable_paths(named: Sequence[tuple[str, Path]]) -> list[str]:
    """Return a sentence for each setting whose path can't be resolved, such as a circle of links."""
    problems = []
    for setting, path in named:
        try:
            path.resolve()
        except (OSError, RuntimeError, ValueError) as problem:
            problems.append(f"{setting}: {path} can't be followed: {problem}")
    return problems


def refuse_misplaced(
    policy: PolicyDocument,
    roots: Sequence[Path],
    reserved: Sequence[Path] = (),
    defaults: DirectoryDefaults | None = None,
) -> None:
    """Raise OperatorError outside_roots when a policy names a directory that it may not."""
    if problems := misplaced_directories(policy, roots, reserved, defaults):
        raise outside_roots(problems)


def outside_roots(problems: list[str]) -> OperatorError:
    """Return the error for directories that a policy may not name, with a sentence for each."""
    return OperatorError(
        "outside_roots",
        f"The policy names directories that it may not: {'; '.join(problems)}.",
        "Name one of its own below a root, or add a root to SLUICE_DIRECTORY_ROOTS and restart.",
        problems=problems,
    )


def _mixed(
    policy: PolicyDocument, named: Sequence[tuple[str, Path]], defaults: DirectoryDefaults | None
) -> list[str]:
    """Return a sentence where spools and segments, or live and archived segments, would be in one place.

    Only pairs of which the policy names at least one directory: the installation's own are not the policy's
    fault.
    """
    instance = policy.instance
    spools = [(setting, path) for setting, path in named if setting.endswith("message_disk_path")]
    segments = [(setting, path) for setting, path in named if not setting.endswith("message_disk_path")]
    spools_too, segments_too = list(spools), list(segments)
    if defaults is not None:
        spools_too += [("the installation's spool directory", defaults.spool)] * (
            policy.pool.message_disk_path is None
        )
        segments_too += [("the installation's journal directory", defaults.journal)] * (
            instance.journal_directory is None
        )
        segments_too += [("the installation's archive directory", defaults.archive)] * (
            instance.archive_directory is None
        )
    pairs = {*product(spools, segments_too), *product(segments, spools_too)}
    problems = [
        f"{one}: {path} overlaps {another} ({other}): spools and segments lie apart"
        for (one, path), (another, other) in sorted(pairs)
        if (one, path) in spools or (another, other) not in spools
        if overlap(path, other)
    ]
    live, archive = (
        Path(wanted) if wanted is not None else default
        for wanted, default in (
            (instance.journal_directory, defaults and defaults.journal),
            (instance.archive_directory, defaults and defaults.archive),
        )
    )
    if segments and live is not None and archive is not None and live.resolve() == archive.resolve():
        problems.append(f"instance: archive_directory: {archive} is the journal's directory")
    return problems


def _named_directories(policy: PolicyDocument) -> Iterator[tuple[str, Path]]:
    instance = policy.instance
    named: Iterable[tuple[str, str | None]] = (
        ("instance: journal_directory", instance.journal_directory),
        ("instance: archive_directory", instance.archive_directory),
        ("pool: message_disk_path", policy.pool.message_disk_path),
        *(
            (f"transport {one.name!r}: message_disk_path", one.pool.message_disk_path)
            for one in policy.transports
        ),
    )
    yield from ((setting, Path(path)) for setting, path in named if path is not None)
