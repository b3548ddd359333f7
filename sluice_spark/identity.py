"""Which log this is: the identity that every segment's header holds, so that two logs of one instance name are told apart.

Segments of earlier releases have none.
"""

from __future__ import annotations

from broker_core.errors import JournalError
from broker_core.journal.reader import Source, read_header


def log_of(source: Source) -> str | None:
    """The identity in a segment's header as text; None in one of an earlier release. JournalError journal_damaged."""
    found = read_header(source).log
    return str(found) if found is not None else None


def check_log(source: Source, expected: str | None) -> None:
    """JournalError other_log when a segment belongs to another log than the one that was planned."""
    if expected is None:
        return
    found = log_of(source)
    if found is not None and found != expected:
        raise JournalError(
            "other_log",
            f"{source.file.path.name} belongs to the log {found}, and this is the log {expected}.",
            "Somebody put files of two logs together. Move those of one of them away.",
            file=source.file.path.name,
            found=found,
            expected=expected,
        )
