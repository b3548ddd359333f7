"""Response to a login that must wait: the login page, or a problem document from the API."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import render

from broker_core.error_codes import error_code_entry
from console.access.login_limit import LOCK_FIX, LOCK_S, LOCKED_NAME
from console.forms.login import LoginForm

FROM_HERE = "Too many logins from this address have failed. Try again later."
"""Sentence for an address with too many failed logins."""


class _LockedOutForm(LoginForm):
    """Login form that shows one sentence and does not validate the password."""

    sentence = ""

    def non_field_errors(self) -> Any:
        """Return the sentence as the only error."""
        return self.error_class([self.sentence])


def locked_out_response(
    request: HttpRequest, response: HttpResponse | None, credentials: Any
) -> HttpResponse:
    """Return the 429 response for a locked user name, with Retry-After (hook of django-axes)."""
    return refused_response(request, "locked", LOCKED_NAME, LOCK_S)


def refused_response(request: HttpRequest, code: str, sentence: str, wait_s: int) -> HttpResponse:
    """Return a refusal with the code's status, as the login page or as a problem document."""
    status = error_code_entry(code).http_status
    made: HttpResponse
    if request.path.startswith("/api/"):
        body = {
            "type": f"urn:sluice:problem:{code}",
            "title": status.phrase,
            "status": status,
            "detail": sentence,
            "code": code,
            "fix": LOCK_FIX if code == "locked" else "",
            "details": {},
        }
        made = JsonResponse(body, status=status, content_type="application/problem+json")
    else:
        form = _LockedOutForm(request)
        form.sentence = sentence
        made = render(
            request, "login.html", {"form": form, "next": request.POST.get("next", "")}, status=status
        )
    made["Retry-After"] = str(wait_s)
    return made
