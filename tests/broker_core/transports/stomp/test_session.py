"""STOMP clients of a real broker, over real sockets."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker_core.client import AsyncClient
from tests.support.brokers import address_of, ask, running_broker, until
from tests.support.stomp_client import stomp_client, stomp_policy


@pytest.mark.parametrize("version", ["1.0", "1.1", "1.2"])
async def test_what_is_sent_with_a_receipt_is_on_disk_and_delivered_as_it_was(
    tmp_path: Path, version: str
) -> None:
    async with running_broker(tmp_path, stomp_policy()) as broker:
        async with stomp_client(broker, version) as client:
            await client.send_with_receipt("SUBSCRIBE", id="s1", destination="/topic/orders.>")
            client.send(
                "SEND",
                b"{}",
                destination="/topic/orders/eu",
                content_type="application/json",
                foo="a b",
                receipt="r",
            )
            receipt, message = sorted([await client.read(), await client.read()], reverse=True)
            assert receipt.headers["receipt-id"] == "r"
            assert message.body == b"{}"
            assert broker.engine.frontier.durable >= int(message.headers["x-stream-offset"])
            assert (
                message.headers.items()
                >= {
                    "subscription": "s1",
                    "destination": "/topic/orders/eu",
                    "content-type": "application/json",
                    "foo": "a b",
                    "content-length": "2",
                    "redelivered": "false",
                }.items()
            )
            assert message.headers["message-id"] == message.headers["x-sluice-bookmark"]


async def test_native_and_stomp_clients_read_one_anothers_messages(tmp_path: Path) -> None:
    async with running_broker(tmp_path, stomp_policy()) as broker:
        async with stomp_client(broker) as client, AsyncClient(address_of(broker), "native") as native:
            await client.send_with_receipt("SUBSCRIBE", id="0", destination="/topic/a.*")
            subscription = await native.subscribe("a.*")
            await native.publish("a.b", b"1")
            assert (await client.read()).headers["destination"] == "/topic/a.b"
            client.send("SEND", b"2", destination="/topic/a.c", foo="x")
            messages = aiter(subscription)
            found = [await anext(messages) for _ in range(2)]
            assert [(message.topic, message.body) for message in found] == [("a.b", b"1"), ("a.c", b"2")]


@pytest.mark.parametrize(("asked", "promised"), [("20000,5000", 20_000), ("0,5000", None)])
async def test_a_client_is_listed_with_the_interval_in_which_it_promised_to_send(
    tmp_path: Path, asked: str, promised: int | None
) -> None:
    async with running_broker(tmp_path, stomp_policy()) as broker:
        async with stomp_client(broker, client_id="c", heart_beat=asked):
            (entry,) = await ask(broker, "clients")
            assert entry["heartbeat_ms"] == promised


async def test_client_acknowledges_cumulatively_within_its_window(tmp_path: Path) -> None:
    async with running_broker(tmp_path, stomp_policy()) as broker:
        async with stomp_client(broker) as client, stomp_client(broker) as publisher:
            await client.send_with_receipt(
                "SUBSCRIBE", id="s", destination="/topic/a", ack="client", prefetch_count=3
            )
            for number in range(7):
                publisher.send("SEND", b"%d" % number, destination="/topic/a")
            found = [await client.read() for _ in range(3)]
            assert [message.body for message in found] == [b"0", b"1", b"2"]
            client.send("ACK", id=found[1].headers["ack"])
            assert [(await client.read()).body for _ in range(2)] == [b"3", b"4"]


async def test_individual_acknowledgements_and_refusals_make_room_for_as_many(tmp_path: Path) -> None:
    async with running_broker(tmp_path, stomp_policy()) as broker:
        async with stomp_client(broker, client_id="c") as client, stomp_client(broker) as publisher:
            await client.send_with_receipt(
                "SUBSCRIBE", id="s", destination="/topic/a", ack="client-individual", prefetch_count=2
            )
            for number in range(4):
                publisher.send("SEND", b"%d" % number, destination="/topic/a")
            first, second = await client.read(), await client.read()
            client.send("NACK", id=second.headers["ack"])
            assert (await client.read()).body == b"2"
            client.send("ACK", id=first.headers["ack"])
            assert (await client.read()).body == b"3"
            account = broker.engine.roster.clients["c"].account
            assert {cause.value: what.messages for cause, what in account.discarded.items()} == {"refused": 1}
            assert account.acknowledged.messages == 1


@pytest.mark.parametrize("version", ["1.0", "1.1"])
async def test_older_versions_acknowledge_by_message_id(tmp_path: Path, version: str) -> None:
    async with running_broker(tmp_path, stomp_policy()) as broker:
        async with stomp_client(broker, version) as client:
            await client.send_with_receipt(
                "SUBSCRIBE", id="s", destination="/topic/a", ack="client", prefetch_count=1
            )
            client.send("SEND", b"1", destination="/topic/a")
            client.send("SEND", b"2", destination="/topic/a")
            found = await client.read()
            assert "ack" not in found.headers
            client.send("ACK", message_id=found.headers["message-id"], subscription="some")
            assert (await client.read()).body == b"2"


async def test_a_transaction_is_published_whole_at_its_commit(tmp_path: Path) -> None:
    async with running_broker(tmp_path, stomp_policy()) as broker:
        async with stomp_client(broker) as client:
            await client.send_with_receipt("SUBSCRIBE", id="s", destination="/topic/a")
            await client.send_with_receipt("BEGIN", transaction="t")
            client.send("SEND", b"1", destination="/topic/a", transaction="t", receipt="one")
            client.send("SEND", b"2", destination="/topic/a", transaction="t")
            client.send("SEND", b"0", destination="/topic/a")
            assert (await client.read()).body == b"0"
            client.send("COMMIT", transaction="t", receipt="all")
            found = [await client.read() for _ in range(4)]
            assert [one.body for one in found if one.command == "MESSAGE"] == [b"1", b"2"]
            assert [one.headers["receipt-id"] for one in found if one.command == "RECEIPT"] == ["one", "all"]
            offsets = [int(one.headers["x-stream-offset"]) for one in found if one.command == "MESSAGE"]
            assert offsets[1] == offsets[0] + 1
            client.send("BEGIN", transaction="u")
            client.send("SEND", b"3", destination="/topic/a", transaction="u")
            await client.send_with_receipt("ABORT", transaction="u")
            client.send("SEND", b"4", destination="/topic/a")
            assert (await client.read()).body == b"4"


async def test_an_unknown_bookmark_is_named_with_the_next_message(tmp_path: Path) -> None:
    async with (
        running_broker(tmp_path, stomp_policy()) as broker,
        stomp_client(broker, client_id="c") as client,
    ):
        for name, options in ("plain", {}), ("durable", {"activemq.subscriptionName": "d"}):
            await client.send_with_receipt(
                "SUBSCRIBE",
                id=name,
                destination=f"/topic/{name}",
                x_sluice_bookmark="test-1|99999999|",
                **options,
            )
            client.send("SEND", b"1", destination=f"/topic/{name}")
            message = await client.read()
            assert (message.body, message.headers["x-sluice-notice"]) == (b"1", "bookmark_unknown")
            client.send("SEND", b"2", destination=f"/topic/{name}")
            assert "x-sluice-notice" not in (await client.read()).headers


async def test_a_durable_subscription_goes_on_where_it_was(tmp_path: Path) -> None:
    async with running_broker(tmp_path, stomp_policy()) as broker:
        async with stomp_client(broker) as publisher:
            async with stomp_client(broker, client_id="app") as client:
                again = {"activemq.subscriptionName": "mine"}
                await client.send_with_receipt(
                    "SUBSCRIBE", id="s", destination="/topic/a", ack="client", **again
                )
                await publisher.send_with_receipt("SEND", b"1", destination="/topic/a")
                await publisher.send_with_receipt("SEND", b"2", destination="/topic/a")
                found = [await client.read() for _ in range(2)]
                assert [one.body for one in found] == [b"1", b"2"]
                await client.send_with_receipt("ACK", id=found[0].headers["ack"])
                await client.send_with_receipt("DISCONNECT")
            await publisher.send_with_receipt("SEND", b"3", destination="/topic/a")
            async with stomp_client(broker, client_id="app") as client:
                await client.send_with_receipt(
                    "SUBSCRIBE", id="other", destination="/topic/a", ack="client", **again
                )
                assert [(await client.read()).body for _ in range(2)] == [b"2", b"3"]
                await client.send_with_receipt("UNSUBSCRIBE", id="other", **again)
                assert broker.engine.durables.list_entries() == []


async def test_an_error_says_what_was_wrong_and_the_connection_ends(tmp_path: Path) -> None:
    async with running_broker(tmp_path, stomp_policy()) as broker:
        cases: list[tuple[str, dict[str, object], str]] = [
            ("SEND", {"destination": "/topic/a b"}, "bad_topic"),
            ("SEND", {}, "bad_command"),
            ("SEND", {"destination": "/topic/$SLUICE.x"}, "bad_topic"),
            ("SEND", {"destination": "/dsub/x"}, "not_supported"),
            ("SUBSCRIBE", {"destination": "/topic/a"}, "bad_command"),
            ("SUBSCRIBE", {"id": "1", "destination": "/topic/a..b"}, "bad_pattern"),
            ("SUBSCRIBE", {"id": "1", "destination": "/topic/a", "ack": "never"}, "bad_ack"),
            ("SUBSCRIBE", {"id": "1", "destination": "/topic/a", "selector": "a ="}, "bad_selector"),
            ("UNSUBSCRIBE", {"id": "1"}, "unknown_subscription"),
            ("ACK", {"id": "7-1"}, "bad_ack"),
            ("COMMIT", {"transaction": "t"}, "bad_transaction"),
            ("CONNECT", {"accept-version": "1.2"}, "bad_logon"),
            ("FETCH", {}, "unknown_command"),
        ]
        for command, headers, code in cases:
            async with stomp_client(broker) as client:
                client.send(command, **headers, receipt="r")
                error = await client.read_error()
                assert error.headers["message"] == code, (command, headers, error)
                assert code == "unknown_command" or error.headers["receipt-id"] == "r"


async def test_without_a_common_version_the_error_lists_the_supported_ones(tmp_path: Path) -> None:
    async with running_broker(tmp_path, stomp_policy()) as broker:
        async with stomp_client(broker, "") as client:
            client.send("CONNECT", accept_version="2.0", host="x")
            error = await client.read_error()
            assert (error.headers["message"], error.headers["version"]) == ("bad_logon", "1.0,1.1,1.2")


async def test_a_disconnect_is_answered_when_everything_before_it_is_done(tmp_path: Path) -> None:
    async with running_broker(tmp_path, stomp_policy()) as broker:
        async with stomp_client(broker, client_id="c") as client:
            client.send("SEND", b"1", destination="/topic/a", receipt="first")
            client.send("DISCONNECT", receipt="last")
            assert [(await client.read()).headers["receipt-id"] for _ in range(2)] == ["first", "last"]
            with pytest.raises(EOFError):
                await client.read()
            await until(lambda: "c" not in broker.engine.roster.clients)


async def test_a_client_closed_by_an_operator_gets_a_bookmark_and_can_resume(
    tmp_path: Path,
) -> None:
    async with running_broker(tmp_path, stomp_policy()) as broker:
        async with stomp_client(broker, client_id="c") as client, stomp_client(broker) as publisher:
            await client.send_with_receipt(
                "SUBSCRIBE", id="s", destination="/topic/a", ack="client", prefetch_count=2
            )
            for number in range(5):
                await publisher.send_with_receipt("SEND", b"%d" % number, destination="/topic/a")
            first, _ = await client.read(), await client.read()
            client.send("ACK", id=first.headers["ack"], receipt="r")
            assert {(await client.read()).command for _ in range(2)} == {"RECEIPT", "MESSAGE"}
            await ask(broker, "disconnect", name="c", reason="tidying")
            error = await client.read_error()
            assert (error.headers["x-sluice-kept"], error.headers["x-sluice-lost"]) == ("4", "0")
        async with stomp_client(broker, client_id="c") as client:
            client.send(
                "SUBSCRIBE",
                id="s",
                destination="/topic/a",
                x_sluice_bookmark=error.headers["x-sluice-resume-bookmark"],
            )
            assert [(await client.read()).body for _ in range(4)] == [b"1", b"2", b"3", b"4"]


async def test_a_replay_starts_where_it_is_asked_to(tmp_path: Path) -> None:
    async with running_broker(tmp_path, stomp_policy()) as broker:
        async with stomp_client(broker) as client:
            for number in range(5):
                await client.send_with_receipt("SEND", b"%d" % number, destination="/topic/a")
            first = broker.engine.frontier.durable - 4
            for id, asked, expected in (
                ("1", {"x-stream-offset": "first"}, [b"0", b"1", b"2", b"3", b"4"]),
                ("2", {"x-stream-offset": f"offset={first + 3}"}, [b"3", b"4"]),
                ("3", {"x-sluice-bookmark": f"test-1|{first + 1}|"}, [b"2", b"3", b"4"]),
                ("4", {"x-stream-offset": "first", "selector": "number BETWEEN 1 AND 2"}, []),
            ):
                client.send("SUBSCRIBE", id=id, destination="/topic/a", **asked)
                assert [(await client.read()).body for _ in expected] == expected
                await client.send_with_receipt("UNSUBSCRIBE", id=id)


async def test_a_selector_is_over_headers_and_goes_with_a_filter_over_bodies(tmp_path: Path) -> None:
    async with running_broker(tmp_path, stomp_policy()) as broker:
        async with stomp_client(broker) as client:
            await client.send_with_receipt(
                "SUBSCRIBE",
                id="s",
                destination="/topic/a",
                selector="color = 'red' AND size > 2",
                x_sluice_filter="/n < 3",
            )
            for number, color in enumerate(["red", "red", "blue", "red"]):
                client.send(
                    "SEND", b'{"n":%d}' % number, destination="/topic/a", color=color, size=number + 2
                )
            await client.send_with_receipt("SEND", b"{}", destination="/topic/b")
            client.send("SEND", b'{"n":0}', destination="/topic/a", color="red", size="10")
            assert [(await client.read()).body for _ in range(2)] == [b'{"n":1}', b'{"n":0}']


@pytest.mark.parametrize("ack", ["client", "client-individual"])
async def test_a_queue_keeps_what_nobody_has_acknowledged_for_its_next_consumer(
    tmp_path: Path, ack: str
) -> None:
    async with running_broker(tmp_path, stomp_policy()) as broker, stomp_client(broker) as publisher:
        for number in range(3):
            await publisher.send_with_receipt("SEND", b"%d" % number, destination="/queue/jobs")
        async with stomp_client(broker) as first:
            await first.send_with_receipt(
                "SUBSCRIBE", id="1", destination="/queue/jobs", ack=ack, prefetch_count=2
            )
            found = [await first.read() for _ in range(2)]
            assert [one.headers["redelivered"] for one in found] == ["false", "false"]
            assert found[0].headers["destination"] == "/queue/jobs"
            first.send("ACK", id=found[0].headers["ack"])
            assert (await first.read()).body == b"2"
        await until(lambda: not any(one.connected for one in broker.engine.durables.list_entries()))
        await publisher.send_with_receipt("SEND", b"3", destination="/amq/queue/jobs")
        async with stomp_client(broker) as second:
            await second.send_with_receipt("SUBSCRIBE", id="9", destination="jobs")
            found = [await second.read() for _ in range(3)]
            assert [(one.body, one.headers["redelivered"]) for one in found] == [
                (b"1", "true"),
                (b"2", "true"),
                (b"3", "false"),
            ]


async def test_a_durable_that_is_deleted_while_subscribed_is_forgotten_and_its_subscription_goes_on(
    tmp_path: Path,
) -> None:
    async with (
        running_broker(tmp_path, stomp_policy()) as broker,
        stomp_client(broker, client_id="c") as client,
    ):
        headers = {"id": "s", "destination": "/topic/a", "durable_subscription_name": "d"}
        await client.send_with_receipt("SUBSCRIBE", **headers)
        client.send("SEND", b"1", destination="/topic/a")
        assert (await client.read()).body == b"1"
        assert list(broker.engine.durables.sent_upto) == [("c", "d")]
        await ask(broker, "durable_delete", client="c", name="d")
        client.send("SEND", b"2", destination="/topic/a")
        assert (await client.read()).body == b"2"
        assert broker.engine.durables.sent_upto == {}
        await client.send_with_receipt("UNSUBSCRIBE", **headers)
        assert broker.engine.durables.list_entries() == []


@pytest.mark.parametrize("subscribes", [False, True])
async def test_an_answer_comes_to_a_temporary_destination(tmp_path: Path, subscribes: bool) -> None:
    async with running_broker(tmp_path, stomp_policy()) as broker:
        async with stomp_client(broker) as asker, stomp_client(broker) as answerer:
            await answerer.send_with_receipt("SUBSCRIBE", id="s", destination="/topic/ask")
            if subscribes:
                await asker.send_with_receipt("SUBSCRIBE", id="mine", destination="/temp-queue/one")
            for number in range(3):
                asker.send("SEND", b"q%d" % number, destination="/topic/ask", reply_to="/temp-queue/one")
                question = await answerer.read()
                answerer.send("SEND", b"a" + question.body, destination=question.headers["reply-to"])
                answer = await asker.read()
                assert answer.body == b"aq%d" % number
                assert answer.headers["subscription"] == ("mine" if subscribes else "/temp-queue/one")
            if not subscribes:
                await asker.send_with_receipt("SUBSCRIBE", id="mine", destination="/temp-queue/one")
                asker.send("SEND", b"self", destination="/temp-queue/one")
                assert (await asker.read()).headers["subscription"] == "mine"
            answerer.send("SUBSCRIBE", id="other", destination="/temp-queue/one")  # its own of that name
            asker.send("SEND", b"last", destination="/temp-queue/one")
            assert (await asker.read()).body == b"last"
            await answerer.send_with_receipt("UNSUBSCRIBE", id="other")


async def test_a_transport_has_its_own_largest_body_and_says_so(tmp_path: Path) -> None:
    async with running_broker(tmp_path, stomp_policy(max_body=2_048)) as broker:
        async with stomp_client(broker, client_id="app") as client:
            await client.send_with_receipt("SEND", b"x" * 2_048, destination="/topic/a", content_length=2_048)
            said = {one["setting"]: one for one in await ask(broker, "effective", name="app")}
            assert (said["stomp.max_body"]["value"], said["stomp.max_body"]["origin"]) == (
                2_048,
                "transport stomp",
            )
            assert (said["stomp.resume"]["value"], said["stomp.resume"]["origin"]) == ("now", "default")
            client.send("SEND", b"", destination="/topic/a", content_length=2_049, receipt="long")
            error = await client.read_error()
            assert (error.headers["message"], error.headers["receipt-id"]) == ("frame_too_large", "long")
