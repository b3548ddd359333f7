"""What somebody is told whose name is locked after wrong passwords: on the login page, or as a problem by the API."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import render

from broker_core.error_codes import CODES
from console.forms.login import LoginForm

WAIT_S = int(settings.AXES_COOLOFF_TIME * 3600)
_STATUS = CODES["locked"].http_status
SENTENCE = f"Too many wrong passwords for this name. Try again in {WAIT_S // 60} minutes."


class LockedForm(LoginForm):
    """The login form with that sentence, without asking for the password again."""

    def non_field_errors(self) -> Any:
        """The sentence alone."""
        return self.error_class([SENTENCE])


def answer(request: HttpRequest, response: HttpResponse | None, credentials: Any) -> HttpResponse:
    """429, with when to try again."""
    made: HttpResponse
    if request.path.startswith("/api/"):
        body = {
            "type": "urn:sluice:problem:locked", "title": _STATUS.phrase, "status": _STATUS, "detail": SENTENCE,
            "code": "locked", "fix": "Wait, or ask another operator for `manage.py axes_reset`.", "details": {},
        }  # fmt: skip
        made = JsonResponse(body, status=_STATUS, content_type="application/problem+json")
    else:
        made = render(
            request,
            "login.html",
            {"form": LockedForm(request), "next": request.POST.get("next", "")},
            status=_STATUS,
        )
    made["Retry-After"] = str(WAIT_S)
    return made
