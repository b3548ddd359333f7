"""Columns of the clients' table: one list.

A row in it defines the column on the page, in its script, in the CSV, in the API's sort order and in the
schema.
"""

from __future__ import annotations

import csv
import io
import json
import re

import msgspec
import pytest
from django.test import Client
from drf_spectacular.generators import SchemaGenerator
from rest_framework.test import APIClient

from broker_core.documents import client_columns
from broker_core.documents.client_columns import CLIENT_COLUMNS, ClientColumn, ColumnType
from broker_core.documents.clients import ClientEntry, DeliveryState, Health
from console.templatetags.page_frame import DELIVERIES, HEALTHS
from tests.support.fake_broker import FakeBroker

WITHOUT = tuple(column for column in CLIENT_COLUMNS if column.key != "protocol")
ROW = ClientColumn("protocol", "Speaks", "What it speaks", ColumnType.TEXT, shown=True)


def found(api: APIClient, browser: Client) -> dict[str, bool]:
    """Return for each output whether it contains the new column."""
    page = browser.get("/clients/").content.decode()
    data = re.search(r'<script id="columns" type="application/json">(.*?)</script>', page)
    assert data is not None
    sent = csv.DictReader(io.StringIO(api.get("/api/v1/clients?format=csv").content.decode()))
    schema = SchemaGenerator(api_version="v1").get_schema(request=None, public=True)
    (sort,) = [
        one for one in schema["paths"]["/api/v1/clients"]["get"]["parameters"] if one["name"] == "sort"
    ]
    return {
        "page": "Speaks" in page.partition("<thead>")[2].partition("</thead>")[0],
        "script": {
            "key": "protocol",
            "label": "Speaks",
            "kind": "text",
            "sortable": True,
            "numeric": False,
            "drawn": True,
        }
        in json.loads(data[1]),
        "csv": next(sent).get("protocol") == "native",
        "order": api.get("/api/v1/clients", {"sort": "-protocol"}).status_code == 200,
        "schema": {"protocol", "-protocol"} <= set(sort["schema"]["enum"]),
    }


@pytest.mark.parametrize(
    ("listed", "there"), [((*WITHOUT, ROW), True), (WITHOUT, False)], ids=["with", "without"]
)
def test_a_row_of_the_list_is_enough(
    listed: tuple[ClientColumn, ...],
    there: bool,
    api: APIClient,
    operator: object,
    broker: FakeBroker,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(client_columns, "CLIENT_COLUMNS", listed)
    browser = Client()
    browser.force_login(operator)  # type: ignore[arg-type]
    assert found(api, browser) == dict.fromkeys(("page", "script", "csv", "order", "schema"), there)


def test_every_field_of_a_client_is_a_column_and_the_other_way_round() -> None:
    assert sorted(client_columns.csv_columns()) == sorted(
        field.encode_name for field in msgspec.structs.fields(ClientEntry)
    )
    assert len({column.key for column in CLIENT_COLUMNS}) == len(CLIENT_COLUMNS)


def test_a_column_that_somebody_chose_is_drawn_besides_the_usual_ones(
    operator: object, broker: FakeBroker
) -> None:
    browser = Client()
    browser.force_login(operator)  # type: ignore[arg-type]
    head = (
        browser.get("/clients/?columns=remote,subscriptions,nonsense")
        .content.decode()
        .partition("</thead>")[0]
    )
    assert 'data-key="remote"' in head and 'data-key="health"' in head
    assert 'data-key="subscriptions"' not in head


def test_every_delivery_and_health_has_a_word_an_icon_and_what_it_means() -> None:
    assert list(DELIVERIES) == list(DeliveryState) and list(HEALTHS) == list(Health)
    assert all(one.word and one.icon and one.help for one in (*DELIVERIES.values(), *HEALTHS.values()))
