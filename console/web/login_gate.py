"""Stands before every address that takes a password or a code: logins are limited for each address across all names."""

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
"""Names of the addresses at which a password or a code can be guessed."""


class LoginGateMiddleware:
    """Refuses a login from an address at which too many have failed, before anything is hashed or written for it."""

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
        """Let the request through, or answer 429."""
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
        """Answer a locked name with 429, and a form that found too many passwords being hashed with 503."""
        if not (isinstance(problem, OperatorError) and problem.code in ("locked", "login_busy")):
            return None
        if problem.code == "locked":
            return lockout.refused_response(request, problem.code, problem.sentence, LOCK_S)
        wait_ms = error_code_entry(problem.code).retry_after_ms or 0
        return lockout.refused_response(
            request, problem.code, f"{problem.sentence} {problem.fix}", math.ceil(wait_ms / 1000)
        )


class PasswordBackend(ModelBackend):
    """Django's accounts and passwords; hashing takes turns. Raises OperatorError login_busy."""

    def authenticate(
        self,
        request: HttpRequest | None,
        username: str | None = None,
        password: str | None = None,
        **more: Any,
    ) -> Any:
        """The account whose password it is, or None."""
        with hashing_slot():
            return super().authenticate(request, username=username, password=password, **more)
