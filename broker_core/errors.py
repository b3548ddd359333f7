"""Error classes: every failure has a stable code, a sentence, and advice.

    SluiceError
    ├── ClientError      the peer's fault: bad frames, filters or bookmarks; or an action against the peer
    ├── OperatorError    configuration, or an operator's request that cannot be carried out
    └── JournalError     the broker's own failure: the disk or the log

All codes are in `error_codes`; texts may change.

Raising an unknown code is a programming error. The error is raised with that code nevertheless, because a
broker must not fail over the name of a failure. Python issues UnknownErrorCodeWarning once per source line.
The tests turn the warning into an error, and search the source for unknown codes. Errors from a peer may have
any code, because a newer broker may know more: use `from_dict` for them.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any, Self

from broker_core.error_codes import CODES


class UnknownErrorCodeWarning(UserWarning):
    """Warning about an error with a code that is not in the table."""


def describe_exception(problem: BaseException) -> str:
    """Return an exception's text without a full stop; for one without a text, words for its class."""
    text = str(problem).rstrip(".")
    if text:
        return text
    return "no answer in time" if isinstance(problem, TimeoutError) else type(problem).__name__


class SluiceError(Exception):
    """Base class of all errors of Sluice.

    Attributes:
        code: Stable code from `error_codes`.
        sentence: Explanation for people.
        fix: Advice for people; "" without any.
        details: Further values, as JSON.
    """

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
        """Return an error that another process or broker reported. Its code may be unknown here."""
        error = cls.__new__(cls)
        Exception.__init__(error, f"{code}: {sentence}")
        error.code, error.sentence, error.fix, error.details = code, sentence, fix, dict(details or {})
        return error

    def __reduce__(self) -> tuple[Any, ...]:
        # Errors are pickled between processes (Spark workers, Celery). The default would lose the details.
        return (_received, (type(self), self.code, self.sentence, self.fix, self.details))

    def as_dict(self) -> dict[str, Any]:
        """Return the error as clients and the console receive it: code, message, fix and details."""
        return {"code": self.code, "message": self.sentence, "fix": self.fix, "details": self.details}


def _received(
    kind: type[SluiceError], code: str, sentence: str, fix: str, details: dict[str, Any]
) -> SluiceError:
    # A module function, because Twisted changes how bound methods are pickled and fails for class methods.
    return kind.from_dict(code, sentence, fix, details)


class ClientError(SluiceError):
    """Error of a peer: it sent an invalid request, or a policy or an operator acted on it."""


class OperatorError(SluiceError):
    """Error of configuration, or of an operator's request that cannot be carried out."""


class JournalError(SluiceError):
    """Error of the transaction log: a full disk, damage, or missing records."""
