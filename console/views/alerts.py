"""Page of alerts: open and closed ones, and the rules. Deleting a rule is a pending change."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.views.decorators.http import require_GET, require_POST

from broker_core.names import name_matches
from console.choices import AlertSubject, MessageState, PendingChangeKind, Permission
from console.forms.alerts import AlertForm
from console.models import Alert, AlertRule
from console.queries.policies import instance_named
from console.queries.policy_redaction import is_client_visible
from console.services import alerts as service
from console.views import common, pending_changes

MAX_CLOSED = 50
"""Maximum closed alerts on the page."""


@common.requires_permission(Permission.VIEW)
@require_GET
def alerts(request: HttpRequest) -> HttpResponse:
    """Show open alerts, closed alerts and the rules."""
    return _show(request, AlertForm())


@common.requires_permission(Permission.EDIT_POLICIES)
@require_POST
def create(request: HttpRequest) -> HttpResponse:
    """Create a rule."""
    form = AlertForm(request.POST, instance_of=instance_named())
    if not form.is_valid():
        return _show(request, form, 422)
    rule = service.create(common.actor_of(request), form.save(commit=False))
    messages.success(request, f"The alert {rule.name} was created.")
    return redirect("alerts")


@common.requires_permission(Permission.EDIT_POLICIES)
@require_POST
def delete(request: HttpRequest, rule_id: int) -> HttpResponse:
    """Add the deletion of a rule to the pending changes."""
    return pending_changes.add_change(request, PendingChangeKind.ALERT_DELETE, str(rule_id))


def _show(request: HttpRequest, form: AlertForm, status: int = 200) -> HttpResponse:
    instance, patterns = common.local_instance(), common.visible_patterns(request)
    alerts = (
        Alert.objects.filter(rule__instance=instance)
        .exclude(opened_at=None)
        .select_related("rule")
        .prefetch_related("messages")
    )
    open_ = [_visible_alert(one, patterns) for one in alerts.filter(closed_at=None)]
    closed = [_visible_alert(one, patterns) for one in alerts.exclude(closed_at=None)[:MAX_CLOSED]]
    context = {
        "open": open_,
        "closed": closed,
        "rules": [
            one
            for one in AlertRule.objects.filter(instance=instance)
            if is_client_visible(one.client, patterns)
        ],
        "alert_form": form,
        "failed_state": MessageState.FAILED,
    }
    return common.page(request, "alerts.html", context, status)


def _visible_alert(alert: Alert, patterns: list[str] | None) -> dict[str, Any]:
    """Return an alert as an account may see it whose clients match `patterns`; None means all."""
    names = sorted(alert.members)
    text = alert.sentence
    if patterns is not None and alert.rule.about != AlertSubject.SYSTEM_CONDITION:
        names = [name for name in names if any(name_matches(pattern, name) for pattern in patterns)]
        text = (
            service.alert_sentence(alert.rule.about, names)
            if names
            else "Only clients that you aren’t allowed to see."
        )
    linked = names if alert.rule.about != AlertSubject.SYSTEM_CONDITION else []
    return {"alert": alert, "sentence": text, "names": linked[:20], "more": max(0, len(linked) - 20)}
