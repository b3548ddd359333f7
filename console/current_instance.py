"""The instance that somebody looks at: the one that was chosen in their session, else this installation's own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

from django.conf import settings

KEY = "instance"
"""Where a session has it."""


class Session(Protocol):
    """Django's, as far as it is needed here. It is read when it is asked."""

    def get(self, key: str, default: Any, /) -> Any: ...


_session: ContextVar[Session | None] = ContextVar("session", default=None)


def instance_name() -> str:
    """Of the request that is being answered; elsewhere the installation's own."""
    session = _session.get()
    return instance_chosen_in(session) if session is not None else str(settings.SLUICE_INSTANCE)


def instance_chosen_in(session: Session) -> str:
    """What a session chose."""
    return str(session.get(KEY, "") or settings.SLUICE_INSTANCE)


@contextmanager
def use_instance_of(session: Session) -> Iterator[None]:
    """While a request of that session is answered."""
    before = _session.set(session)
    try:
        yield
    finally:
        _session.reset(before)
