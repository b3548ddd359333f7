from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from broker_core.bookmark import format_moment
from tests.support.brokers import ask, running_broker, until
from tests.support.stomp_client import stomp_client, stomp_policy


async def publish(broker: Any, *numbers: int, topic: str = "a.b") -> None:
    last = broker.engine.journal.next_sequence + len(numbers) - 1
    for number in numbers:
        await ask(broker, "publish", topic=topic, data={"n": number})
    await until(lambda: broker.engine.frontier.durable >= last)


def numbers(found: dict[str, Any]) -> list[int]:
    return [message["data"]["n"] for message in found["messages"]]


async def test_messages_are_found_by_topic_and_content_in_order(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker:
        await publish(broker, 1, 2, 3)
        await publish(broker, 9, topic="c")
        found = await ask(broker, "browse", topic="a.>")
        assert (numbers(found), found["complete"]) == ([1, 2, 3], True)
        assert found["messages"][0]["topic"] == "a.b"
        assert numbers(await ask(broker, "browse", topic="a.b", filter="/n > 1")) == [2, 3]
        assert numbers(await ask(broker, "browse", topic="nothing")) == []


async def test_going_on_after_next_misses_and_repeats_nothing(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker:
        await publish(broker, *range(7))
        seen, bookmark = [], "0"
        for _ in range(4):
            found = await ask(broker, "browse", topic="a.b", limit=2, bookmark=bookmark)
            seen += numbers(found)
            bookmark = found["next"]
        assert seen == list(range(7))
        assert found["complete"]


async def test_a_range_of_time_bounds_what_is_found(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker:
        await publish(broker, 1)
        later = broker.engine.clock.now_ns()
        await publish(broker, 2)
        assert numbers(await ask(broker, "browse", topic="a.b", to_ns=later)) == [1]
        assert numbers(await ask(broker, "browse", topic="a.b", from_ns=later)) == [2]
        assert numbers(await ask(broker, "browse", topic="a.b", bookmark=format_moment(later))) == [2]


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        ({"topic": "~("}, "bad_pattern"),
        ({"filter": "/n >"}, "bad_filter"),
        ({"bookmark": "elsewhere|3|"}, "bad_bookmark"),
        ({"limit": -1}, "bad_request"),
        ({"bookmark": "0|1|"}, "bad_bookmark"),
    ],
)
async def test_what_can_t_be_browsed_is_refused_by_name(
    asked: dict[str, Any], code: str, tmp_path: Path
) -> None:
    async with running_broker(tmp_path) as broker:
        with pytest.raises(AssertionError, match=code):
            await ask(broker, "browse", **{"topic": "a.b", **asked})


async def test_what_came_over_stomp_shows_its_headers_and_its_destination(tmp_path: Path) -> None:
    async with running_broker(tmp_path, stomp_policy()) as broker, stomp_client(broker) as client:
        await client.send_with_receipt("SEND", b"{}", destination="/topic/a/b", color="red", size=2)
        await client.send_with_receipt("SEND", b"{}", destination="/topic/a.b", color="blue")
        found = (await ask(broker, "browse", topic="a.b"))["messages"]
        assert [(one["destination"], one["headers"]) for one in found] == [
            ("/topic/a/b", {"color": "red", "size": "2"}),
            ("/topic/a.b", {"color": "blue"}),
        ]
        chosen = await ask(broker, "browse", topic="a.b", filter="[selector] size > 1")
        assert len(chosen["messages"]) == 1
