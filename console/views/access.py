"""Logging in and out. Django's views; axes counts failures and locks out in their authentication."""

from __future__ import annotations

from django.contrib.auth.views import LoginView, LogoutView

from console.access.rights import Open
from console.forms.login import LoginForm
from console.views.common import permitted

login = permitted(Open.EVERYONE)(
    LoginView.as_view(
        template_name="login.html", authentication_form=LoginForm, redirect_authenticated_user=True
    )
)
logout = permitted(Open.OWN_ACCOUNT)(LogoutView.as_view())
