"""Requests of the control plane: each has its own reply type, and a wrong one is refused by field."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from broker_core.broker import Broker
from broker_core.control.requests.dispatch_table import build_request_table
from broker_core.documents import requests
from broker_core.documents.clients import ClientEntry
from broker_core.documents.requests import Request, answer_type, request_name
from tests.support.brokers import ask, running_broker

POLICY = '{"do":"preview","policy":'


async def refused_field(broker: Broker, do: str, **fields: Any) -> dict[str, Any]:
    with pytest.raises(AssertionError) as told:
        await ask(broker, do, **fields)
    error: dict[str, Any] = told.value.args[0]["error"]
    return error


@pytest.mark.parametrize(
    ("do", "fields", "field"),
    [
        ("clients_page", {"offset": -1}, "offset"),
        ("clients_page", {"limit": True}, "limit"),
        ("clients_page", {"patterns": ["a", 3]}, "patterns"),
        ("clients_page", {"shoe_size": 44}, "shoe_size"),
        ("client", {}, "name"),
        ("client", {"name": ""}, "name"),
        ("client", {"name": "x" * 65}, "name"),
        ("disconnect", {"name": "x"}, "reason"),
        ("journal_plan", {"action": "burn", "age_s": 1}, "action"),
        ("journal_plan", {"action": "remove", "age_s": -1}, "age_s"),
        ("journal_remove", {"names": "all", "age_s": 1}, "names"),
        ("browse", {"topic": "t", "limit": 0}, "limit"),
        ("apply", {}, "policy"),
        ("dance", {}, "do"),
    ],
)
async def test_what_can_not_be_used_is_named(
    tmp_path: Path, do: str, fields: dict[str, Any], field: str
) -> None:
    async with running_broker(tmp_path) as broker:
        error = await refused_field(broker, do, **fields)
    assert (error["code"], error["details"]["field"]) == ("bad_request", field)
    assert field in error["message"] or field == "do"


async def test_every_request_has_somebody_who_answers_it(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker:
        assert set(broker.control._handlers) == set(Request.__subclasses__())


async def test_answers_are_what_their_requests_say(tmp_path: Path) -> None:
    """Requests that need no data in the broker are sent over the wire."""
    asked: list[Request[Any]] = [
        requests.GetStatus(),
        requests.GetSnapshot(),
        requests.ListClients(),
        requests.PageClients(),
        requests.ListDecisions(),
        requests.ListLosses(),
        requests.ListDurables(),
        requests.ListReplays(),
        requests.ListJournals(),
        requests.PlanJournals(action="archive", age_s=0.5),
        requests.BrowseMessages(topic=">"),
        requests.PublishMessage(topic="t", data=[1]),
        requests.CreateReplay(name="r", client="c", topic="t"),
        requests.CancelReplay(name="r"),
        requests.ForgetReplay(name="r"),
    ]
    async with running_broker(tmp_path) as broker:
        for one in asked:
            fields = {key: value for key, value in msgspec.to_builtins(one).items() if key != "do"}
            msgspec.convert(await ask(broker, request_name(one), **fields), answer_type(type(one)))


def test_a_method_that_answers_something_else_is_no_handler() -> None:
    class InvalidRequest:
        async def client(self, asked: requests.GetClient) -> list[ClientEntry]:
            return []

    with pytest.raises(TypeError, match="GetClient"):
        build_request_table(InvalidRequest())


def test_a_request_answered_twice_is_refused() -> None:
    class ValidRequest:
        async def status(self, asked: requests.GetClient) -> ClientEntry:
            raise NotImplementedError

    with pytest.raises(TypeError, match="twice"):
        build_request_table(ValidRequest(), ValidRequest())
