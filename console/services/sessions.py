"""Validity of console sessions: maximum age since the login, maximum time without activity of the user."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.conf import settings
from django.contrib.auth import SESSION_KEY
from django.contrib.sessions.backends.db import SessionStore
from django.contrib.sessions.models import Session

from console.access import last_used

LOGIN_AT = "login_at"
"""Session key under which the time of the login is stored, in seconds since 1970."""
MAX_ROWS = 500
"""Maximum sessions that one statement deletes."""
POLLED_BY_PAGES = frozenset(
    {
        "client_slow",
        "drafts_backtest_runs",
        "policies_in_force",
        "replays_list",
        "replication_now",
        "runs_list",
        "standing",
        "overview_verdict",
        "overview_heat",
    }
)
"""URL names that open pages request automatically every few seconds. They don't count as user activity."""


def start_session(session: Any, now: float) -> None:
    """Store the time of the login in the session."""
    session[LOGIN_AT] = now


def is_session_valid(values: Mapping[str, Any], session_key: str, now: float) -> bool:
    """Whether a session is neither older than the cookie's age nor idle for longer than the limit.

    Args:
        values: Data of the session.
        session_key: Key of the session.
        now: Seconds since 1970.
    """
    login_at, idle_s = float(values.get(LOGIN_AT, 0)), settings.SLUICE_SESSION_IDLE_MINUTES * 60
    if now - login_at > settings.SESSION_COOKIE_AGE:
        return False
    return not idle_s or not last_used.is_session_idle(session_key, login_at, now, idle_s)


def record_use(session: Any, now: float) -> None:
    """Record that the user did something in the session. `now` is in seconds since 1970."""
    idle_s = settings.SLUICE_SESSION_IDLE_MINUTES * 60
    if idle_s and session.session_key is not None:
        last_used.record_session_use(session.session_key, now, idle_s)


def end_sessions(user_id: int) -> None:
    """Delete the sessions of an account.

    The table has no column with the account, so all rows are read.
    """
    store = SessionStore()
    rows = Session.objects.values_list("session_key", "session_data").iterator()
    ended = [key for key, data in rows if store.decode(data).get(SESSION_KEY) == str(user_id)]
    for first in range(0, len(ended), MAX_ROWS):
        Session.objects.filter(session_key__in=ended[first : first + MAX_ROWS]).delete()


def is_user_activity(method: str, path: str, url_name: str) -> bool:
    """Whether the user caused a request.

    Refreshes by an open page and reads of the API by its scripts don't count.
    """
    reads = method in ("GET", "HEAD", "OPTIONS")
    return not (reads and (url_name in POLLED_BY_PAGES or path.startswith("/api/")))
