"""STOMP frames: parsed as each version defines, however the bytes are split, and refused by name."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_core import headers as record_headers
from broker_core.protocols.stomp.frames import (
    FrameLimits,
    StompFrame,
    StompFrameReader,
    StompVersion,
    encode_frame,
)
from broker_core.protocols.stomp.send_headers import StompHeaders

CONNECT = b"CONNECT\naccept-version:%b\nhost:here\n\n\0"
LETTERS = st.characters(blacklist_categories=["Cs"], blacklist_characters="\0")
TEXTS = st.text(LETTERS, max_size=20)
NAMES = st.text(LETTERS, min_size=1, max_size=20).filter(
    lambda name: name not in ("content-length", "receipt")
)
FRAMES = st.lists(
    st.builds(
        StompFrame,
        st.just("SEND"),
        st.dictionaries(NAMES, TEXTS, max_size=5).map(StompHeaders),
        st.binary(max_size=200),
        TEXTS | st.text("ab:\\\n\r", min_size=500, max_size=600),
    ),
    max_size=5,
)


def reader(version: StompVersion = StompVersion.V12, **limits: int) -> StompFrameReader:
    return StompFrameReader(FrameLimits(**limits), version)


def frame_with_receipt(frames: list[StompFrame], end: bytes = b"") -> bytes:
    """Return an encoded frame with a receipt among its headers."""
    parts = []
    for frame in frames:
        headers = list(frame.headers.items())
        if frame.receipt:
            headers.insert(len(headers) // 2, ("receipt", frame.receipt))
        parts.append(encode_frame(frame.command, headers, frame.body) + end)
    return b"".join(parts)


def bare(frames: list[StompFrame]) -> list[StompFrame]:
    """Without the header that the writer adds, and a receipt's, which a long head keeps."""
    added = ("content-length", "receipt")
    return [
        frame._replace(headers=StompHeaders((k, v) for k, v in frame.headers.items() if k not in added))
        for frame in frames
    ]


@given(FRAMES, st.sampled_from([b"", b"\n", b"\r\n\n"]))
def test_what_is_written_is_read_again(frames: list[StompFrame], between: bytes) -> None:
    assert bare(reader().feed(frame_with_receipt(frames, between))) == frames


@given(FRAMES, st.integers(1, 7))
def test_it_makes_no_difference_how_a_stream_is_cut(frames: list[StompFrame], step: int) -> None:
    stream, cut = frame_with_receipt(frames), reader()
    found = [frame for at in range(0, len(stream), step) for frame in cut.feed(stream[at : at + step])]
    assert bare(found) == frames
    assert cut.error is None and cut.buffered_bytes == 0


ASKED = [
    b"",
    b"receipt:1\n",
    b"receipt:a-b\n",
    b"receipt:a\\cb\n",
    b"receipt:\n",
    b"receipt:1\r\n",
    b"receipt:\\q\n",
]
MORE = [
    b"",
    b"foo:1\n",
    b"transaction:t\n",
    b"receipt:2\n",
    b" receipt:2\n",
    b"content-length:9\n",
    b" content-length:1\n",
    b"foo:\\q\n",
]
LENGTHS = [
    b"",
    b"content-length:%d\n",
    b"content-length:%d\r\n",
    b"content-length:+%d\n",
    b"content-length:\n",
]
BODIES = [b"a", b"a\0b", b"", b"\n\nSEND\ndestination:/topic/a\n", b"y" * 101, b"x" * 17_000]
ENDS = [b"\0", b"\0\n", b"\0\r\n\n", b"x\0", b"\0ACK\nid:1\n\n\0", b"\0HELLO\n\n\0"]
ODD = [
    *product(ASKED, MORE, LENGTHS[:2], BODIES[:1], ENDS[:1]),
    *product(ASKED[:2], MORE[:1], LENGTHS, BODIES, ENDS),
]
"""Unusual SEND frames: lines, body and end, and the bytes after it."""


def parsed_frames(made: StompFrameReader, most: int) -> list[StompFrame]:
    """Return the frames that can be read now; consecutive SENDs are read together where possible."""
    found: list[StompFrame] = []
    frame = made.read_frames()
    while frame is not None:
        if frame.publishes:
            sends, frame = made.read_sends(frame, most, 100_000)
            assert 0 < len(sends) <= most and sends.body_bytes == sum(map(len, sends.bodies))
            assert not any("transaction" in headers for headers in sends.headers)
            found += [
                StompFrame("SEND", *one)
                for one in zip(sends.headers, sends.bodies, sends.receipts, strict=True)
            ]
        else:
            found.append(frame)
            frame = None
        frame = frame or made.read_frames()
    return found


@pytest.mark.parametrize("step", [50, 100_000])
@pytest.mark.parametrize("version", StompVersion)
def test_sends_that_are_alike_are_read_as_each_by_itself(version: StompVersion, step: int) -> None:
    usual = b"SEND\ndestination:/topic/a\nreceipt:7\ncontent-length:1\n\nx\0"
    for asked, more, length, body, end in ODD:
        told = length % len(body) if b"%" in length else length
        one = b"SEND\ndestination:/topic/a\n" + asked + more + told + b"\n" + body + end
        check_both_readers(version, step, 3 * usual + 3 * one + 2 * usual)


def check_both_readers(version: StompVersion, step: int, stream: bytes) -> None:
    single, together = reader(version, body=100), reader(version, body=100)
    one_by_one = [
        frame for at in range(0, len(stream), step) for frame in single.feed(stream[at : at + step])
    ]
    found: list[StompFrame] = []
    for at in range(0, len(stream), step):
        together.put(stream[at : at + step])
        found += parsed_frames(together, 5)
    assert bare(found) == bare(one_by_one)
    assert (together.error is None) == (single.error is None)
    if single.error is not None and together.error is not None:
        assert together.error.details == single.error.details and together.receipt == single.receipt


@given(st.binary(max_size=300), st.integers(1, 50))
def test_no_bytes_make_a_reader_fail_otherwise_than_by_name(noise: bytes, step: int) -> None:
    stream, whole, cut = b"SEND\ndestination:/topic/a\n" + noise, reader(), reader()
    once = whole.feed(stream)
    found = [frame for at in range(0, len(stream), step) for frame in cut.feed(stream[at : at + step])]
    assert found == once
    assert (cut.error is None) == (whole.error is None)
    if whole.error is not None:
        assert whole.error.code in ("bad_frame", "unknown_command", "frame_too_large")


def test_a_connect_says_the_version_in_which_what_follows_is_read() -> None:
    for asked, version, destination in (
        (b"1.0,1.1,1.2", StompVersion.V12, "a\r:b"),
        (b"1.0", StompVersion.V10, "a\\r\\cb"),
        (b"9.9,1.1", StompVersion.V11, None),
    ):
        made = StompFrameReader()
        frames = made.feed(CONNECT % asked + b"SEND\ndestination:a\\r\\cb\n\n\0")
        assert made.version is version
        if destination is None:
            assert made.error is not None and made.error.code == "bad_frame"
        else:
            assert frames[1].headers["destination"] == destination


def test_lines_end_as_clients_end_them() -> None:
    for stream in (
        b"\r\n\n\nSEND\r\ndestination:/topic/a\r\n\r\nx\0",
        b"SEND\ndestination:/topic/a\r\n\nx\0\n",
    ):
        for version in StompVersion:
            assert reader(version).feed(stream) == [StompFrame("SEND", {"destination": "/topic/a"}, b"x")]


def test_the_first_of_a_repeated_header_counts_and_a_value_may_hold_colons() -> None:
    (frame,) = reader().feed(b"SEND\nfoo:1\nfoo:2\nbar:a:b:c\n\n\0")
    assert frame.headers == {"foo": "1", "bar": "a:b:c"}


def test_frames_that_differ_in_their_receipts_alone_share_their_head() -> None:
    made = reader()
    stream = b"".join(
        b"SEND\ndestination:/topic/a\nreceipt:%b\nfoo:1\n\n\0" % one for one in (b"1", b"x-2", b"a\\cb")
    )
    frames = made.feed(stream + b"SEND\ndestination:/topic/a\nfoo:1\n\n\0")
    assert [frame.receipt for frame in frames] == ["1", "x-2", "a:b", ""]
    assert len({id(frame.headers) for frame in frames}) == 1 and "receipt" not in frames[0].headers
    (twice,) = made.feed(b"SEND\nreceipt:1\nreceipt:2\n\n\0")
    assert twice.receipt == "1"
    made.feed(b"SEND\nreceipt:a\\q\n\n\0")
    assert made.error is not None and made.error.code == "bad_frame"


def test_spaces_are_part_of_a_value_but_in_1_0() -> None:
    for version, value in ((StompVersion.V10, "x"), (StompVersion.V11, " x "), (StompVersion.V12, " x ")):
        assert reader(version).feed(b"SEND\nfoo: x \n\n\0")[0].headers == {"foo": value}


def test_with_a_content_length_a_body_may_hold_nuls() -> None:
    frames = reader().feed(b"SEND\ncontent-length:3\n\na\0b\0SEND\n\nrest\0")
    assert [frame.body for frame in frames] == [b"a\0b", b"rest"]


@pytest.mark.parametrize(
    ("stream", "code"),
    [
        (b"HELLO\n\n\0", "unknown_command"),
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "unknown_command"),
        (b"x" * 17, "unknown_command"),
        (b"SEND\nfoo\n\n\0", "bad_frame"),
        (b"SEND\nfoo:\\t\n\n\0", "bad_frame"),
        (b"SEND\nfoo:\\", "none yet"),
        (b"SEND\nfoo:\\\n\n\0", "bad_frame"),
        (b"SEND\nfoo:a\0b\n\n\0", "bad_frame"),
        (b"SEND\nfoo:\xff\n\n\0", "bad_frame"),
        (b"SEND\ncontent-length:x\n\n\0", "bad_frame"),
        (b"SEND\ncontent-length:-1\n\n\0", "bad_frame"),
        (b"SEND\ncontent-length:1\n\nab\0", "bad_frame"),
        (b"BEGIN\ntransaction:t\n\nbody\0", "bad_frame"),
        (b"SEND\ncontent-length:101\n\n", "frame_too_large"),
        (b"SEND\n\n" + b"x" * 101, "frame_too_large"),
        (b"SEND\nfoo:" + b"x" * 60 + b"\n\n\0", "frame_too_large"),
        (b"SEND\n" + b"a:b\n" * 9 + b"\n\0", "frame_too_large"),
        (b"SEND\n" + b"a:b\n" * 300, "frame_too_large"),
    ],
)
def test_what_is_no_frame_is_refused_by_name(stream: bytes, code: str) -> None:
    made = reader(line=50, head=800, headers=8, body=100)
    made.feed(b"SEND\n\n\0")
    made.feed(stream)
    assert (made.error.code if made.error is not None else "none yet") == code
    assert made.error is None or made.error.details["position"] >= 7


def test_before_it_is_known_who_talks_little_is_held() -> None:
    made = StompFrameReader()
    assert made.feed(b"CONNECT\n" + b"a:b\n" * 16_400) == []
    assert made.error is not None and made.error.code == "frame_too_large"
    assert made.buffered_bytes == 0


@given(st.dictionaries(NAMES, TEXTS, max_size=6))
def test_a_records_headers_are_read_as_they_were_written(headers: dict[str, str]) -> None:
    assert record_headers.decode(record_headers.encode(headers.items())) == headers


@given(st.binary(max_size=60))
def test_foreign_bytes_in_a_records_headers_are_no_headers_and_no_error(raw: bytes) -> None:
    record_headers.decode(raw)


TOLERATED = {
    "line end as body": b"".join(
        command + b"\n\n" + ends + b"\0"
        for command in (
            b"CONNECT\naccept-version:1.2",
            b"SUBSCRIBE\nid:1",
            b"BEGIN\ntransaction:t",
            b"DISCONNECT",
        )
        for ends in (b"\n", b"\r\n", b"\n\n")
    ),
    "NULs between frames": b"\0\nCONNECT\naccept-version:1.2\n\n\0\0\nSEND\na:b\n\nx\0\0\0"
    b"SEND\na:b\n\ny\0\n\0",
    "copied content-length": b"ACK\nid:1\ncontent-length:5\n\n\0NACK\nid:1\ncontent-length:x\n\n\n\0",
}
COMMANDS = {
    "line end as body": ["CONNECT"] * 3 + ["SUBSCRIBE"] * 3 + ["BEGIN"] * 3 + ["DISCONNECT"] * 3,
    "NULs between frames": ["CONNECT", "SEND", "SEND"],
    "copied content-length": ["ACK", "NACK"],
}


@pytest.mark.parametrize("case", TOLERATED)
@pytest.mark.parametrize("size", [1, 3, 1_000])
def test_what_other_brokers_tolerate_is_tolerated_however_it_is_split(case: str, size: int) -> None:
    data, parser = TOLERATED[case], reader()
    found = [frame for at in range(0, len(data), size) for frame in parser.feed(data[at : at + size])]
    assert parser.error is None
    assert [frame.command for frame in found] == COMMANDS[case]
    assert [frame.body for frame in found if frame.command == "SEND"] in ([], [b"x", b"y"])


@pytest.mark.parametrize("size", [1, 1_000])
@pytest.mark.parametrize("body", [b"x\0", b"\nx\0", b"\n" * 65 + b"\0", b"\n" * 65])
def test_other_bodies_are_refused_where_none_may_be(body: bytes, size: int) -> None:
    data, parser = b"ACK\nid:1\n\n" + body, reader()
    assert not [frame for at in range(0, len(data), size) for frame in parser.feed(data[at : at + size])]
    assert parser.error is not None and parser.error.code == "bad_frame"
