"""The error tree: every failure has a stable code, a sentence, and what to do.

    SluiceError
    ├── ClientError      the peer's fault: bad frames, filters, bookmarks; or it was acted on
    ├── OperatorError    configuration or an operator's request that can't be carried out
    └── JournalError     ours: the disk, the log

Codes are stable words, all of them in `error_codes`; texts may change.

A code that isn't there is a programming error. The error is raised all the same, with that code, and Python's warning
UnknownErrorCodeWarning is given once for each place that made one: a broker must not stumble over the name of what went wrong.
The tests make that warning an error, and read the source for codes that no test meets. What a peer said is another
matter: a newer broker may know more codes, so `received` takes any.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any, Self

from broker_core.error_codes import CODES


class UnknownErrorCodeWarning(UserWarning):
    """An error was made with a code that isn't in the table."""


class SluiceError(Exception):
    """Base of all of Sluice's errors. Constructed with a code, a sentence, what to do, and details that are JSON."""

    def __init__(self, code: str, sentence: str, fix: str = "", **details: Any) -> None:
        super().__init__(f"{code}: {sentence}")
        if code not in CODES:
            warnings.warn(
                f"the error code {code!r} isn't in broker_core/error_codes.py",
                UnknownErrorCodeWarning,
                stacklevel=2,
            )
        self.code = code
        self.sentence = sentence
        self.fix = fix
        self.details = details

    @classmethod
    def from_dict(
        cls, code: str, sentence: str, fix: str = "", details: Mapping[str, Any] | None = None
    ) -> Self:
        """An error as somebody else told it: another process, or a broker that may know more codes than this one."""
        error = cls.__new__(cls)
        Exception.__init__(error, f"{code}: {sentence}")
        error.code, error.sentence, error.fix, error.details = code, sentence, fix, dict(details or {})
        return error

    def __reduce__(self) -> tuple[Any, ...]:
        # Errors cross process borders (Spark workers, Celery); the default would lose the keyword details.
        return (_received, (type(self), self.code, self.sentence, self.fix, self.details))

    def as_dict(self) -> dict[str, Any]:
        """The error as sent to clients and the console: code, message, fix, details."""
        return {"code": self.code, "message": self.sentence, "fix": self.fix, "details": self.details}


def _received(
    kind: type[SluiceError], code: str, sentence: str, fix: str, details: dict[str, Any]
) -> SluiceError:
    # A function, since Twisted replaces how bound methods are pickled, and can't do it with those of classes.
    return kind.from_dict(code, sentence, fix, details)


class ClientError(SluiceError):
    """The peer sent something that can't be done, or was acted on by a policy or an operator."""


class OperatorError(SluiceError):
    """A setting or an operator's request can't be carried out."""


class JournalError(SluiceError):
    """The transaction log can't do what was asked: disk full, damage, or the records are gone."""
