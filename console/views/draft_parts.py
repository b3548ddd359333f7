"""Page of one part of a draft: form, saving, deleting."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_http_methods, require_POST

from broker_core.errors import OperatorError, SluiceError
from console.choices import Permission
from console.forms.broker_access import BrokerUserForm, EntitlementForm
from console.forms.destinations import DestinationForm
from console.forms.draft_part import DraftPartForm
from console.forms.limits import DraftLimitsForm, LimitsForm, flatten_settings
from console.forms.presets import ActiveMqForm, QpidForm, QuotaForm, XapForm
from console.forms.rule import RuleForm, rule_signals
from console.forms.transports import DraftTransportForm
from console.models import PolicyDraft
from console.services import draft_parts, drafts
from console.views import common
from console.views.drafts import get_draft, render_draft, version_of

FORMS: Mapping[str, tuple[str, type[DraftPartForm]]] = {
    "xap": ("XAP slow consumers", XapForm),
    "activemq": ("ActiveMQ policyEntry", ActiveMqForm),
    "qpid": ("Qpid consumer", QpidForm),
    "rules": ("Rule", RuleForm),
    "users": ("User", BrokerUserForm),
    "entitlements": ("Entitlement", EntitlementForm),
    "quotas": ("Quota", QuotaForm),
    "destinations": ("Destination", DestinationForm),
}
"""Title and form of each list of a draft."""
NEW = "new"
"""Position in the URL that means a new entry."""


@sensitive_post_parameters("password")
@common.requires_permission(Permission.EDIT_POLICIES)
@require_http_methods(["GET", "POST"])
def entry(request: HttpRequest, draft_id: str, part: str, index: str) -> HttpResponse:
    """Show or save an entry of one of the draft's lists, or a new one."""
    try:
        draft, number = get_draft(int(draft_id)), None if index == NEW else int(index)
        form = _entry_form(request, draft, part, number)
        if request.method == "POST" and form.is_valid():
            return _put(request, draft, part, number, form)
    except SluiceError as problem:
        if request.method == "GET" or problem.code != "bad_policy":
            return redirect_with_error(request, int(draft_id), problem)
        _add(form, problem)
    title, _ = FORMS[part]
    return _show(
        request, draft, form, f"{title}{'' if number is not None else ', new'}", getattr(form, "ladder", None)
    )


@common.requires_permission(Permission.EDIT_POLICIES)
@require_POST
def entry_delete(request: HttpRequest, draft_id: str, part: str, index: str) -> HttpResponse:
    """Delete an entry."""
    return _change_draft(
        request,
        int(draft_id),
        lambda draft: draft_parts.delete_entry(
            common.actor_of(request), draft, part, int(index), version_of(request)
        ),
    )


@common.requires_permission(Permission.EDIT_POLICIES)
@require_http_methods(["GET", "POST"])
def limits(request: HttpRequest, draft_id: int) -> HttpResponse:
    """Show or save the instance's limits and journaled topics."""
    try:
        draft = get_draft(draft_id)
        document = {key: draft.document.get(key) or {} for key in ("instance", "pool", "client_policy")}
        form = DraftLimitsForm(
            request.POST or None, initial={**flatten_settings(document), "expected_version": draft.version}
        )
        if request.method == "POST" and form.is_valid():
            return _save(request, draft, form.changes(), form.cleaned_data["expected_version"])
    except SluiceError as problem:
        if request.method == "GET" or problem.code != "bad_policy":
            return redirect_with_error(request, draft_id, problem)
        _add(form, problem)
    return _show(request, draft, form, "Limits and journaled topics")


@common.requires_permission(Permission.EDIT_POLICIES)
@require_http_methods(["GET", "POST"])
def transport(request: HttpRequest, draft_id: int, name: str) -> HttpResponse:
    """Show or save a transport: address, access, limits."""
    try:
        draft = get_draft(draft_id)
        stored = {} if name == NEW else draft_parts.transport_named(draft, name)
        initial = {
            "enabled": True,
            "host": "127.0.0.1",
            **flatten_settings(stored),
            "expected_version": draft.version,
        }
        form = DraftTransportForm(request.POST or None, initial=initial, new=not stored)
        if request.method == "POST" and form.is_valid():
            new_name = form.cleaned_data["name"]
            if not stored and new_name in {one["name"] for one in draft.document.get("transports") or []}:
                raise OperatorError(
                    "bad_policy", f"The transport {new_name} exists already.", "Choose another name."
                )
            return _save(
                request,
                draft,
                {"transports": {new_name: form.changes()}},
                form.cleaned_data["expected_version"],
            )
    except SluiceError as problem:
        if request.method == "GET" or problem.code != "bad_policy":
            return redirect_with_error(request, draft_id, problem)
        _add(form, problem)
    return _show(request, draft, form, f"Transport {name}" if stored else "New transport")


@common.requires_permission(Permission.EDIT_POLICIES)
@require_POST
def transport_delete(request: HttpRequest, draft_id: int, name: str) -> HttpResponse:
    """Remove a transport from the draft. Publishing the draft closes it.

    The message names the settings that applied to this transport only and are removed too.
    """

    def remove_entry(draft: PolicyDraft) -> str:
        lost = draft_parts.transport_settings(draft.document, name)
        drafts.edit_draft(
            common.actor_of(request),
            draft.pk,
            {"transports": {name: None}},
            expected_version=version_of(request),
        )
        also = f" Settings only for this transport are also removed: {', '.join(lost)}." if lost else ""
        return (
            f"Transport {name} is removed from the draft.{also} The preview names the clients that it"
            " disconnects."
        )

    return _change_draft(request, draft_id, remove_entry)


def _entry_form(request: HttpRequest, draft: PolicyDraft, part: str, number: int | None) -> DraftPartForm:
    """Return the form of an entry; `number` None means a new one. Secrets are not initial values."""
    stored = {} if number is None else draft_parts.entry_at(draft, part, number)
    values = {key: value for key, value in stored.items() if key not in ("password", "token")}
    names = [one["name"] for one in draft.document.get("transports") or []]
    options: dict[str, Any] = {"initial": {**values, "expected_version": draft.version}, "transports": names}
    if part == "rules":
        options["signals"] = rule_signals(draft_parts.list_entries(draft, "rules"))
    return FORMS[part][1](request.POST or None, **options)


def _put(
    request: HttpRequest, draft: PolicyDraft, part: str, number: int | None, form: DraftPartForm
) -> HttpResponse:
    """Save an entry."""
    token = ""
    if isinstance(form, BrokerUserForm):
        before = {} if number is None else draft_parts.entry_at(draft, part, number)
        made, token = form.entry_and_token(before)
    else:
        made = form.entry()
    saved = draft_parts.save_entry(
        common.actor_of(request), draft, part, number, made, form.cleaned_data["expected_version"]
    )
    if token:
        # The token is in this response only: a message would store it in a cookie.
        return render_draft(request, saved, {"token": token, "token_of": made["name"]})
    messages.success(request, "Saved in the draft. The policy changes when the draft is published.")
    return redirect("drafts_one", draft.pk)


def _save(request: HttpRequest, draft: PolicyDraft, changes: Mapping[str, Any], version: int) -> HttpResponse:
    """Save changed settings."""
    draft_parts.save_changes(common.actor_of(request), draft, changes, version)
    messages.success(request, "Saved in the draft. The policy changes when the draft is published.")
    return redirect("drafts_one", draft.pk)


def _change_draft(request: HttpRequest, draft_id: int, change: Any) -> HttpResponse:
    """Apply a function to the draft, and redirect to its page."""
    try:
        outcome = change(get_draft(draft_id))
    except SluiceError as problem:
        return redirect_with_error(request, draft_id, problem)
    messages.success(request, outcome if isinstance(outcome, str) else "Removed from the draft.")
    return redirect("drafts_one", draft_id)


def redirect_with_error(request: HttpRequest, draft_id: int, problem: SluiceError) -> HttpResponse:
    """Show an error on the draft's page."""
    common.show_error(request, problem)
    return redirect("drafts") if problem.code == "unknown_draft" else redirect("drafts_one", draft_id)


def _add(form: forms.Form, problem: SluiceError) -> None:
    """Add an error to the form, one line per problem."""
    for sentence in problem.details.get("problems") or [problem.sentence]:
        form.add_error(None, sentence)


def _show(
    request: HttpRequest, draft: PolicyDraft, form: DraftPartForm | LimitsForm, title: str, ladder: Any = None
) -> HttpResponse:
    """Render the page of the part."""
    context = {"draft": draft, "form": form, "groups": form.groups(), "title": title, "ladder": ladder}
    return common.page(request, "draft_part.html", context, 422 if form.is_bound else 200)
