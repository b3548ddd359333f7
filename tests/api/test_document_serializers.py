"""Serializers generated from document types: one for each type, with every field."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from rest_framework import serializers
from rest_framework.test import APIClient

from api.document_serializers import serializer_for
from broker_core.documents import clients, instance, journals, replays, system_records
from broker_core.documents.base import Document
from broker_core.documents.clients import ClientEntry, EffectiveSetting, ForecastEntry
from tests.support.fake_broker import FakeBroker

MODULES = (clients, instance, journals, journals, instance, system_records, replays)
DOCUMENTS = sorted(
    {
        one
        for module in MODULES
        for one in vars(module).values()
        if isinstance(one, type) and issubclass(one, Document)
    }
    - {Document},
    key=lambda one: one.__name__,
)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda one: one.__name__)
def test_every_document_has_a_serializer_with_all_its_fields(document: type[Document]) -> None:
    made = serializer_for(document)()
    assert list(made.fields) == [field.encode_name for field in msgspec.structs.fields(document)]
    for field in msgspec.structs.fields(document):
        assert made.fields[field.encode_name].required == field.required


def test_null_help_and_choices_come_from_the_struct() -> None:
    fields: Any = serializer_for(ClientEntry)().fields
    assert fields["offlined_since"].allow_null and not fields["name"].allow_null
    assert fields["caught_up_in_s"].help_text.startswith("Estimated seconds until nothing waits")
    assert list(fields["health"].choices) == [one.value for one in clients.Health]
    assert isinstance(fields["subscriptions"], serializers.ListSerializer)
    assert fields["gone"].child.__class__ is serializers.IntegerField


def test_a_field_nobody_can_describe_is_not_left_out() -> None:
    class Odd(Document, frozen=True, kw_only=True):
        moments: set[int]

    with pytest.raises(TypeError, match="describes"):
        serializer_for(Odd)


def test_what_the_api_answers_is_the_document(api: APIClient, broker: FakeBroker) -> None:
    answer = api.get("/api/v1/clients/board-jfk").json()
    assert msgspec.convert(answer, ClientEntry) == broker.clients[0]
    assert set(answer) == {field.encode_name for field in msgspec.structs.fields(ClientEntry)}


def test_how_near_each_rule_is_comes_with_the_time_or_the_reason_why_there_is_none(
    api: APIClient, broker: FakeBroker
) -> None:
    found = msgspec.convert(api.get("/api/v1/clients/board-jfk/forecasts").json(), list[ForecastEntry])
    assert [(one.rule, one.fires_in_ms, one.why_none, one.subscription) for one in found] == [
        ("amps.client_max_capacity.disk", 10_000, "", ""),
        ("qpid.depth", None, "none of the limit is used", "sub-1"),
    ]
    assert api.get("/api/v1/clients/nobody/forecasts").status_code == 404


def test_the_settings_in_force_come_with_where_they_are_set(api: APIClient, broker: FakeBroker) -> None:
    found = msgspec.convert(api.get("/api/v1/clients/board-jfk/effective").json(), list[EffectiveSetting])
    assert [(one.setting, one.value, one.origin) for one in found][:2] == [
        ("amps.message_memory_limit", None, "default"),
        ("amps.client_max_capacity", 50, "instance"),
    ]
    assert api.get("/api/v1/clients/nobody/effective").status_code == 404
