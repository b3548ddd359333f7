"""The error tree: every failure has a stable code, a sentence, and what to do.

    SluiceError
    ├── ClientError      the peer's fault: bad frames, filters, bookmarks; or it was acted on
    ├── OperatorError    configuration or an operator's request that can't be carried out
    └── JournalError     ours: the disk, the log

Codes are stable words; texts may change. The edge maps a code to a close code or an HTTP status in one table.
"""

from __future__ import annotations

from typing import Any


class SluiceError(Exception):
    """Base of all of Sluice's errors. Constructed with a code, a sentence, what to do, and details that are JSON."""

    def __init__(self, code: str, sentence: str, fix: str = "", **details: Any) -> None:
        super().__init__(f"{code}: {sentence}")
        self.code = code
        self.sentence = sentence
        self.fix = fix
        self.details = details

    def __reduce__(self) -> tuple[Any, ...]:
        # Errors cross process borders (Spark workers, Celery); the default would lose the keyword details.
        return (_rebuild, (type(self), self.code, self.sentence, self.fix, self.details))

    def as_dict(self) -> dict[str, Any]:
        """The error as sent to clients and the console: code, message, fix, details."""
        return {"code": self.code, "message": self.sentence, "fix": self.fix, "details": self.details}


def _rebuild(kind: type[SluiceError], code: str, sentence: str, fix: str, details: dict[str, Any]) -> SluiceError:
    return kind(code, sentence, fix, **details)


class ClientError(SluiceError):
    """The peer sent something that can't be done, or was acted on by a policy or an operator."""


class OperatorError(SluiceError):
    """A setting or an operator's request can't be carried out."""


class JournalError(SluiceError):
    """The transaction log can't do what was asked: disk full, damage, or the records are gone."""
