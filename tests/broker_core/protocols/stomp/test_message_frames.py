"""MESSAGE frames: a reader of any version gets the content of the batch, from any publisher."""

from __future__ import annotations

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from broker_core import batch as batches
from broker_core import headers as record_headers
from broker_core.batch import Batch
from broker_core.headers import unescape
from broker_core.protocols.stomp.frames import StompVersion
from broker_core.protocols.stomp.message_frames import (
    OMITTED_HEADERS,
    MessageFrames,
    MessageTailCache,
    build_ack_frames,
    build_frames,
    mark_redelivered,
    parse_ack_id,
)

LETTERS = st.characters(blacklist_categories=["Cs"], blacklist_characters="\0")
NAMES = st.text(LETTERS, min_size=1, max_size=8).filter(lambda name: name not in OMITTED_HEADERS)
RECORDS = st.lists(
    st.tuples(
        st.sampled_from(["a", "a.b", "queue.q"]),
        st.binary(max_size=30),
        st.dictionaries(NAMES, st.text(LETTERS, max_size=8), max_size=3),
    ),
    min_size=1,
    max_size=6,
)


def batch_of(records: list[tuple[str, bytes, dict[str, str]]], first: int = 7) -> Batch:
    lines = [record_headers.encode(headers.items()) for _, _, headers in records]
    made = Batch.parse(
        batches.build_batch("p", [one[0] for one in records], [one[1] for one in records], lines)
    )
    made.stamp(origin=1, epoch=1, first_sequence=first, accepted_at=1_795_000_000_123_456_789)
    return made


def read(data: bytes, version: StompVersion) -> list[tuple[dict[str, str], bytes]]:
    """The frames, by their content-length."""
    found, at = [], 0
    while at < len(data):
        head, _, _ = data[at:].partition(b"\n\n")
        command, *lines = head.decode().split("\n")
        assert command == "MESSAGE"
        headers: dict[str, str] = {}
        for line in lines:
            name, colon, value = line.partition(":")
            assert colon
            known = {StompVersion.V12: "nrc\\", StompVersion.V11: "nc\\", StompVersion.V10: ""}[version]
            headers.setdefault(
                unescape(name, known) if known else name, unescape(value, known) if known else value
            )
        body_at = at + len(head) + 2
        end = body_at + int(headers["content-length"])
        assert data[end] == 0
        found.append((headers, data[body_at:end]))
        at = end + 1
    return found


def parsed_messages(frames: MessageFrames, most: int) -> list[bytes]:
    slices, left = [], [frames]
    while left:
        part, rest = left.pop().take(most)
        slices.append(part)
        left += [rest] if rest is not None else []
    return slices


@given(RECORDS, st.sampled_from([0, 7]), st.integers(1, 400))
def test_what_is_read_is_what_was_published(
    records: list[tuple[str, bytes, dict[str, str]]], first: int, most: int
) -> None:
    tails = MessageTailCache("here").tails_of_batch(batch_of(records, first), StompVersion.V12, False)
    frames = build_frames(b"s\\c1", tails)
    slices = parsed_messages(frames, most)
    assert sum(map(len, slices)) == frames.nbytes
    found = [one for part in slices for one in read(part, StompVersion.V12)]  # each slice is whole frames
    for number, ((topic, body, own), (headers, got)) in enumerate(zip(records, found, strict=True)):
        place = "/queue/q" if topic == "queue.q" else f"/topic/{topic}"
        assert (got, headers["subscription"], headers["destination"]) == (body, "s:1", place)
        assert headers.items() >= own.items()
        if first:
            assert headers["message-id"] == headers["x-sluice-bookmark"] == f"here|{7 + number}|"
        else:
            assert "x-sluice-bookmark" not in headers
    assert len({headers["message-id"] for headers, _ in found}) == len(records)


@given(RECORDS, st.sampled_from(list(StompVersion)))
@example([("a", b"", {"path": "C:\\readme"})], StompVersion.V11)
def test_every_version_can_read_and_acknowledge_its_messages(
    records: list[tuple[str, bytes, dict[str, str]]], version: StompVersion
) -> None:
    header = b"ack" if version is StompVersion.V12 else b"message-id"
    numbered = version is not StompVersion.V12
    tails = MessageTailCache("here").tails_of_batch(batch_of(records, 0), version, numbered)
    data, _ = build_ack_frames(b"s", "0af9", 3, 11, tails, header).take(1 << 20)
    found = read(data, version)
    assert [body for _, body in found] == [body for _, body, _ in records]
    names = [headers["ack" if version is StompVersion.V12 else "message-id"] for headers, _ in found]
    assert [parse_ack_id(name) for name in names] == [
        ("0af9", 3, 11 + number) for number in range(len(records))
    ]


@given(
    st.one_of(
        st.binary(max_size=60),
        st.sampled_from(
            [
                b"content-length:0\n",
                b"a:b\n\nMESSAGE\n",
                b"a:b\0\n",
                b"a:b",
                b"\n\n\0",
                b"a\n",
                b"x:y\ncontent-length:1\n",
                b"subscription:z\n",
            ]
        ),
    )
)
def test_a_foreign_publishers_headers_change_no_frame(lines: bytes) -> None:
    made = Batch.parse(batches.build_batch("p", ["t"] * 2, [b"body", b"next"], [lines, b""]))
    made.stamp(origin=1, epoch=1, first_sequence=1, accepted_at=1)
    data, _ = build_frames(b"s", MessageTailCache("here").tails_of_batch(made, StompVersion.V12, False)).take(
        1 << 20
    )
    found = read(data, StompVersion.V12)
    assert [(headers["subscription"], body) for headers, body in found] == [("s", b"body"), ("s", b"next")]


def test_a_batch_is_made_into_frames_once_for_all_of_its_subscribers() -> None:
    tails, batch = MessageTailCache("here"), batch_of([("a", b"x", {})])
    first = tails.tails_of_batch(batch, StompVersion.V12, False)
    assert tails.tails_of_batch(batch, StompVersion.V12, False) is first
    assert tails.tails_of_batch(batch, StompVersion.V12, True) is not first


def test_parts_of_an_unjournaled_batch_have_different_message_ids() -> None:
    whole = batch_of([("a", b"%d" % number, {}) for number in range(4)], 0)
    ids = list[str]()
    for rows in (np.array([0, 1]), np.array([2, 3])):
        tails = MessageTailCache("here").tails_of_batch(whole.select(rows), StompVersion.V12, False, rows)
        found = read(build_frames(b"s", tails).take(1 << 20)[0], StompVersion.V12)
        ids += [headers["message-id"] for headers, _ in found]
    assert len(set(ids)) == 4


def test_what_somebody_may_have_had_before_says_so() -> None:
    batch = batch_of([("a", b"x", {}), ("a", b"\nredelivered:false\n", {})])
    tails = mark_redelivered(
        MessageTailCache("here").tails_of_batch(batch, StompVersion.V12, True), [True, False]
    )
    found = read(build_frames(b"s", tails).take(1 << 20)[0], StompVersion.V12)
    assert [headers["redelivered"] for headers, _ in found] == ["true", "false"]
    assert found[1][1] == b"\nredelivered:false\n"


def test_ids_that_were_not_given_out_are_none() -> None:
    numbers = (
        "1",
        "a-1",
        "1-1",
        "-1-1",
        "g-1-1",
        "a-1-",
        "a-x-1",
        "a-1-1-1",
        "1|2",
        "a-١-1",
        "a-1-" + "1" * 99,
    )
    for text in ("", "-", "--", *numbers):
        assert parse_ack_id(text) is None
