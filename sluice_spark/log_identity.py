"""The identity of a log, from a segment's header. It distinguishes two logs of one instance name."""

from __future__ import annotations

from broker_core.errors import JournalError
from broker_core.journal.segment_reader import SegmentSource, read_header


def read_log_id(source: SegmentSource) -> str:
    """Return the log identity in a segment's header as text. Raises JournalError journal_damaged."""
    return str(read_header(source).log)


def check_log(source: SegmentSource, expected: str) -> None:
    """Check that a segment belongs to the expected log. Raises JournalError other_log."""
    found = read_log_id(source)
    if found != expected:
        raise JournalError(
            "other_log",
            f"{source.file.path.name} belongs to the log {found}, and this is the log {expected}.",
            "Somebody put files of two logs together. Move those of one of them away.",
            file=source.file.path.name,
            found=found,
            expected=expected,
        )
