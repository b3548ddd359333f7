"""Page of a custom rule as a sentence, with the clients that it would match now.

Saving adds it to the pending changes.
"""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods, require_POST

from broker_core.config.rule_terms import EnforcementMode
from broker_core.errors import SluiceError
from console import current_instance
from console.choices import Permission
from console.forms.rule_sentence import RuleSentenceForm
from console.queries import policies as read
from console.services import audit, drafts, policies
from console.services.pending_changes import service as pending_service
from console.views import common, pending_changes

SHOWN = 5
"""Maximum names of matching clients."""


@common.requires_permission(Permission.EDIT_POLICIES)
@require_http_methods(["GET", "POST"])
def new_rule(request: HttpRequest) -> HttpResponse:
    """Show the sentence, or add the rule to the pending changes."""
    form = RuleSentenceForm(request.POST or None)
    if request.method == "POST":
        audit.mark_read_only(request)
        if form.is_valid():
            try:
                listed = _planned_rules(request)
                pending_service.add_policy_change(
                    common.actor_of(request),
                    {"rules": [*listed, form.entry({str(one.get("name")) for one in listed})]},
                )
                return (
                    pending_changes.changes_response(request)
                    if request.headers.get("HX-Request")
                    else redirect("policies")
                )
            except SluiceError as problem:
                form.add_error(None, f"{problem.sentence} {problem.fix}".strip())
        if request.headers.get("HX-Request"):
            return pending_changes.render_pending(request, pending_changes.form_errors(form))
    return common.page(request, "rule.html", {"form": form}, 422 if form.is_bound else 200)


@common.requires_permission(Permission.EDIT_POLICIES)
@require_POST
def try_rule(request: HttpRequest) -> HttpResponse:
    """Show how the sentence is interpreted, and the clients that it would match now. Changes nothing."""
    audit.mark_read_only(request)
    form = RuleSentenceForm(request.POST)
    context: dict[str, Any] = {"form": form}
    if form.is_valid():
        context |= _now(request, form)
    return render(request, "components/rule_now.html", context)


@common.requires_permission(Permission.EDIT_POLICIES)
@require_POST
def remove_rule(request: HttpRequest, index: int) -> HttpResponse:
    """Add the removal of a rule to the pending changes.

    `name` detects that the list has changed meanwhile.
    """
    audit.mark_read_only(request)
    listed = _planned_rules(request)
    if index < len(listed) and str(listed[index].get("name")) == request.POST.get("name"):
        try:
            pending_service.add_policy_change(
                common.actor_of(request), {"rules": [*listed[:index], *listed[index + 1 :]]}
            )
        except SluiceError as problem:
            common.show_error(request, problem)
    return pending_changes.changes_response(request)


def _now(request: HttpRequest, form: RuleSentenceForm) -> dict[str, Any]:
    """Return the clients that the rule alone would act on, in enforce mode, and the number in its scope."""
    document = policies.document_in_force(current_instance.instance_name())
    entry = form.entry({str(one.get("name")) for one in document.get("rules") or []})
    found = drafts.preview_document(
        read.instance_named(),
        {
            **document,
            "rules": [*(document.get("rules") or []), {**entry, "mode": EnforcementMode.ENFORCE}],
        },
    )
    if found.effect is None:
        return {"problems": found.problems, "away": found.away}
    visible = drafts.restrict_preview(found, common.visible_patterns(request)).effect
    clients = {
        one.client
        for one in found.effect.touched
        if any(change.setting.startswith(f"{entry['name']}.") for change in one.changes)
    }
    past = [one for one in found.effect.acted_on if one.rule == entry["name"]]
    cut = found.effect.touched_in_all > len(found.effect.touched)
    names = [one.client for one in (visible.acted_on if visible else []) if one.rule == entry["name"]]
    return {
        "past": len(past),
        "in_scope": len(clients),
        "at_least": cut,
        "names": names[:SHOWN],
        "more": len(past) - len(names[:SHOWN]),
        "away": found.away,
    }


def _planned_rules(request: HttpRequest) -> list[dict[str, Any]]:
    """Return the custom rules of the pending draft, else of the newest policy."""
    planned = pending_service.planned_document(common.actor_of(request))
    document = planned or policies.document_in_force(current_instance.instance_name())
    return list(document.get("rules") or [])
