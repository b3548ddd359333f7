"""Instance that a request is about: the one it names, else its session's, else this installation's own.

Permission checks and queries both ask `instance_name`, so a response never describes another instance than
the one whose permission was checked.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

from django.conf import settings

KEY = "instance"
"""Session key of the selected instance."""


class Session(Protocol):
    """Interface of Django's session that this module needs. The session is loaded only when it is read."""

    def get(self, key: str, default: Any, /) -> Any: ...


_session: ContextVar[Session | None] = ContextVar("session", default=None)
_requested: ContextVar[str] = ContextVar("requested", default="")
"""Instance that an API request names with `?instance=`; "" without the parameter."""


def instance_name() -> str:
    """Return the instance of the current request; outside requests the installation's own."""
    if requested := _requested.get():
        return requested
    session = _session.get()
    return instance_chosen_in(session) if session is not None else str(settings.SLUICE_INSTANCE)


def instance_chosen_in(session: Session) -> str:
    """Return the instance selected in a session, else the installation's own."""
    return str(session.get(KEY, "") or settings.SLUICE_INSTANCE)


@contextmanager
def use_instance_of(session: Session) -> Iterator[None]:
    """Use a session's instance for the duration of its request (context manager)."""
    before = _session.set(session)
    try:
        yield
    finally:
        _session.reset(before)


@contextmanager
def use_instance(name: str) -> Iterator[None]:
    """Use the named instance for the duration of a request (context manager). "" changes nothing."""
    token = _requested.set(name or _requested.get())
    try:
        yield
    finally:
        _requested.reset(token)
