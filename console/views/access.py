"""Logging in and out. Django's views; axes counts failures and locks out in their authentication."""

from __future__ import annotations

from django.contrib.auth.views import LoginView, LogoutView

from console.forms import LoginForm

login = LoginView.as_view(template_name="login.html", authentication_form=LoginForm, redirect_authenticated_user=True)
logout = LogoutView.as_view()
