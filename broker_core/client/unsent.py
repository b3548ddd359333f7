"""Messages that are lost when a client closes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

from broker_core.errors import OperatorError, SluiceError


class Unsent(NamedTuple):
    """Published messages that no broker has acknowledged and that are lost with this process."""

    messages: int
    nbytes: int

    def raise_if_any(self, client: str) -> None:
        """Raise OperatorError `unsent_messages` if there are any. `client` is the client's name."""
        if self.messages:
            raise OperatorError(
                "unsent_messages",
                f"Client {client} closed while {self.messages} messages ({self.nbytes} bytes) weren't "
                "acknowledged.",
                "Call flush() before closing, allow a longer timeout, or use a FilePublishStore.",
                messages=self.messages,
                bytes=self.nbytes,
            )


NOTHING_UNSENT: Final = Unsent(0, 0)


def is_interruption(error: BaseException | None) -> bool:
    """Return whether a `with` block ends by Ctrl-C, an exit or a cancellation. Closing then does not wait."""
    return error is not None and not isinstance(error, Exception)


@contextmanager
def closing_notes(error: BaseException | None) -> Iterator[None]:
    """Catch errors of closing.

    If the block ended with an error, an error of closing is added to it as a note. Otherwise it is raised.
    """
    try:
        yield
    except (SluiceError, TimeoutError) as problem:
        if error is None:
            raise
        error.add_note(f"While closing: {problem}")
