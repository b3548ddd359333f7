"""Policies: the instance's and each transport's, the revisions they made, and whether brokers run the newest."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from django.conf import settings
from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_GET, require_POST

from broker_core.documents.instance import PoolEntry
from broker_core.errors import SluiceError
from console.choices import Permission, TransportKind
from console.forms.limits import InstancePolicyForm, PolicyForm, flatten
from console.forms.transports import TransportPolicyForm
from console.models import PolicyRevision
from console.queries import live
from console.queries import policies as read
from console.queries.document_diff import Change, changes
from console.services import policies as service
from console.views import common
from console.views.rollouts import rollout_shown

REVISIONS = 30


@common.permitted(Permission.VIEW)
@require_GET
def policies(request: HttpRequest) -> HttpResponse:
    """What is wanted, what runs, and how it came to be."""
    return _show(request)


@common.permitted(Permission.VIEW)
@require_GET
def in_force(request: HttpRequest) -> HttpResponse:
    """The line that says where the newest revision is in force; the page asks again until it is everywhere."""
    return render(request, "components/in_force.html", common.in_force())


@common.permitted(Permission.EDIT_POLICIES)
@require_POST
def change_instance(request: HttpRequest) -> HttpResponse:
    """Save the instance's policy as a new revision."""
    form = InstancePolicyForm(request.POST)

    def save(clean: Mapping[str, Any]) -> service.Change:
        return service.change_instance_policy(
            common.actor_of(request), form.changes(),
            reason=clean["reason"], expected_revision=clean["expected_revision"],
        )  # fmt: skip

    return _save(request, form, save, "")


@common.permitted(Permission.EDIT_POLICIES)
@require_POST
def change_transport(request: HttpRequest, name: str) -> HttpResponse:
    """Save one transport's policy as a new revision."""
    form = TransportPolicyForm(request.POST)

    def save(clean: Mapping[str, Any]) -> service.Change:
        return service.change_transport(
            common.actor_of(request), name, form.changes(),
            reason=clean["reason"], expected_revision=clean["expected_revision"],
        )  # fmt: skip

    return _save(request, form, save, name)


def _save(
    request: HttpRequest,
    form: PolicyForm,
    save: Callable[[Mapping[str, Any]], service.Change],
    transport: str,
) -> HttpResponse:
    """Save a valid form and go back to the page; otherwise show it again with what is wrong."""
    if form.is_valid():
        try:
            _report(request, save(form.cleaned_data), int(form.cleaned_data["expected_revision"]))
            return redirect("policies")
        except SluiceError as problem:
            form.add_error(None, f"{problem.sentence} {problem.fix}".strip())
    return _show(request, form, transport, status=422)


def _report(request: HttpRequest, change: service.Change, before: int) -> None:
    number = change.revision.number
    if number == before:
        messages.info(request, "Nothing differs from the newest revision, so none was made.")
    elif change.applied:
        messages.success(request, f"Revision {number} is saved and in force.")
    else:
        messages.warning(
            request, f"Revision {number} is saved. The broker doesn’t run it yet: {change.problem}"
        )


def _show(
    request: HttpRequest, failed: PolicyForm | None = None, transport: str = "", status: int = 200
) -> HttpResponse:
    document = service.document_in_force(settings.SLUICE_INSTANCE)
    number = document["revision"]
    parts = {key: document[key] for key in ("instance", "pool", "client_policy")}
    own = InstancePolicyForm(initial={**flatten(parts), "expected_revision": number}, auto_id="instance_%s")
    pools = _pools_now()
    own.show_now(pools.get("instance"))
    forms = [
        _transport(
            item,
            number,
            failed if transport == item["name"] else None,
            pools.get(f"transport {item['name']}"),
        )
        for item in document["transports"]
    ]
    context = {
        "instance_form": failed if failed is not None and not transport else own,
        "instance_url": reverse("policies_instance"), "transport_forms": forms,
        "revisions": _revisions(), **common.in_force(), **rollout_shown(common.own_instance()),
    }  # fmt: skip
    return common.page(request, "policies.html", context, status)


def _pools_now() -> dict[str, PoolEntry]:
    """The running broker's pools, by their own name and by "transport NAME"; none while it is away."""
    try:
        pools = live.status().pools
    except SluiceError:
        return {}
    by_transport = {f"transport {name}": pool for pool in pools for name in pool.transports}
    return {**by_transport, **{pool.name: pool for pool in pools}}


def _transport(
    item: Mapping[str, Any], number: int, failed: PolicyForm | None, pool: PoolEntry | None
) -> dict[str, Any]:
    name = item["name"]
    form = failed or TransportPolicyForm(initial={**flatten(item), "expected_revision": number})
    form.auto_id = f"{name}_%s"
    form.show_now(pool)
    kind = TransportKind(item["kind"]).label
    differs = any(value is not None for part in ("pool", "client_policy") for value in item[part].values())
    return {
        "form": form, "title": f"Transport {name}", "anchor": f"transport-{name}", "opened": failed is not None,
        "subtitle": f"{kind} on {item['host']}:{item['port']}{'' if item['enabled'] else ', disabled'}; "
        + ("has limits of its own" if differs else "uses the instance’s limits"),
        "url": reverse("policies_transport", args=[name]),
    }  # fmt: skip


def _revisions() -> list[dict[str, Any]]:
    """Newest first, each with what it changed against the one before, and whether it is wanted or runs."""
    instance = read.instance_named()
    state = read.in_force(instance)
    found: list[PolicyRevision] = read.revisions(instance, REVISIONS + 1)
    older = {revision.number: revision for revision in found}
    return [
        {
            "revision": revision,
            "changes": _changes(older.get(revision.number - 1), revision),
            "running": state["running"] == revision.number,
            "wanted": state["wanted"] == revision.number,
        }
        for revision in found[:REVISIONS]
    ]


def _changes(before: PolicyRevision | None, after: PolicyRevision) -> list[Change]:
    return changes(before.document, after.document) if before is not None else []
