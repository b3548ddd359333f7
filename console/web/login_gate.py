"""Limit on failed logins per address, across all user names, for every address that accepts a password or
code.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

from django.contrib.auth.backends import ModelBackend
from django.http import HttpRequest, HttpResponse

from broker_core.error_codes import error_code_entry
from broker_core.errors import OperatorError
from console.access.login_limit import LIMIT, LOCK_S, hashing_slot
from console.services import audit
from console.web import lockout
from console.web.client_address import address_of

GUESSABLE = frozenset(
    {
        "access_grant",
        "access_open",
        "access_password",
        "access_second_factor",
        "access_token",
        "login",
        "second_factor",
        "account_password",
        "account_totp_begin",
        "account_totp_confirm",
        "account_totp_remove",
        "v1:login",
        "v1:person",
        "v1:person-grants",
        "v1:person-password",
        "v1:tokens",
    }
)
"""URL names at which a password or code can be guessed."""


class LoginGateMiddleware:
    """Middleware that refuses logins from an address with too many failures.

    It acts before a password is hashed or anything is written.
    """

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        response = self.get_response(request)
        if getattr(request, "sluice_login_failed", False):
            LIMIT.record_failure(address_of(request), time.time())
        return response

    def process_view(
        self, request: HttpRequest, view: Callable[..., Any], args: Any, kwargs: Any
    ) -> HttpResponse | None:
        """Return a 429 response, or None to let the request pass."""
        match, now = request.resolver_match, time.time()
        if request.method not in ("POST", "PATCH") or match is None or match.view_name not in GUESSABLE:
            return None
        wait_s = LIMIT.wait_s(address_of(request), now)
        if wait_s <= 0:
            return None
        if not LIMIT.should_report(address_of(request), now):
            audit.mark_audited_elsewhere(request)
        return lockout.refused_response(request, "locked", lockout.FROM_HERE, math.ceil(wait_s))

    def process_exception(self, request: HttpRequest, problem: Exception) -> HttpResponse | None:
        """Return 429 for a locked name and 503 if too many passwords are being hashed; None for other
        errors.
        """
        if not (isinstance(problem, OperatorError) and problem.code in ("locked", "login_busy")):
            return None
        if problem.code == "locked":
            return lockout.refused_response(request, problem.code, problem.sentence, LOCK_S)
        wait_ms = error_code_entry(problem.code).retry_after_ms or 0
        return lockout.refused_response(
            request, problem.code, f"{problem.sentence} {problem.fix}", math.ceil(wait_ms / 1000)
        )


class PasswordBackend(ModelBackend):
    """Authentication by Django's accounts and passwords, with a hashing slot.

    Raises OperatorError `login_busy`.
    """

    def authenticate(
        self,
        request: HttpRequest | None,
        username: str | None = None,
        password: str | None = None,
        **more: Any,
    ) -> Any:
        """Return the account with this name and password, or None."""
        with hashing_slot():
            return super().authenticate(request, username=username, password=password, **more)
