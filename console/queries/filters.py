"""What lists are filtered by: the same classes for the pages and for the API."""

from __future__ import annotations

from datetime import UTC
from typing import Any

import django_filters as filters
from django.core.exceptions import ValidationError
from django.db.models import Q, QuerySet
from django_filters.fields import IsoDateTimeField

from console.choices import ActorKind, AuditResult, RunKind, RunState
from console.models import ActionRun, AuditEvent, Decision


class _MomentField(IsoDateTimeField):
    """A moment that is one in every zone: the year 1 further east is before all years."""

    def clean(self, value: Any) -> Any:
        moment = super().clean(value)
        if moment is not None:
            try:
                moment.astimezone(UTC)
            except OverflowError:
                raise ValidationError("This time is out of range.") from None
        return moment


class MomentFilter(filters.IsoDateTimeFilter):
    """By a moment in ISO 8601."""

    field_class = _MomentField


class DecisionFilter(filters.FilterSet):
    """Decisions: by client, what was done and why, rule, revision, and time."""

    member = filters.CharFilter()
    client = filters.CharFilter()
    transport = filters.CharFilter()
    action = filters.CharFilter()
    reason = filters.CharFilter()
    rule = filters.CharFilter()
    mode = filters.CharFilter()
    revision = filters.NumberFilter()
    since = MomentFilter(field_name="at", lookup_expr="gte")
    until = MomentFilter(field_name="at", lookup_expr="lt")

    class Meta:
        model = Decision
        fields: list[str] = []


class RunFilter(filters.FilterSet):
    """Runs: by kind, state, who asked, and when they were asked for."""

    kind = filters.ChoiceFilter(choices=RunKind.choices)
    state = filters.ChoiceFilter(choices=RunState.choices)
    actor = filters.CharFilter(lookup_expr="icontains")
    since = MomentFilter(field_name="created_at", lookup_expr="gte")
    until = MomentFilter(field_name="created_at", lookup_expr="lt")

    class Meta:
        model = ActionRun
        fields: list[str] = []


class AuditFilter(filters.FilterSet):
    """Audit events: by who, what, on what, how it ended, when, from where, and by any of their texts."""

    actor = filters.CharFilter(lookup_expr="icontains")
    actor_kind = filters.ChoiceFilter(choices=ActorKind.choices)
    action = filters.CharFilter(lookup_expr="istartswith")
    object = filters.CharFilter(lookup_expr="icontains")
    result = filters.ChoiceFilter(choices=AuditResult.choices)
    source = filters.CharFilter()
    request_id = filters.CharFilter()
    since = MomentFilter(field_name="at", lookup_expr="gte")
    until = MomentFilter(field_name="at", lookup_expr="lt")
    search = filters.CharFilter(method="any_text")

    class Meta:
        model = AuditEvent
        fields: list[str] = []

    def any_text(self, rows: QuerySet[Any], name: str, text: str) -> QuerySet[Any]:
        """Part of any text of the event."""
        return rows.filter(
            Q(actor__icontains=text) | Q(action__icontains=text) | Q(object__icontains=text)
            | Q(reason__icontains=text) | Q(message__icontains=text) | Q(request_id=text)
        )  # fmt: skip
