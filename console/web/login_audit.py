"""Audit events of logins, logouts and failed logins, on the page and through the API."""

from __future__ import annotations

import time
from typing import Any

from django.contrib.auth.signals import user_logged_in, user_logged_out, user_login_failed
from django.dispatch import receiver

from console.choices import ActorKind, AuditResult
from console.services import audit, sessions
from console.services.actors import Actor


@receiver(user_logged_in, dispatch_uid="audit.login")
def on_logged_in(request: Any, user: Any, **kwargs: Any) -> None:
    """Record a login, and start the session's times."""
    sessions.start_session(request.session, time.time())
    audit.record(_actor(request, user.get_username(), user.pk), "login", f"operator {user.get_username()}")


@receiver(user_logged_out, dispatch_uid="audit.logout")
def on_logged_out(request: Any, user: Any, **kwargs: Any) -> None:
    """Record a logout."""
    if user is not None:
        audit.record(
            _actor(request, user.get_username(), user.pk), "logout", f"operator {user.get_username()}"
        )


@receiver(user_login_failed, dispatch_uid="audit.login_failed")
def on_login_failed(credentials: dict[str, Any], request: Any = None, **kwargs: Any) -> None:
    """Record a failed login: wrong password or code, or a locked name."""
    if request is not None:
        request.sluice_login_failed = True
    name = str(credentials.get("username") or "")
    audit.record(
        _actor(request, name or "nobody", None), "login", f"operator {name}", result=AuditResult.DENIED
    )


def _actor(request: Any, name: str, user_id: int | None) -> Actor:
    source = "" if request is None else str(request.META.get("REMOTE_ADDR") or "")
    return Actor(ActorKind.PERSON, name, user_id, source, str(getattr(request, "request_id", "") or ""))
