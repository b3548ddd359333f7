"""Small files beside the log on a failing disk: a failed write is reported and repeated."""

from __future__ import annotations

import errno
from pathlib import Path

from structlog.testing import capture_logs

from broker_core.connections.name_owners import ClientNameOwners
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
        raw.send_command(asked)
        assert (await raw.read_until("error"))["code"] == "not_kept"
        raw.send_command(asked)
        assert (await raw.read_until("processed"))["of"] == "subscribe"
        assert ("c", "d") in broker.engine.position_store.durables
        assert files.calls["rename .kept.json"] >= 2
        raw.close()


async def test_names_that_the_disk_refuses_are_written_the_next_second(tmp_path: Path) -> None:
    files = Failpoints(Failpoint("rename", at=1, errno=errno.EIO, name=".owners"))
    async with running_broker(tmp_path, files=files) as broker:
        path = broker.engine.journal.directory / "test-1.owners"
        broker.engine.owners.claim("mine", "ann")
        await until(path.exists)
        assert ClientNameOwners(path).owner_of("mine") == "ann"
        assert files.calls["rename .owners"] == 2, "the first was refused"


async def test_failing_spare_files_are_logged_once_and_again_after_a_success(
    tmp_path: Path,
) -> None:
    files = Failpoints(
        Failpoint("rename", at=1, times=2, errno=errno.ENOSPC, name=".spare."),
        Failpoint("rename", at=5, times=2, errno=errno.ENOSPC, name=".spare."),
    )
    with capture_logs() as logs:

        def told() -> int:
            return sum(line["event"] == "journal_chores_failed" for line in logs)

        async with running_broker(tmp_path, files=files) as broker:
            journal = broker.engine.journal

            def spares() -> int:
                broker.engine.tick()
                return len(list(journal.directory.glob("*.spare.*[0-9]")))

            await until(lambda: spares() == 2)
            await broker.engine.maintenance._preallocating
            assert told() == 1
            journal.set_options(journal.options._replace(preallocated=3))
            await until(lambda: spares() == 3)
            assert told() == 2
