"""Publisher sessions in a group: a name's newest client holds it, and nothing is acknowledged that is stored nowhere."""

from __future__ import annotations

from pathlib import Path

from tests.support.brokers import until
from tests.support.engines import running_engines
from tests.support.groups import Running, running_members
from tests.support.raw import RawClient

BODIES = [b'{"by":"first"}', b'{"by":"second"}']


def stored(member: Running, name: str) -> list[tuple[int, bytes]]:
    """The records of one publisher in a member's journal: its number and the body."""
    journal, found, at = member.journal, list[tuple[int, bytes]](), 1
    last = journal.durable_sequence
    while at <= last:
        for batch in journal.read(at, 1 << 20, last):
            if batch.publisher_name == name:
                found += zip(batch.publisher_sequences().tolist(), batch.bodies(), strict=True)
            at = batch.last_sequence + 1
    return found


async def test_two_clients_of_one_name_on_two_members_lose_nothing_that_was_acknowledged(
    tmp_path: Path,
) -> None:
    async with running_engines(tmp_path, 1) as engines:
        async with running_members(tmp_path, engines.urls, "a", "b") as (a, b):
            first = await RawClient.connect(a.broker, "feed")
            second = await RawClient.connect(b.broker, "feed")
            await first.publish("t", [BODIES[0]] * 3, first=1)
            await second.publish("t", [BODIES[1]] * 4, first=1)
            acknowledged = {0: 0, 1: 0}
            for number, client in enumerate((first, second)):
                while (frame := await client.command_frame())["c"] not in ("closing",):
                    if frame.get("ack") == "persisted":
                        acknowledged[number] = frame["sequence"]
                        break
            await until(lambda: a.journal.next_sequence == b.journal.next_sequence)
            bodies = [body for _, body in stored(b, "feed")]
            assert bodies.count(BODIES[0]) >= acknowledged[0]
            assert bodies.count(BODIES[1]) >= acknowledged[1]
            first.close()
            second.close()
