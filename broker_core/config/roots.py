"""Roots: the directories under which a policy may have the broker write. They come from the environment, not from a policy, so
that whoever may edit policies can't point the service at any place of the machine."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from broker_core.config.document import PolicyDocument
from broker_core.errors import OperatorError


def outside_roots(policy: PolicyDocument, roots: Sequence[Path]) -> list[str]:
    """Which of a policy's directories lie under none of the roots, a sentence each. Links are followed."""
    allowed = [root.resolve() for root in roots]
    return [
        f"{setting}: {path} isn't under {', '.join(map(str, roots))} (SLUICE_DIRECTORY_ROOTS)"
        for setting, path in _directories(policy)
        if not any(Path(path).resolve().is_relative_to(root) for root in allowed)
    ]


def refuse_outside(policy: PolicyDocument, roots: Sequence[Path]) -> None:
    """Raises OperatorError outside_roots."""
    if problems := outside_roots(policy, roots):
        raise OperatorError(
            "outside_roots",
            f"The policy names directories that it may not: {'; '.join(problems)}.",
            "Name one below a root, or add a root to SLUICE_DIRECTORY_ROOTS and restart.",
            problems=problems,
        )


def _directories(policy: PolicyDocument) -> Iterator[tuple[str, str]]:
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
    yield from ((setting, path) for setting, path in named if path is not None)
