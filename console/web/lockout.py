"""What somebody is told who has to wait before a login is looked at: on the page, or as a problem by the API."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import render

from broker_core.error_codes import error_code_entry
from console.access.login_limit import LOCK_FIX, LOCK_S, LOCKED_NAME
from console.forms.login import LoginForm

FROM_HERE = "Too many logins from this address have failed. Try again a little later."


class _LockedOutForm(LoginForm):
    """The login form with a sentence, without asking for the password again."""

    sentence = ""

    def non_field_errors(self) -> Any:
        """The sentence alone."""
        return self.error_class([self.sentence])


def locked_out_response(
    request: HttpRequest, response: HttpResponse | None, credentials: Any
) -> HttpResponse:
    """What django-axes answers when a name is locked: 429, with when to try again."""
    return refused_response(request, "locked", LOCKED_NAME, LOCK_S)


def refused_response(request: HttpRequest, code: str, sentence: str, wait_s: int) -> HttpResponse:
    """The answer with this code's status, on the login page or as a problem."""
    status = error_code_entry(code).http_status
    made: HttpResponse
    if request.path.startswith("/api/"):
        body = {
            "type": f"urn:sluice:problem:{code}", "title": status.phrase, "status": status, "detail": sentence,
            "code": code, "fix": LOCK_FIX if code == "locked" else "", "details": {},
        }  # fmt: skip
        made = JsonResponse(body, status=status, content_type="application/problem+json")
    else:
        form = _LockedOutForm(request)
        form.sentence = sentence
        made = render(
            request, "login.html", {"form": form, "next": request.POST.get("next", "")}, status=status
        )
    made["Retry-After"] = str(wait_s)
    return made
