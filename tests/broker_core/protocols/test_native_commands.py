"""Commands and replies: valid forms, and errors by code and field."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_core.batch import Batch, build_batch, stamp_header
from broker_core.errors import ClientError
from broker_core.protocols import commands, replies
from broker_core.protocols.commands import parse_command
from broker_core.protocols.names import check_topic
from broker_core.protocols.native import encode_command
from broker_core.protocols.replies import parse_reply
from broker_core.protocols.text_mode import encode_messages, encode_text
from broker_core.subscriptions.topics import TopicPattern


def test_each_command_is_read_into_its_struct() -> None:
    logon = parse_command(
        b'{"c":"logon","name":"screen-1","user":"u","password":"p","heartbeat_ms":5000,"version":1}'
    )
    assert isinstance(logon, commands.Logon)
    assert (logon.name, logon.heartbeat_ms) == ("screen-1", 5000)
    subscribe = parse_command(b'{"c":"subscribe","id":"s","topic":"a.>","filter":"/x > 1","bookmark":"0"}')
    assert subscribe == commands.Subscribe(id="s", topic="a.>", filter="/x > 1", bookmark="0")
    assert parse_command('{"c":"unsubscribe","id":"s"}') == commands.Unsubscribe(id="s")
    assert parse_command('{"c":"heartbeat"}') == commands.ClientHeartbeat()
    assert parse_command('{"c":"flush","id":"1"}') == commands.Flush(id="1")


def test_published_json_keeps_the_bytes_it_was_written_with() -> None:
    command = parse_command(
        '{"c":"publish","topic":"a.b","data": { "x" : 1.50 },"ack":["persisted"],"sequence":7}'
    )
    assert isinstance(command, commands.Publish)
    assert command.body() == b'{ "x" : 1.50 }'
    assert (command.sequence, command.ack) == (7, ["persisted"])
    null = parse_command('{"c":"publish","topic":"a","data":null}')
    assert isinstance(null, commands.Publish)
    assert null.body() == b"null"
    text = parse_command('{"c":"publish","topic":"a","text":"grüezi"}')
    assert isinstance(text, commands.Publish)
    assert text.body() == "grüezi".encode()


@pytest.mark.parametrize(
    ("text", "code", "field"),
    [
        ('{"c":"nope","id":"3"}', "unknown_command", "c"),
        ('{"c":5}', "unknown_command", "c"),
        ('{"topic":"a"}', "bad_command", "c"),
        ('{"c":"publish","data":1}', "bad_command", "topic"),
        ('{"c":"publish","topic":3,"data":1}', "bad_command", "topic"),
        ('{"c":"publish","topic":"a"}', "bad_command", "data"),
        ('{"c":"publish","topic":"a","data":1,"text":"x"}', "bad_command", "data"),
        ('{"c":"publish","topic":"a","data":1,"sequence":0}', "bad_command", "sequence"),
        ('{"c":"subscribe","id":"1","topic":"a","bookmrk":"0"}', "bad_command", "bookmrk"),
        ('{"c":"subscribe","id":"","topic":"a"}', "bad_command", "id"),
        ('{"c":"logon","name":"a","heartbeat_ms":1}', "bad_command", "heartbeat_ms"),
        ('{"c":"logon","name":"a","version":2}', "bad_logon", "version"),
    ],
)
def test_a_wrong_command_names_the_field(text: str, code: str, field: str) -> None:
    with pytest.raises(ClientError) as caught:
        parse_command(text)
    assert (caught.value.code, caught.value.details.get("field")) == (code, field)
    assert caught.value.fix


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"{",
        b"[1]",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"c":"logon","name":%b%b}' % (b"[" * 50_000, b"]" * 50_000),
        b'{"c":%b%b}' % (b"[" * 50_000, b"]" * 50_000),
        b'"logon"',
        b'{"c":"logon",}',
        b'{"c":"publish","topic":"a","text":"\\ud800"}',
    ],
)
def test_what_is_not_a_json_object_is_a_bad_command(payload: bytes) -> None:
    with pytest.raises(ClientError) as caught:
        parse_command(payload)
    assert caught.value.code == "bad_command"


@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_any_payload_is_a_command_or_a_named_error(payload: bytes) -> None:
    try:
        parse_command(payload)
    except ClientError as error:
        assert error.code in ("bad_command", "unknown_command")


@given(
    st.dictionaries(
        st.sampled_from(["c", "id", "name", "topic", "data", "filter"]),
        st.none() | st.text(max_size=5) | st.integers() | st.sampled_from(["logon", "publish"]),
    )
)
def test_any_object_is_a_command_or_a_named_error(fields: dict[str, object]) -> None:
    try:
        parse_command(json.dumps(fields))
    except ClientError as error:
        assert error.code in ("bad_command", "unknown_command", "bad_topic", "bad_client_name")


def test_an_error_repeats_the_commands_name_and_id() -> None:
    with pytest.raises(ClientError) as caught:
        parse_command('{"c":"publish","topic":"a..b","data":1,"id":"x"}')
    reply = replies.error_reply(caught.value)
    assert (reply.code, reply.of, reply.id) == ("bad_topic", "publish", "x")
    assert "c" not in reply.details


@pytest.mark.parametrize(
    "topic",
    [
        "",
        "a b",
        "a\n",
        "a..b",
        ".a",
        "a.",
        "a.*",
        "a*b",
        "a.b>c",
        ">",
        "~a",
        "$SLUICE.x",
        "a" * 256,
        "é" * 128,
        "a\x00",
        "\ud800",
    ],
)
def test_topics_that_cannot_be_published_to(topic: str) -> None:
    with pytest.raises(ClientError) as caught:
        check_topic(topic)
    assert caught.value.code == "bad_topic"


def test_topics_that_can() -> None:
    for topic in ("a", "orders.eu.2026", "é.ü", "a~b", "a" * 255):
        assert check_topic(topic) == topic
    assert check_topic("$SLUICE.clients", reserved=True)


@given(st.text(st.sampled_from("ab.*>~$é "), min_size=1, max_size=8))
def test_every_topic_that_can_be_published_to_is_a_pattern_that_names_it_alone(topic: str) -> None:
    try:
        check_topic(topic)
    except ClientError:
        return
    pattern = TopicPattern.parse(topic)
    assert pattern.exact == topic
    assert pattern.matches(topic)


def test_secrets_stay_out_of_a_logons_text() -> None:
    assert "hunter2" not in repr(commands.Logon(name="a", password="hunter2", token="hunter2"))


@pytest.mark.parametrize(
    "reply",
    [
        replies.persisted_ack(9),
        replies.processed_ack(3, 5),
        replies.BrokerHeartbeat(),
        replies.GapNotice(id="s", first="1", last="4", why="gone"),
        replies.DecisionNotice(
            code="slow_client_age", observed=5, limit=4, unit="ms", resume="i|3|", retry_after_ms=100
        ),
        replies.ClosingNotice(code="shutting_down", message="bye"),
        replies.ErrorReply(code="bad_filter", of="subscribe", id="s"),
    ],
)
def test_a_reply_reads_back_as_it_was_written(reply: replies.Reply) -> None:
    assert parse_reply(encode_command(reply)[8:]) == reply
    assert parse_reply(encode_text(reply)) == reply


def test_a_client_ignores_what_a_newer_broker_adds() -> None:
    assert parse_reply(b'{"c":"ack","ack":"persisted","sequence":5,"new":1}') == replies.persisted_ack(5)
    assert parse_reply(b'{"c":"weather","sun":true}') is None
    for broken in (b"", b"[]", b'{"c":"ack"}', b'{"c":"ack","ack":5}', b"\xff"):
        with pytest.raises(ClientError):
            parse_reply(broken)


def test_text_mode_gives_json_as_it_is_text_as_a_string_and_bytes_as_base64() -> None:
    buf = build_batch("p", ["a", "b", "b"], [b'{"x": 1.50}', b"plain", b"\xff\x00"])
    stamp_header(buf, origin=1, epoch=1, first_sequence=41, accepted_at=1)
    first, second, third = encode_messages(Batch.parse(buf), "sub", "inst")
    assert first == '{"c":"message","sub":"sub","topic":"a","bookmark":"inst|41|","data":{"x": 1.50}}'
    assert json.loads(second)["data"] == "plain"
    assert json.loads(third) == {
        "c": "message",
        "sub": "sub",
        "topic": "b",
        "bookmark": "inst|43|",
        "data": "/wA=",
        "encoding": "base64",
    }


def test_text_mode_of_what_no_journal_keeps_has_no_bookmark() -> None:
    batch = Batch.parse(build_batch("p", ["a"], [b"1"]))
    assert "bookmark" not in json.loads(encode_messages(batch, "s", "inst")[0])


def test_a_text_says_when_the_record_was_accepted_if_that_is_asked_for() -> None:
    buf = build_batch("p", ["a"], [b"1"])
    stamp_header(buf, origin=1, epoch=1, first_sequence=7, accepted_at=1_795_268_700_250_000_999)
    batch = Batch.parse(buf)
    assert "timestamp" not in json.loads(encode_messages(batch, "s", "inst")[0])
    (text,) = encode_messages(batch, "s", "inst", timestamp=True)
    assert json.loads(text)["timestamp"] == "20261121T134500.250000999Z"
