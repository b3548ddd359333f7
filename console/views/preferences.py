"""Page of settings: the operator's preferences, and the installation's settings from the environment
(read-only).
"""

from __future__ import annotations

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.views.decorators.http import require_GET, require_POST

from console.access.rights import PublicAccess
from console.forms.preferences import PreferencesForm
from console.queries import environment
from console.services import audit
from console.services import preferences as service
from console.views import common

FIELDS = tuple(PreferencesForm.base_fields)
"""Names of the preferences."""


@common.requires_permission(PublicAccess.OWN_ACCOUNT)
@require_GET
def settings(request: HttpRequest) -> HttpResponse:
    """Show the operator's preferences and the installation's settings."""
    stored = service.preferences_of(request.user.pk)
    return _show(request, PreferencesForm(initial={name: getattr(stored, name) for name in FIELDS}))


@common.requires_permission(PublicAccess.OWN_ACCOUNT)
@require_POST
def save(request: HttpRequest) -> HttpResponse:
    """Store the operator's preferences."""
    audit.mark_read_only(request)
    form = PreferencesForm(request.POST)
    if not form.is_valid():
        return _show(request, form, 422)
    service.save(common.actor_of(request), form.cleaned_data)
    messages.success(request, "Saved. The preferences apply in every browser in which you log in.")
    return redirect("settings")


def _show(request: HttpRequest, form: PreferencesForm, status: int = 200) -> HttpResponse:
    shown = environment.environment_settings() if common.allowed_permissions(request)["view"] else []
    return common.page(request, "settings.html", {"form": form, "installation": shown}, status)
