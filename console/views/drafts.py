"""Pages of policy drafts: edit parts, preview the effect, publish for all clients or for some first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET, require_POST

from broker_core.errors import OperatorError, SluiceError
from console.choices import PendingChangeKind, Permission
from console.forms.drafts import ImportForm, NewDraftForm, PublishDraftForm
from console.forms.rule import rule_signals
from console.models import PolicyDraft
from console.queries import policies as read
from console.queries import policy_effect
from console.queries.policy_redaction import visible_draft
from console.services import audit, drafts, policies, policy_files, rollouts
from console.services.pending_changes import service as pending_service
from console.views import common, draft_tables, pending_changes
from console.views.rollouts import running_rollout_context

PAGE = 30
"""Drafts per page."""


@common.requires_permission(Permission.VIEW)
@require_GET
def draft_list(request: HttpRequest) -> HttpResponse:
    """Show all drafts, most recently changed first."""
    return render_list(request)


@common.requires_permission(Permission.EDIT_POLICIES)
@require_POST
def create_draft(request: HttpRequest) -> HttpResponse:
    """Create a draft from the newest revision, or from an older one to restore it after a review."""
    form = NewDraftForm(request.POST, auto_id="new_%s")
    if not form.is_valid():
        return render_list(request, {"new_form": form}, 422)
    try:
        made = drafts.create_draft(
            common.actor_of(request), form.cleaned_data["title"], revision=form.cleaned_data["revision"]
        )
    except SluiceError as problem:
        form.add_error(None, f"{problem.sentence} {problem.fix}")
        return render_list(request, {"new_form": form}, 422)
    return redirect("drafts_one", made.pk)


@common.requires_permission(Permission.EDIT_POLICIES)
@require_POST
def import_draft(request: HttpRequest) -> HttpResponse:
    """Create a draft from a configuration file.

    The response reports the result for each setting of the file. The report is not stored.
    """
    form, skipped = ImportForm(request.POST, request.FILES), []
    if form.is_valid():
        try:
            made = policy_files.make_draft(
                common.actor_of(request),
                read.instance_named(),
                form.cleaned_data["system"],
                form.cleaned_data["text"],
                title=form.cleaned_data["title"],
                values=form.cleaned_data["values"],
            )
            return render_draft(
                request,
                made.draft,
                {"imported": made.imported, "actions": made.actions, "import_warnings": made.warnings},
            )
        except SluiceError as problem:
            form.add_error(None, f"{problem.sentence} {problem.fix}")
            skipped = problem.details.get("left_out", [])
    return render_list(request, {"import_form": form, "skipped": skipped}, 422)


@common.requires_permission(Permission.VIEW)
@require_GET
def draft_page(request: HttpRequest, draft_id: int) -> HttpResponse:
    """Show a draft."""
    try:
        return render_draft(request, get_draft(draft_id))
    except OperatorError as problem:
        common.show_error(request, problem)
        return redirect("drafts")


@common.requires_permission(Permission.EDIT_POLICIES)
@require_POST
def delete(request: HttpRequest, draft_id: int) -> HttpResponse:
    """Add the deletion of a draft to the pending changes."""
    return pending_changes.add_change(request, PendingChangeKind.DRAFT_DELETE, str(draft_id))


@common.requires_permission(Permission.VIEW)
@require_POST
def preview(request: HttpRequest, draft_id: int) -> HttpResponse:
    """Show the effect of publishing a draft, for all clients or for some first. Changes nothing."""
    audit.mark_read_only(request)
    form = PublishDraftForm(request.POST)
    try:
        draft = get_draft(draft_id)
    except OperatorError as problem:
        common.show_error(request, problem)
        return redirect("drafts")
    first = form.plan() if form.is_valid() else None
    try:
        context = preview_for_page(request, drafts.preview(draft, first), draft.document)
    except OperatorError as problem:
        form.add_error(None, f"{problem.sentence} {problem.fix}")
        context = {}
    context = {**context, "publish_form": form, "first": first}
    if request.headers.get("HX-Request"):
        return render(request, "components/draft_preview.html", context)
    return render_draft(request, draft, context)


@common.requires_permission(Permission.EDIT_POLICIES)
@require_POST
def add_to_pending(request: HttpRequest, draft_id: int) -> HttpResponse:
    """Add the publication of a draft to the pending changes, for all clients or for some first."""
    audit.mark_read_only(request)
    form = PublishDraftForm(request.POST)
    try:
        draft = get_draft(draft_id)
        if form.is_valid():
            first = form.plan()
            if first is not None:
                rollouts.validate(first)
            pending_service.add_draft(common.actor_of(request), draft, first)
            return pending_changes.changes_response(request)
        if request.headers.get("HX-Request"):
            return pending_changes.render_pending(request, pending_changes.form_errors(form))
        return render_draft(request, draft, {"publish_form": form}, 422)
    except SluiceError as problem:
        common.show_error(request, problem)
    return pending_changes.changes_response(request)


def preview_for_page(
    request: HttpRequest, found: drafts.DraftPreview, document: Mapping[str, Any]
) -> dict[str, Any]:
    """Return a preview for a page: its visible clients, summarised in lines."""
    visible = drafts.restrict_preview(found, common.visible_patterns(request))
    rules = [rule for rule in document.get("rules") or [] if isinstance(rule, Mapping)]
    summary = (
        policy_effect.summarise_effect(visible.effect, rule_signals(rules))
        if visible.effect is not None
        else None
    )
    return {"preview": visible, "effect": summary}


def get_draft(draft_id: int) -> PolicyDraft:
    """Return a draft of this installation's instance. Raises OperatorError `unknown_draft`."""
    draft = drafts.draft_numbered(draft_id)
    if draft.instance_id != read.instance_named().pk:
        raise OperatorError(
            "unknown_draft", f"The draft {draft_id} doesn't exist.", "See the list of drafts."
        )
    return draft


def version_of(request: HttpRequest) -> int:
    """Return the version that a form was made for. Raises OperatorError `bad_if_match`."""
    text = request.POST.get("expected_version", "")
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise OperatorError("bad_if_match", "The form has no version.", "Load the draft again.")
    return int(text)


def render_list(request: HttpRequest, more: dict[str, Any] | None = None, status: int = 200) -> HttpResponse:
    """Render the list of drafts with the forms to create one."""
    instance = common.local_instance()
    found = read.drafts(instance) if instance else PolicyDraft.objects.none()
    context = {
        "page": Paginator(found.defer("document"), PAGE).get_page(request.GET.get("page")),
        "query": "",
        "new_form": NewDraftForm(auto_id="new_%s"),
        "import_form": ImportForm(),
        **(more or {}),
    }
    return common.page(request, "drafts.html", context, status)


@never_cache
def render_draft(
    request: HttpRequest, draft: PolicyDraft, more: dict[str, Any] | None = None, status: int = 200
) -> HttpResponse:
    """Render a draft's page. A new token in `more` is shown in this response only."""
    newest = policies.newest_revision(draft.instance)
    draft = visible_draft(draft, common.visible_patterns(request))
    context = {
        "draft": draft,
        "newest": newest.number,
        "tables": draft_tables.tables(draft),
        "transports": draft_tables.transports(draft),
        "limits": draft_tables.limits(draft),
        "publish_form": PublishDraftForm(),
        **running_rollout_context(draft.instance, common.visible_patterns(request)),
        **(more or {}),
    }
    return common.page(request, "draft.html", context, status)
