"""The login form."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.forms import AuthenticationForm


class LoginForm(AuthenticationForm):
    """Login form with user name and password."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for field in self.fields.values():
            field.widget.attrs["class"] = "form-control"
