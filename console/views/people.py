"""Page of accounts, grants and tokens, for administrators."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from django.contrib import messages
from django.contrib.auth import get_user_model
from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.cache import never_cache
from django.views.decorators.debug import sensitive_variables
from django.views.decorators.http import require_GET, require_POST

from broker_core.errors import OperatorError, SluiceError
from console.choices import ROLE_PERMISSIONS, PendingChangeKind, Permission, Role
from console.forms.account import ConfirmPasswordForm
from console.forms.people import GrantForm, OwnPasswordMixin, PersonForm, TokenForm
from console.models import ApiToken, Grant
from console.services import operators, proof, second_factor
from console.services import people as service
from console.services.actors import require_user
from console.units.ages import parse_age
from console.views import common, pending_changes

PAGE = 50
"""Accounts per page."""
manages = common.requires_permission(Permission.MANAGE_ACCESS, whole_installation=True)
"""Decorator of views for administrators."""


@manages
@require_GET
def access(request: HttpRequest) -> HttpResponse:
    """Show accounts, their grants, and valid tokens."""
    return _show(request)


@manages
@require_POST
def create(request: HttpRequest) -> HttpResponse:
    """Create an account. The password is shown in this response only."""
    form = PersonForm(request.POST)
    if not form.is_valid():
        return _show(request, {"person_form": form}, 422)
    return _with_secret(
        request, "password", lambda: service.create(common.actor_of(request), form.cleaned_data["username"])
    )


@manages
@require_POST
def password(request: HttpRequest, name: str) -> HttpResponse:
    """Reset an account's password, given the administrator's own."""
    if (
        refused := _unproven(
            request, f"New password for {name}, which ends its sessions and tokens", "access_password", name
        )
    ) is not None:
        return refused
    actor = common.actor_of(request)
    return _with_secret(
        request, "password", lambda: (service.get_person(name), operators.reset_password(name, actor))
    )


@manages
@require_POST
def second_factor_off(request: HttpRequest, name: str) -> HttpResponse:
    """Disable the second factor of an account whose app was lost, given the administrator's own password."""
    if (
        refused := _unproven(request, f"Second factor off for {name}", "access_second_factor", name)
    ) is not None:
        return refused
    return _done(
        request,
        lambda: second_factor.remove(common.actor_of(request), service.get_person(name)),
        f"Logins of {name} no longer require a code.",
    )


@manages
@require_POST
def close(request: HttpRequest, name: str) -> HttpResponse:
    """Add the deactivation of an account to the pending changes."""
    return pending_changes.add_change(request, PendingChangeKind.ACCOUNT_CLOSE, name)


@manages
@require_POST
def reopen(request: HttpRequest, name: str) -> HttpResponse:
    """Reactivate an account with its roles, given the administrator's own password."""
    if (refused := _unproven(request, f"Open the account of {name}", "access_open", name)) is not None:
        return refused
    return _done(
        request,
        lambda: service.set_active(common.actor_of(request), service.get_person(name), True),
        f"{name} can log in again.",
    )


@manages
@require_POST
def grant(request: HttpRequest) -> HttpResponse:
    """Grant an account a role, given the administrator's own password."""
    form = GrantForm(request.POST, auto_id="grant_%s")
    if not _is_proven(request, form):
        return _show(request, {"grant_form": form}, 422)
    fields = dict(form.cleaned_data)
    del fields["own_password"]
    name, role = fields.pop("person"), fields.pop("role")
    return _done(
        request,
        lambda: service.grant(common.actor_of(request), service.get_person(name), role, **fields),
        f"{name} is {Role(role).label.lower()} now.",
    )


@manages
@require_POST
def revoke_grant(request: HttpRequest, grant_id: int) -> HttpResponse:
    """Add the revocation of a grant to the pending changes."""
    get_object_or_404(Grant, pk=grant_id)
    return pending_changes.add_change(request, PendingChangeKind.GRANT_REVOKE, str(grant_id))


@manages
@require_POST
def make_token(request: HttpRequest) -> HttpResponse:
    """Create a token of the administrator's own account, given the password.

    It is shown in this response only.
    """
    form = TokenForm(request.POST, auto_id="token_%s")
    if not _is_proven(request, form):
        return _show(request, {"token_form": form}, 422)
    fields = form.cleaned_data

    def make() -> tuple[Any, str]:
        lifetime = timedelta(seconds=parse_age(fields["lifetime"]))
        return operators.create_token(
            common.actor_of(request),
            require_user(request),
            fields["name"],
            lifetime=lifetime,
            scope=fields["scope"],
            networks=fields["networks"].replace(",", " ").split(),
        )

    return _with_secret(request, "token", make)


@manages
@require_POST
def revoke_token(request: HttpRequest, token_id: int) -> HttpResponse:
    """Add the revocation of a token, of any account, to the pending changes."""
    get_object_or_404(ApiToken, pk=token_id, revoked_at__isnull=True)
    return pending_changes.add_change(request, PendingChangeKind.TOKEN_REVOKE, str(token_id))


def _is_proven(request: HttpRequest, form: OwnPasswordMixin) -> bool:
    """Return whether a form is valid and its password is the sender's own.

    Otherwise the form has an error.
    """
    try:
        if form.is_valid():
            proof.prove_person(request, form.cleaned_data["own_password"])
    except OperatorError as problem:
        common.refuse_field(form, "own_password", problem)
    return form.is_valid()


def _unproven(request: HttpRequest, title: str, address: str, name: str) -> HttpResponse | None:
    """Return a page that asks for the administrator's own password; None if it was given and is right."""
    form = ConfirmPasswordForm(request.POST if "password" in request.POST else None, auto_id="proof_%s")
    problems: list[str] = []
    try:
        if form.is_valid() or not require_user(request).has_usable_password():
            proof.prove_person(request, request.POST.get("password", ""))
            return None
    except OperatorError as problem:
        if problem.code in ("locked", "login_busy"):
            raise
        problems = [f"{problem.sentence} {problem.fix}"]
    context = {"proof_form": form, "proof_title": title, "proof_address": reverse(address, args=[name])}
    return _show(request, {**context, "proof_problems": problems}, 422)


def _done(request: HttpRequest, change: Callable[[], Any], message: str) -> HttpResponse:
    """Carry out a change and show its result."""
    try:
        change()
    except SluiceError as problem:
        common.show_error(request, problem)
    else:
        messages.success(request, message)
    return redirect("access")


@sensitive_variables("secret")
def _with_secret(request: HttpRequest, kind: str, make: Callable[[], tuple[Any, str]]) -> HttpResponse:
    """Show a new secret in this response only. A message would store it in a cookie."""
    try:
        made, secret = make()
    except SluiceError as problem:
        common.show_error(request, problem)
        return redirect("access")
    return _show(request, {"secret": secret, "secret_kind": kind, "secret_of": str(made)})


@never_cache
def _show(request: HttpRequest, more: dict[str, Any] | None = None, status: int = 200) -> HttpResponse:
    """Render the page with empty forms, or those in `more`."""
    everyone = (
        get_user_model().objects.order_by("username").prefetch_related("grants__instance", "totpdevice_set")
    )
    tokens = ApiToken.objects.filter(revoked_at__isnull=True, expires_at__gt=timezone.now()).select_related(
        "user"
    )
    context = {
        "page": Paginator(everyone, PAGE).get_page(request.GET.get("page")),
        "query": "",
        "tokens": tokens[:PAGE],
        "person_form": PersonForm(),
        "grant_form": GrantForm(auto_id="grant_%s"),
        "token_form": TokenForm(auto_id="token_%s"),
        "roles": _roles(),
        **(more or {}),
    }
    return common.page(request, "access.html", context, status)


def _roles() -> list[tuple[str, list[str]]]:
    """Return the permissions of each role, as labels."""
    return [(role.label, [one.label for one in Permission if one in ROLE_PERMISSIONS[role]]) for role in Role]
