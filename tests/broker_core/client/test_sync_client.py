"""The client without asyncio, and the command line on top of the asyncio one."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest

from broker_core.batch import Buffer
from broker_core.client import (
    AsyncClient,
    AsyncGroups,
    FileBookmarkStore,
    MemoryPublishStore,
    ReconnectPolicy,
    SyncClient,
    SyncGroups,
)
from broker_core.client.__main__ import main
from broker_core.client.sync_client import MAX_QUEUED
from broker_core.errors import ClientError, OperatorError, SluiceError
from tests.broker_core.client.fake_broker import FakeBroker
from tests.support.brokers import address_of, running_broker

QUICK = ReconnectPolicy(first_delay=0.001, longest_delay=0.01, first_connect_timeout=1.0)


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    """The fake broker on a loop in a thread of its own."""
    ready = threading.Event()
    made: list[FakeBroker] = []
    stop: list[asyncio.Event] = []

    async def serve() -> None:
        fake = FakeBroker()
        await fake.start()
        made.append(fake)
        stop.append(asyncio.Event())
        loops.append(asyncio.get_running_loop())
        ready.set()
        await stop[0].wait()
        await fake.stop()

    loops: list[asyncio.AbstractEventLoop] = []
    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert ready.wait(10)
    yield made[0]
    loops[0].call_soon_threadsafe(stop[0].set)
    thread.join(10)


def client(broker: FakeBroker, name: str = "s", **options: object) -> SyncClient:
    return SyncClient(broker.address, name, reconnect=QUICK, **options)


def test_everything_published_arrives_in_order(broker: FakeBroker) -> None:
    with client(broker, buffered=True) as publisher:
        for number in range(10_000):
            publisher.publish("a", str(number))
        publisher.publish_many("a", ["many", "more"])
        publisher.publish("a", "last")
        publisher.flush(10)
    assert broker.bodies == [*(str(number).encode() for number in range(10_000)), b"many", b"more", b"last"]
    assert len(broker.arrived) < 2_000


def test_several_threads_may_publish(broker: FakeBroker) -> None:
    with client(broker) as publisher:
        threads = [
            threading.Thread(target=lambda: [publisher.publish("a", b"x") for _ in range(500)])
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        publisher.flush(10)
    assert len(broker.bodies) == 2_000


def test_what_was_published_before_close_is_sent(broker: FakeBroker) -> None:
    with client(broker) as publisher:
        publisher.publish("a", "last words")
    with client(broker) as publisher:
        publisher.flush(10)
    assert broker.bodies == [b"last words"]


def test_a_refusal_is_raised_by_flush(broker: FakeBroker) -> None:
    with client(broker) as publisher:
        broker.refuse_next = ClientError("bad_topic", "Not here.")
        publisher.publish("a", b"x")
        with pytest.raises(ClientError):
            publisher.flush(10)
        with pytest.raises(ClientError):
            publisher.publish("not a topic", b"x")


def test_a_replay_and_most_recent(broker: FakeBroker, tmp_path: object) -> None:
    with client(broker) as publisher:
        publisher.publish_many("a", ["1", "2", "3"])
        publisher.flush(10)
    with client(broker, bookmark_store=FileBookmarkStore(f"{tmp_path}/marks")) as subscriber:
        subscription = subscriber.subscribe("a", bookmark="MOST_RECENT")
        messages = list(subscription.messages(until_completed=True))
        assert [message.body for message in messages] == [b"1", b"2", b"3"]
        assert subscription.completed
        subscription.done(messages[0])
    with client(broker, bookmark_store=FileBookmarkStore(f"{tmp_path}/marks")) as subscriber:
        again = subscriber.subscribe("a", bookmark="MOST_RECENT")
        assert [batch.bodies() for batch in again.batches(until_completed=True)] == [[b"2", b"3"]]


def test_a_reader_that_stops_within_a_batch_resumes_at_the_next_message(broker: FakeBroker) -> None:
    with client(broker) as publisher:
        for bodies in (["1", "2"], ["3"]):
            publisher.publish_many("a", bodies)
            publisher.flush(10)
    with client(broker) as subscriber:
        subscription = subscriber.subscribe("a", bookmark="0")
        for message in subscription:
            assert message.body == b"1"
            break
        assert next(iter(subscription)).body == b"2"
        assert [message.body for message in subscription.messages(until_completed=True)] == [b"3"]
        assert list(subscription.messages(until_completed=True)) == []


async def test_acknowledgements_of_a_program_without_asyncio(tmp_path: Path) -> None:
    """The window is two, so later deliveries show that acknowledgements were sent."""
    async with running_broker(tmp_path) as broker:

        def consume() -> list[bytes]:
            with SyncClient(address_of(broker), "c") as consumer:
                subscription = consumer.subscribe("t", ack="client", prefetch=2)
                consumer.publish_many("t", list("12345"))
                got = []
                for message in subscription:
                    got.append(message.body)
                    subscription.ack(message if len(got) < 4 else None)
                    if len(got) == 5:
                        break
                with pytest.raises(OperatorError, match="no acknowledgements"):
                    consumer.subscribe("u").ack()
                return got

        assert await asyncio.to_thread(consume) == [b"1", b"2", b"3", b"4", b"5"]


def test_a_broker_that_is_not_there_is_named_and_no_thread_is_left() -> None:
    before = threading.active_count()
    policy = ReconnectPolicy(first_delay=0.001, first_connect_timeout=0.01)
    with pytest.raises(OperatorError):
        SyncClient("tcp://127.0.0.1:1", "s", reconnect=policy).start()
    assert threading.active_count() == before
    with pytest.raises(OperatorError):
        SyncClient("tcp://127.0.0.1:1", "s").publish("a", b"x")


class FailingPublishStore(MemoryPublishStore):
    """A publish store that fails for batches with a certain body."""

    def add(self, first: int, last: int, batch: Buffer) -> None:
        if b"refused" in bytes(batch):
            raise OperatorError("store_failed", "The disk refused it.", "Make room.")
        super().add(first, last, batch)


def test_an_error_takes_only_its_own_messages_with_it(broker: FakeBroker) -> None:
    with client(broker, publish_store=FailingPublishStore(), batch_bytes=1, buffered=True) as publisher:
        with pytest.raises(ClientError) as error:
            publisher.publish("a", bytes(17 * 1024 * 1024))
        assert error.value.code == "frame_too_large"
        publisher.publish_many("a", ["1"])
        on_the_loop(publisher, lambda: [publisher.publish("a", body) for body in ("2", "refused", "3", "4")])
        with pytest.raises(OperatorError, match="store_failed"):
            publisher.flush(10)
        publisher.flush(10)
    assert broker.bodies == [b"1", b"2", b"3", b"4"]


def on_the_loop(publisher: SyncClient, work: Callable[[], object]) -> None:
    """Keep the client's loop busy until the block ends, so that all calls queue up."""
    done, busy = threading.Event(), threading.Event()
    publisher._loop.call_soon(lambda: (busy.set(), done.wait(10)))
    assert busy.wait(10)
    work()
    done.set()


def test_a_flush_whose_time_is_over_leaves_the_line_as_it_is(broker: FakeBroker) -> None:
    broker.hold_acks = True
    with client(broker, publish_store=MemoryPublishStore(1_000), batch_bytes=100, buffered=True) as publisher:
        flushes: list[Future[None]] = []

        def flush_and_publish() -> None:
            flushes.append(
                publisher._loop.submit(publisher.wait_flushed())
            )  # comes first, so it takes the line
            for number in range(100):
                publisher.publish("a", f"{number:0100}")

        on_the_loop(publisher, flush_and_publish)
        publisher._loop.call(asyncio.sleep(0))
        with pytest.raises(TimeoutError):
            flushes[0].result(0.05)
        flushes[0].cancel()
        broker.hold_acks = False
        broker.soon(broker.release)
        publisher.flush(10)
    assert [int(body) for body in broker.bodies] == list(range(100))


def test_publishing_raises_for_good_once_the_client_has_given_up(broker: FakeBroker) -> None:
    """Also with a full queue, and from several threads: each call raises every time, and none waits
    forever.
    """
    broker.hold_acks = True
    told: list[str] = []

    def publish_on(publisher: SyncClient) -> None:
        for _ in range(3):
            with pytest.raises(SluiceError) as error:
                while True:
                    publisher.publish("a", b"x" * 1_000)
            told.append(error.value.code)

    store = MemoryPublishStore(10_000)
    publisher = client(broker, publish_store=store, batch_bytes=1_000, buffered=True).start()
    threads = [threading.Thread(target=publish_on, args=(publisher,), daemon=True) for _ in range(3)]

    def fill() -> None:
        for _ in range(MAX_QUEUED):
            publisher.publish("a", b"x" * 1_000)

    on_the_loop(publisher, fill)
    publisher._loop.call(
        asyncio.sleep(0)
    )  # by now the whole line is taken, and its beginning fills the store
    fill()
    for thread in threads:
        thread.start()
    broker.refuse_logon = ClientError("bad_logon", "Not you.")
    broker.soon(broker.drop)
    for thread in threads:
        thread.join(10)
    with pytest.raises(OperatorError, match="unsent_messages"):
        publisher.close()
    assert told == ["bad_logon"] * 9


def test_it_offers_what_the_asyncio_clients_offer() -> None:
    def offered(kind: type) -> set[str]:
        return {name for name in vars(kind) | vars(kind.__base__) if not name.startswith("_")}

    for_links = {
        "publish_numbered_batch",
        "wait_closed",
        "disconnect",
        "store_in_file",
        "store_messages",
        "unsent",
    }
    assert offered(AsyncClient) - offered(SyncClient) == for_links
    assert offered(AsyncGroups) == offered(SyncGroups) - {"name"}


def test_publishing_without_a_start_and_after_the_end_takes_nothing(broker: FakeBroker) -> None:
    publisher = client(broker)
    for _ in range(2):
        with pytest.raises(OperatorError, match="client_closed"):
            publisher.publish("a", b"early")
    with publisher:
        publisher.flush(10)
        with pytest.raises(OperatorError, match="client_started"):
            publisher.start()
        publisher.publish("a", b"in time")
    for _ in range(2):
        with pytest.raises(OperatorError, match="client_closed"):
            publisher.publish("a", b"late")
    publisher.close()
    assert broker.bodies == [b"in time"]


def test_the_command_line_publishes_and_replays(
    broker: FakeBroker, capfdbinary: pytest.CaptureFixture[bytes], tmp_path: object
) -> None:
    assert main(["publish", "--address", broker.address, "a", '{"n":1}', "two"]) == 0
    marks = f"{tmp_path}/marks"
    replay = ["subscribe", "--address", broker.address, "a", "--replay-only", "--name", "screen"]
    capfdbinary.readouterr()
    assert main([*replay, "--bookmark", "0", "--format", "json"]) == 0
    lines = [json.loads(line) for line in capfdbinary.readouterr().out.splitlines()]
    assert [line["data"] for line in lines] == [{"n": 1}, "two"]
    assert main([*replay, "--bookmark", "MOST_RECENT", "--store", marks, "--count", "1"]) == 0
    assert capfdbinary.readouterr().out == b'{"n":1}\n'
    assert main([*replay, "--bookmark", "MOST_RECENT", "--store", marks, "--format", "line"]) == 0
    assert capfdbinary.readouterr().out == b"fake-1|2| a two\n"


def test_the_command_line_says_what_went_wrong(
    broker: FakeBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["subscribe", "--address", broker.address, "a", "--filter", "bad"]) == 1
    assert capsys.readouterr().err.startswith("bad_filter: It isn't a filter. Write one.")
    with pytest.raises(SystemExit):
        main(["subscribe", "a", "--replay-only"])
    with pytest.raises(SystemExit):
        main(["subscribe", "a", "--bookmark", "MOST_RECENT"])
    assert main(["publish", "--address", "nowhere", "a", "x"]) == 1
