"""One client: what it is doing, how far behind it was, what was decided about it, and what can be done to it."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.views.decorators.http import require_GET, require_POST

from broker_core.documents.clients import ClientEntry
from broker_core.errors import SluiceError
from console.broker_link import BrokerAway
from console.choices import Permission
from console.forms.clients import DisconnectForm
from console.models import Instance
from console.queries import clients as read
from console.queries import history, ledger, pipeline_history
from console.services import clients as service
from console.views import common

DECISIONS = 20
LOSSES = 20
DONE = {
    "pause": "The subscriptions of {} are paused.",
    "resume": "The subscriptions of {} go on.",
    "offline": "{} was offlined.",
}


@common.permitted(Permission.VIEW, client="name")
@require_GET
def client(request: HttpRequest, name: str) -> HttpResponse:
    """A client's page; also of one that has logged off, as long as its history is kept."""
    return _show(request, name, DisconnectForm())


@common.permitted(Permission.ACT_ON_CLIENTS, client="name")
@require_POST
def disconnect(request: HttpRequest, name: str) -> HttpResponse:
    """Disconnect it, with the reason it is told."""
    form = DisconnectForm(request.POST)
    if not form.is_valid():
        return _show(request, name, form, status=422)
    try:
        service.disconnect(common.actor_of(request), name, form.cleaned_data["reason"])
    except SluiceError as problem:
        common.tell(request, problem)
    else:
        messages.success(request, f"{name} was disconnected and told why.")
    return redirect("client", name=name)


@common.permitted(Permission.VIEW, client="name")
@require_GET
def slow(request: HttpRequest, name: str) -> HttpResponse:
    """Why it is behind, what comes next and what can be done; the page asks for it every two seconds."""
    found, _ = _ask(name)
    context = {"may": common.may(request), "name": name, "client": found, "paused": _paused(found)}
    return render(request, "components/client_slow.html", context)


@common.permitted(Permission.ACT_ON_CLIENTS, client="name")
@require_POST
def act(request: HttpRequest, name: str, word: str) -> HttpResponse:
    """Pause or resume its subscriptions, or offline it."""
    try:
        service.act(common.actor_of(request), service.ACTS[word](name=name))
    except SluiceError as problem:
        common.tell(request, problem)
    else:
        messages.success(request, DONE[word].format(name))
    return redirect("client", name=name)


def _paused(found: ClientEntry | None) -> list[str]:
    return [one.id for one in found.subscriptions if one.paused] if found else []


def _show(request: HttpRequest, name: str, form: DisconnectForm, status: int = 200) -> HttpResponse:
    instance = common.own_instance()
    found, problem = _ask(name)
    kept = _history(instance, name)
    hourly = pipeline_history.client_hours(name)
    # While the broker can't say, nobody can know that a client never was.
    if found is None and problem is None and not (hourly or any(kept.values())) and not _durables(name):
        return common.page(request, "client_unknown.html", {"name": name}, 404)
    last = kept["samples"][-1]["at"] if kept["samples"] else None
    context = {
        "name": name, "client": found, "broker_problem": problem, "disconnect_form": form, "paused": _paused(found),
        "history_hours": settings.SLUICE_SAMPLE_RETENTION_HOURS, "hourly": hourly, **kept,
        "last_seen_ms": last and last * 1_000,
    }  # fmt: skip
    return common.page(request, "client.html", context, status)


def _ask(name: str) -> tuple[ClientEntry | None, SluiceError | None]:
    """The client as the broker sees it: None when it isn't logged on, with the problem when the broker can't say."""
    try:
        return read.client(name), None
    except BrokerAway as away:
        return None, away
    except SluiceError:
        return None, None


def _durables(name: str) -> bool:
    """Whether something is kept for a client of that name while it is away."""
    try:
        return any(one.client == name for one in ledger.durables())
    except SluiceError:
        return False


def _history(instance: Instance | None, name: str) -> dict[str, Any]:
    if instance is None:
        return {"samples": [], "decisions": [], "losses": []}
    minutes = settings.SLUICE_SAMPLE_RETENTION_HOURS * 60
    return {
        "samples": history.recent_samples(instance, name, timezone.now(), minutes),
        "decisions": list(history.decisions(instance, client=name)[:DECISIONS]),
        "losses": list(ledger.losses(instance, client=name)[:LOSSES]),
    }
