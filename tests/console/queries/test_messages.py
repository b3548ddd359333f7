"""Message queries against a real broker: newest records, consecutive pages, and following with a filter."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from django.conf import settings

from broker_core.client import AsyncClient
from broker_core.documents.journals import BrowsedMessage
from broker_core.errors import SluiceError
from console.models import Instance
from console.queries import messages
from tests.support.broker_thread import BrokerThread, broker_thread
from tests.support.brokers import address_of, tcp_policy


@pytest.fixture
def real(instance: Instance, tmp_path: Path) -> Iterator[BrokerThread]:
    """Run a real broker on the control socket of the console's instance."""
    socket = Path(settings.SLUICE_RUN_DIRECTORY) / f"{instance.name}.sock"
    with broker_thread(tmp_path, tcp_policy(), socket) as broker:
        yield broker


def publish(real: BrokerThread, *bodies: tuple[str, object]) -> None:
    async def work() -> None:
        async with AsyncClient(address_of(real.broker), "p") as client:
            for topic, body in bodies:
                await client.publish(topic, body)
            await client.flush()

    real.run(work())


def numbers(found: list[BrowsedMessage]) -> list[object]:
    return [one.data["n"] for one in found if isinstance(one.data, dict)]


def test_the_newest_come_first_and_earlier_goes_on_without_a_gap(
    real: BrokerThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(messages, "MAX_RECORDS_PER_ANSWER", 16)
    rare = [("rare", {"n": n}) for n in range(6)]
    publish(real, *rare[:3], *(("often", {"n": n}) for n in range(300)), *rare[3:])
    seen: list[object] = []
    found = messages.newest_messages("often", limit=7)
    while True:
        seen += numbers(found.messages)
        if not found.earlier:
            break
        found = messages.newest_messages("often", before=found.earlier, limit=7)
    assert seen == list(range(299, -1, -1))
    assert numbers(messages.newest_messages("rare", limit=50).messages) == [5, 4, 3, 2, 1, 0]
    assert numbers(messages.newest_messages("often", filter="/n < 2", limit=5).messages) == [1, 0]


def test_searching_for_what_is_rare_ends_and_says_where_to_go_on(
    real: BrokerThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(messages, "MAX_REQUESTS", 2)
    publish(real, ("rare", {"n": 0}), *(("often", {"n": n}) for n in range(200)))
    found = messages.newest_messages("rare", limit=5)
    assert found.messages == [] and found.earlier and found.searched == 25
    for _ in range(9):
        if found.messages:
            break
        found = messages.newest_messages("rare", before=found.earlier, limit=5)
    assert numbers(found.messages) == [0]


def test_following_gives_each_once_and_says_what_passed(
    real: BrokerThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(messages, "MAX_FOLLOWED", 10)
    publish(real, ("t", {"n": -1}))
    begin = messages.follow_messages("t")
    assert begin.messages == []
    publish(real, *(("t", {"n": n}) for n in range(3)))
    come = messages.follow_messages("t", after=begin.after)
    assert (numbers(come.messages), come.passed) == ([2, 1, 0], 0)
    assert messages.follow_messages("t", after=come.after).messages == []
    publish(real, *(("t", {"n": n}) for n in range(50)))
    much = messages.follow_messages("t", after=come.after)
    assert numbers(much.messages) == list(range(9, -1, -1)) and much.passed >= 40
    assert messages.follow_messages("t", after=much.after).messages == []


def test_topics_are_those_of_the_newest_messages(real: BrokerThread) -> None:
    publish(real, ("a.x", 1), ("a.y", 1), ("a.y", 1), ("b", 1))
    assert {one.name: one.messages for one in messages.frequent_topics([">"])} == {"a.y": 2, "a.x": 1, "b": 1}
    assert messages.frequent_topics([">"])[0].name == "a.y"
    assert [one.name for one in messages.frequent_topics(["a.>"])] == ["a.y", "a.x"]


def test_an_empty_log_has_no_messages_and_a_bad_filter_is_said(real: BrokerThread) -> None:
    found = messages.newest_messages("t")
    assert (found.messages, found.earlier) == ([], "")
    publish(real, ("t", 1))
    with pytest.raises(SluiceError) as caught:
        messages.newest_messages("t", filter="/a >")
    assert caught.value.code == "bad_filter"
