"""Create a golden directory of today's format.

    python -m tests.durability.make_golden tests/durability/golden/<name>

Run it once for each released format and commit the result; never repeat it for the same format. A broker
stores 900 messages of two publishers, a durable subscription and a managed replay, and is stopped. Then parts
of its log are archived, compressed and removed. The client's stores are beside it. test_golden.py reads all
of it with the current code.
"""

from __future__ import annotations

import asyncio
import shutil
import sys
import tempfile
from pathlib import Path

from broker_core.client import AsyncClient, FileBookmarkStore, FilePublishStore
from broker_core.journal.appender import JournalOptions
from broker_core.journal.journal import Journal
from broker_core.journal.segment_copies import compress_segment, copy_segment
from tests.torture.broker import INSTANCE, free_port, start
from tests.torture.history import body_of, topic_of

PUBLISHERS = ("anna", "berta")
MESSAGES = 450
"""Messages per publisher."""
READ = 100
"""Records acknowledged by the durable subscription, and processed by the reader with a bookmark store."""


async def fill(home: Path, stores: Path) -> None:
    """Do everything that clients do, to fill the directory."""
    port = free_port()
    process = start(home, port)
    assert await process.ready()
    address = f"tcp://127.0.0.1:{port}"
    async with AsyncClient(address, "reader", bookmark_store=FileBookmarkStore(stores / "marks")) as reader:
        durable = await reader.subscribe("t.>", durable="kept", ack="client", bookmark="0")
        marked = await reader.subscribe("t.>", id="marked", bookmark="MOST_RECENT")
        await reader.subscribe("t.>", id="replay", managed="replayed", bookmark="0", rate="1")
        for publisher in PUBLISHERS:
            async with AsyncClient(address, publisher) as client:
                for number in range(1, MESSAGES + 1):
                    await client.publish(topic_of(number), body_of(publisher, number))
                    if number % 10 == 0:
                        await client.flush()
        for subscription, is_done in ((durable, durable.ack), (marked, marked.done)):
            messages = subscription.messages()
            for _ in range(READ):
                is_done(await anext(messages))
        while not (home / "journal" / f"{INSTANCE}.kept.json").exists() or not _stored_positions(home):
            await asyncio.sleep(0.05)
        await asyncio.sleep(1.5)  # positions are saved each second
    process.kill()
    unsent = FilePublishStore(stores / "unsent")
    client = AsyncClient(address, "carla", publish_store=unsent)
    for number in (1, 2, 3):
        client._publisher.store.add(number, number, _batch(number))
    unsent.close()


def _stored_positions(home: Path) -> bool:
    content = (home / "journal" / f"{INSTANCE}.kept.json").read_text()
    return "kept" in content and "replayed" in content


def _batch(number: int) -> bytearray:
    from broker_core.batch import build_single_topic_batch

    return build_single_topic_batch("carla", topic_of(number), [body_of("carla", number)], number)


def run_retention(home: Path) -> None:
    """Do everything that operators do: remove the oldest segment, archive or compress others, or both."""
    archive = home / "archive"
    journal = Journal.open(home / "journal", INSTANCE, archive, JournalOptions(48 * 1024, 1))
    sealed = [one for one in journal.segments() if one.state != "current"]
    assert len(sealed) >= 5, len(sealed)
    journal.remove([sealed[0].name])
    for segment in sealed[1:3]:
        copy_segment(segment.path, archive / "prepared")
        journal.archive_swap(segment.name, archive / "prepared")
    for segment in sealed[2:4]:
        now = next(one for one in journal.segments() if one.first_sequence == segment.first_sequence)
        prepared = now.path.parent / "prepared.gz"
        compress_segment(now.path, prepared)
        journal.compress_swap(now.name, prepared)
    journal.close()


def main(target: Path) -> None:
    """Create the golden directory."""
    if target.exists():
        raise SystemExit(f"{target} is there already: a golden directory is never made anew")
    with tempfile.TemporaryDirectory(prefix="golden-") as place:
        home, stores = Path(place) / "home", Path(place) / "stores"
        stores.mkdir()
        asyncio.run(fill(home, stores))
        run_retention(home)
        for kind in ("journal", "archive"):
            for path in sorted((home / kind).iterdir()):
                if path.is_file() and ".spare." not in path.name and path.suffix != ".lock":
                    (target / kind).mkdir(parents=True, exist_ok=True)
                    shutil.copy(path, target / kind / path.name)
        shutil.copytree(stores, target / "stores")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
