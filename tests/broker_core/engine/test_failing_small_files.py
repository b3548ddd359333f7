"""The small files beside the log are written through the broker's disk: where it refuses one, that is said and tried again."""

from __future__ import annotations

import errno
from pathlib import Path

from broker_core.connections.owners import Owners
from tests.support.brokers import running_broker, until
from tests.support.failpoints import Failpoint, Failpoints
from tests.support.raw import RawClient


async def test_a_durable_subscription_that_the_disk_refuses_is_refused_and_can_be_asked_for_again(
    tmp_path: Path,
) -> None:
    files = Failpoints(Failpoint("rename", at=1, errno=errno.EIO, name=".kept.json"))
    async with running_broker(tmp_path, files=files) as broker:
        raw = await RawClient.connect(broker, "c")
        asked = {"c": "subscribe", "id": "s", "topic": "a", "durable": "d"}
        raw.command(asked)
        assert (await raw.until("error"))["code"] == "not_kept"
        raw.command(asked)
        assert (await raw.until("processed"))["of"] == "subscribe"
        assert ("c", "d") in broker.engine.kept.durables
        assert files.calls["rename .kept.json"] >= 2
        raw.close()


async def test_names_that_the_disk_refuses_are_written_the_next_second(tmp_path: Path) -> None:
    files = Failpoints(Failpoint("rename", at=1, errno=errno.EIO, name=".owners"))
    async with running_broker(tmp_path, files=files) as broker:
        path = broker.engine.journal.directory / "test-1.owners"
        broker.engine.owners.claim("mine", "ann")
        await until(path.exists)
        assert Owners(path).of("mine") == "ann"
        assert files.calls["rename .owners"] == 2, "the first was refused"
