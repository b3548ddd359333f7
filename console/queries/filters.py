"""Filters of lists, shared by pages and the API."""

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
    """Time field that rejects values outside Python's range in UTC, such as year 1 in a zone east of UTC."""

    def clean(self, value: Any) -> Any:
        moment = super().clean(value)
        if moment is not None:
            try:
                moment.astimezone(UTC)
            except OverflowError:
                raise ValidationError("This time is out of range.") from None
        return moment


class MomentFilter(filters.IsoDateTimeFilter):
    """Filter by a moment in ISO 8601."""

    field_class = _MomentField


class DecisionFilter(filters.FilterSet):
    """Filter of decisions by client, action, reason, rule, revision and time."""

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
    """Filter of runs by kind, state, requesting account, and time of the request."""

    kind = filters.ChoiceFilter(choices=RunKind.choices)
    state = filters.ChoiceFilter(choices=RunState.choices)
    actor = filters.CharFilter(lookup_expr="icontains")
    since = MomentFilter(field_name="created_at", lookup_expr="gte")
    until = MomentFilter(field_name="created_at", lookup_expr="lt")

    class Meta:
        model = ActionRun
        fields: list[str] = []


class AuditFilter(filters.FilterSet):
    """Filter of audit events by account, action, object, result, time, source and text."""

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
        """Return the events with `text` in any of their texts, or as request id."""
        return rows.filter(
            Q(actor__icontains=text)
            | Q(action__icontains=text)
            | Q(object__icontains=text)
            | Q(reason__icontains=text)
            | Q(message__icontains=text)
            | Q(request_id=text)
        )
