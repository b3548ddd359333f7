"""Whether a session still holds: since its login, and since somebody last did something in it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.conf import settings

from console.access import last_used

LOGIN_AT = "login_at"
"""Where a session keeps the second of its login."""
ASKED_BY_PAGES = frozenset(
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
"""Names of addresses that open pages ask by themselves, every few seconds."""


def start_session(session: Any, now: float) -> None:
    """Somebody has logged in."""
    session[LOGIN_AT] = now


def is_session_valid(values: Mapping[str, Any], session_key: str, now: float) -> bool:
    """Whether a login is neither too old nor too long unused. `values` are the session's, `now` is seconds since 1970."""
    login_at, idle_s = float(values.get(LOGIN_AT, 0)), settings.SLUICE_SESSION_IDLE_MINUTES * 60
    if now - login_at > settings.SESSION_COOKIE_AGE:
        return False
    return not idle_s or not last_used.is_session_idle(session_key, login_at, now, idle_s)


def record_use(session: Any, now: float) -> None:
    """Somebody did something in it."""
    idle_s = settings.SLUICE_SESSION_IDLE_MINUTES * 60
    if idle_s and session.session_key is not None:
        last_used.record_session_use(session.session_key, now, idle_s)


def is_user_activity(method: str, path: str, url_name: str) -> bool:
    """Whether a request is somebody's doing: not one that an open page makes by itself, nor what its scripts read."""
    reads = method in ("GET", "HEAD", "OPTIONS")
    return not (reads and (url_name in ASKED_BY_PAGES or path.startswith("/api/")))
