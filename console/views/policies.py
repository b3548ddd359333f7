"""Page of policies: limits of the instance and its transports, revisions, and whether brokers run the
newest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseBadRequest
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_GET, require_POST

from broker_core.config.rule_terms import EnforcementMode
from broker_core.documents.instance import PoolEntry
from broker_core.errors import SluiceError
from console import current_instance
from console.choices import Permission, TransportKind
from console.forms.limits import InstanceLimitsForm, LimitsForm, LimitsRowForm, flatten_settings
from console.forms.transports import TransportLimitsForm
from console.models import PolicyRevision
from console.queries import live
from console.queries import policies as read
from console.queries.document_diff import DocumentChange, diff_documents
from console.queries.policy_redaction import visible_document, visible_revision
from console.services import audit, set_back
from console.services import policies as service
from console.services.pending_changes import service as pending_service
from console.units import labels
from console.views import common, pending_changes, point_in_time
from console.views.rollouts import running_rollout_context

REVISIONS = 30
"""Revisions on the page."""
Pools = dict[str, list[PoolEntry]]
"""Pools of the running brokers, by pool name and by "transport NAME"."""


@common.requires_permission(Permission.VIEW)
@require_GET
@point_in_time.supports_point_in_time(point_in_time.policies)
def policies(request: HttpRequest) -> HttpResponse:
    """Show the newest policy, what brokers run, and the revisions."""
    return _show(request)


@common.requires_permission(Permission.VIEW)
@require_GET
def in_force(request: HttpRequest) -> HttpResponse:
    """Show where the newest revision is in force.

    The page requests this until it is in force everywhere.
    """
    return render(request, "components/in_force.html", common.in_force(request))


@common.requires_permission(Permission.EDIT_POLICIES)
@require_POST
def change_instance(request: HttpRequest) -> HttpResponse:
    """Add a change of the instance's policy to the pending changes.

    `row` in the form means a row of the table: only its fields are changed.
    """
    form = LimitsRowForm(request.POST) if "row" in request.POST else InstanceLimitsForm(request.POST)
    return _plan(request, form, form.changes, "")


@common.requires_permission(Permission.EDIT_POLICIES)
@require_POST
def change_transport(request: HttpRequest, name: str) -> HttpResponse:
    """Add a change of one transport to the pending changes. `row` as in `change_instance`."""
    form = LimitsRowForm(request.POST) if "row" in request.POST else TransportLimitsForm(request.POST)
    return _plan(request, form, lambda: {"transports": {name: form.changes()}}, name)


@common.requires_permission(Permission.EDIT_POLICIES)
@require_POST
def add_rollback(request: HttpRequest, number: int) -> HttpResponse:
    """Add the restoration of an older revision to the pending changes."""
    audit.mark_read_only(request)
    try:
        pending_service.add_rollback(common.actor_of(request), number)
    except SluiceError as problem:
        common.show_error(request, problem)
    return pending_changes.changes_response(request)


@common.requires_permission(Permission.EDIT_POLICIES)
@require_POST
def resolve_set_back(request: HttpRequest) -> HttpResponse:
    """Choose between the policy that brokers keep and the newest policy of a database that lacks it."""
    try:
        choice = set_back.SetBackChoice(request.POST.get("choice", ""))
    except ValueError:
        return HttpResponseBadRequest("choice: stored or database")
    if choice is set_back.SetBackChoice.DATABASE and not request.POST.get("confirmed"):
        audit.mark_read_only(request)
        messages.error(request, "Confirm that clients may be cut off, and topics no longer journaled.")
        return redirect("policies")
    try:
        change = set_back.resolve_set_back(common.actor_of(request), choice)
    except SluiceError as problem:
        audit.mark_read_only(request)
        common.show_error(request, problem)
    else:
        messages.success(request, f"Revision {change.revision.number}. {change.problem or 'It is in force.'}")
    return redirect("policies")


def _plan(
    request: HttpRequest, form: LimitsForm, changes: Callable[[], Mapping[str, Any]], transport: str
) -> HttpResponse:
    """Apply a valid form's changes to the draft of the pending changes; otherwise show the page with the
    errors.
    """
    audit.mark_read_only(request)
    if form.is_valid():
        try:
            pending_service.add_policy_change(common.actor_of(request), changes())
            return pending_changes.changes_response(request)
        except SluiceError as problem:
            form.add_error(None, f"{problem.sentence} {problem.fix}".strip())
    if request.headers.get("HX-Request"):
        return pending_changes.render_pending(request, pending_changes.form_errors(form))
    return _show(request, form, transport, status=422)


def _show(
    request: HttpRequest, failed: LimitsForm | None = None, transport: str = "", status: int = 200
) -> HttpResponse:
    """Render the page. `failed` is the submitted form with errors."""
    in_force = service.document_in_force(current_instance.instance_name())
    document = pending_service.planned_document(common.actor_of(request)) or in_force
    parts = {key: document[key] for key in ("instance", "pool", "client_policy")}
    instance_form = InstanceLimitsForm(initial=flatten_settings(parts), auto_id="instance_%s")
    pools = _pools_now()
    instance_form.show_now(pools.get("instance", []))
    forms = [
        _transport(
            item,
            failed if transport == item["name"] and isinstance(failed, TransportLimitsForm) else None,
            pools.get(f"transport {item['name']}", []),
        )
        for item in document["transports"]
    ]
    context = {
        "newest": in_force["revision"],
        "rules": _rules(visible_document(document, common.visible_patterns(request))),
        "rows": _rows(document, pools, failed, transport),
        "instance_form": failed if isinstance(failed, InstanceLimitsForm) else instance_form,
        "instance_url": reverse("policies_instance"),
        "transport_forms": forms,
        "revisions": _revisions(common.visible_patterns(request)),
        **common.in_force(request),
        **running_rollout_context(common.local_instance(), common.visible_patterns(request)),
    }
    return common.page(request, "policies.html", context, status)


def _rules(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the custom rules as sentences."""
    return [
        {
            "index": index,
            "name": str(rule.get("name")),
            "sentence": labels.rule_sentence(rule),
            "recorded_only": str(rule.get("mode") or EnforcementMode.SHADOW) == EnforcementMode.SHADOW,
        }
        for index, rule in enumerate(document.get("rules") or [])
    ]


def _rows(
    document: Mapping[str, Any], pools: Pools, failed: LimitsForm | None, transport: str
) -> list[dict[str, Any]]:
    """Return the limits of the instance and of each transport, as rows of form fields."""
    made = []
    for name, part in (("", document), *((one["name"], one) for one in document["transports"])):
        limits = flatten_settings({key: part[key] for key in ("pool", "client_policy")})
        wrong = isinstance(failed, LimitsRowForm) and transport == name
        form = failed if isinstance(failed, LimitsRowForm) and wrong else LimitsRowForm(initial=limits)
        form.auto_id = f"row_{name}_%s"
        pool_figures = pools.get(f"transport {name}" if name else "instance", [])
        if name:
            for field in LimitsRowForm.COLUMNS:
                form.fields[field].widget.attrs["placeholder"] = "Default of the instance"
        else:
            form.show_now(pool_figures)
        url = reverse("policies_transport", args=[name]) if name else reverse("policies_instance")
        made.append({"name": name, "form": form, "url": url, "pools": pool_figures, "wrong": wrong})
    return made


def _pools_now() -> Pools:
    """Return the running brokers' pools, those of each member; empty while the brokers are unavailable."""
    found: Pools = {}
    try:
        pools = live.instance_status().pools
    except SluiceError:
        return found
    for pool in pools:
        for key in (pool.name, *(f"transport {name}" for name in pool.transports)):
            found.setdefault(key, []).append(pool)
    return found


def _transport(item: Mapping[str, Any], failed: LimitsForm | None, pools: list[PoolEntry]) -> dict[str, Any]:
    """Return the context of a transport's form."""
    name = item["name"]
    form = failed or TransportLimitsForm(initial=flatten_settings(item))
    form.auto_id = f"{name}_%s"
    form.show_now(pools)
    kind = TransportKind(item["kind"]).label
    differs = any(value is not None for part in ("pool", "client_policy") for value in item[part].values())
    return {
        "form": form,
        "title": f"Transport {name}",
        "anchor": f"transport-{name}",
        "is_open": failed is not None,
        "subtitle": f"{kind} on {item['host']}:{item['port']}{'' if item['enabled'] else ', disabled'}; "
        + ("has its own limits" if differs else "uses the instance’s limits"),
        "url": reverse("policies_transport", args=[name]),
    }


def _revisions(patterns: Sequence[str] | None) -> list[dict[str, Any]]:
    """Return the newest revisions, each with its changes and whether it should be in force or runs."""
    instance = read.instance_named()
    state, runs = read.policy_status(instance), read.running_revisions(instance)
    found = [visible_revision(one, patterns) for one in read.revisions(instance, REVISIONS + 1)]
    older = {revision.number: revision for revision in found}
    return [
        {
            "revision": revision,
            "changes": _changes(older.get(revision.number - 1), revision),
            "running": revision.number in runs,
            "members": runs.get(revision.number, []),
            "is_newest": state["wanted"] == revision.number,
            "withdrawn": revision.withdrawn,
        }
        for revision in found[:REVISIONS]
    ]


def _changes(before: PolicyRevision | None, after: PolicyRevision) -> list[DocumentChange]:
    """Return the changes of a revision against the one before."""
    return diff_documents(before.document, after.document) if before is not None else []
