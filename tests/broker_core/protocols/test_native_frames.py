"""The frame reader: whole, half, broken and oversized frames, however the bytes are cut."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker_core.errors import ClientError
from broker_core.protocols.native import (
    COMMAND,
    DELIVER,
    FIRST_BUFFER_BYTES,
    FROM_CLIENT,
    MAX_COMMAND,
    MAX_FRAME,
    MAX_FRAMES,
    PUBLISH,
    USUAL_BUFFER_BYTES,
    NativeFrame,
    NativeFrameReader,
    encode_command,
    encode_frame_header,
    parse_message,
)
from tests.support.frames import FedReader


def frame(kind: int, payload: bytes, stream: int = 0) -> bytes:
    return encode_frame_header(kind, stream, len(payload)) + payload


def through_buffer(reader: NativeFrameReader, data: bytes, sizes: list[int]) -> list[NativeFrame]:
    """Feed a reader as asyncio's BufferedProtocol does; return the frames.

    Each step copies at most `sizes` bytes into the buffer that the reader offers.
    """
    frames: list[NativeFrame] = []
    turn = 0
    while data:
        room = reader.get_buffer(-1)
        assert len(room) > 0
        size = min(len(room), len(data), sizes[turn % len(sizes)])
        room[:size] = data[:size]
        frames += reader.buffer_updated(size)
        data, turn = data[size:], turn + 1
    return frames


FRAMES = st.lists(
    st.one_of(
        st.tuples(st.sampled_from([PUBLISH, DELIVER]), st.integers(0, 65_535), st.binary(max_size=300)),
        st.tuples(st.just(COMMAND), st.just(0), st.binary(max_size=300)),
    ),
    min_size=1,
    max_size=8,
)


def test_a_frame_header_has_these_bytes() -> None:
    assert encode_frame_header(DELIVER, 0x0102, 0x0A0B0C0D) == bytes.fromhex("0d0c0b0a03000201")
    assert encode_command({"c": "heartbeat"}) == b'\x11\0\0\0\x01\0\xfd\xa1{"c":"heartbeat"}'


@given(FRAMES, st.lists(st.integers(1, 400), min_size=1, max_size=5))
def test_frames_come_out_as_they_went_in_however_the_bytes_are_cut(
    wanted: list[tuple[int, int, bytes]], sizes: list[int]
) -> None:
    data = b"".join(frame(kind, payload, stream) for kind, stream, payload in wanted)
    expected = [(kind, 0, stream, bytearray(payload)) for kind, stream, payload in wanted]
    assert through_buffer(FedReader(), data, sizes) == expected
    fed, reader, at, turn = [], FedReader(), 0, 0
    while at < len(data):
        size = sizes[turn % len(sizes)]
        fed += reader.feed(data[at : at + size])
        at, turn = at + size, turn + 1
    assert fed == expected
    assert reader._end == 0


def test_any_flipped_bit_of_a_command_is_found_and_one_without_a_checksum_is_believed() -> None:
    whole = encode_command({"c": "ack", "ack": "persisted", "sequence": 41_000})
    for bit in range(8 * len(whole)):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(ClientError) as caught:
            parse_message(bytes(damaged), kinds=frozenset({COMMAND}))
        assert caught.value.code in ("bad_frame", "frame_too_large")
    assert len(parse_message(frame(COMMAND, whole[8:]))) == 1


def test_two_frames_in_every_split_of_their_bytes() -> None:
    data = frame(COMMAND, b'{"c":"heartbeat"}') + frame(PUBLISH, b"x" * 40, 7)
    for cut in range(len(data) + 1):
        reader = FedReader()
        frames = reader.feed(data[:cut]) + reader.feed(data[cut:])
        assert [(found.kind, found.stream, len(found.payload)) for found in frames] == [
            (1, 0, 17),
            (2, 7, 40),
        ]


@settings(max_examples=10)
@given(st.integers(USUAL_BUFFER_BYTES, 3 * USUAL_BUFFER_BYTES), st.sampled_from([7_001, 65_536, 1_000_000]))
def test_a_frame_larger_than_the_buffer_comes_whole_and_the_buffer_shrinks_again(
    length: int, size: int
) -> None:
    reader = FedReader()
    frames = through_buffer(reader, frame(PUBLISH, b"a" * length) + frame(COMMAND, b"{}"), [size])
    assert [len(found.payload) for found in frames] == [length, 2]
    assert len(reader.get_buffer()) <= USUAL_BUFFER_BYTES


def test_an_idle_connection_holds_a_small_buffer_and_a_lying_header_does_not_grow_it() -> None:
    reader = FedReader()
    reader.feed(encode_frame_header(PUBLISH, 0, MAX_FRAME))
    assert len(reader.get_buffer()) < FIRST_BUFFER_BYTES


def test_a_payload_is_the_frames_own_copy() -> None:
    reader = FedReader()
    first = through_buffer(reader, frame(PUBLISH, b"first"), [64])[0]
    through_buffer(reader, frame(PUBLISH, b"other"), [64])
    assert first.payload == b"first"


@pytest.mark.parametrize(
    ("data", "code", "position"),
    [
        (frame(0, b""), "bad_frame", 0),
        (frame(9, b"abc"), "bad_frame", 0),
        (b"GET / HTTP/1.1\r\n\r\n", "bad_frame", 0),
        (b"\x01\0\0\0\x02\x80\0\0a", "bad_frame", 0),
        (encode_frame_header(PUBLISH, 0, MAX_FRAME + 1), "frame_too_large", 0),
        (encode_frame_header(PUBLISH, 0, 2**32 - 1), "frame_too_large", 0),
        (encode_frame_header(COMMAND, 0, MAX_COMMAND + 1), "frame_too_large", 0),
        (frame(DELIVER, b"abc"), "bad_frame", 0),
    ],
)
def test_a_frame_that_cannot_be_is_refused_by_code_and_position(
    data: bytes, code: str, position: int
) -> None:
    with pytest.raises(ClientError) as caught:
        FedReader(kinds=FROM_CLIENT).feed(data)
    assert (caught.value.code, caught.value.details["position"]) == (code, position)
    with pytest.raises(ClientError) as caught:
        parse_message(data, kinds=FROM_CLIENT)
    assert caught.value.code == code


def test_good_frames_before_a_bad_one_are_not_lost_and_nothing_after_it_is_taken() -> None:
    good, bad = frame(PUBLISH, b"good"), frame(9, b"bad")
    reader = FedReader()
    assert [bytes(found.payload) for found in reader.feed(good + good + bad + good)] == [b"good", b"good"]
    assert reader.error is not None
    assert reader.error.details["position"] == 2 * len(good)
    with pytest.raises(ClientError):
        reader.feed(good)
    through = FedReader()
    assert len(through_buffer(through, good + bad, [1_000])) == 1
    assert through.error is not None


@given(st.binary(max_size=400), st.integers(1, 50))
def test_any_bytes_make_frames_or_a_named_error(data: bytes, size: int) -> None:
    reader = FedReader()
    try:
        for at in range(0, len(data), size):
            for found in reader.feed(data[at : at + size]):
                assert found.kind in (COMMAND, PUBLISH, DELIVER)
    except ClientError as error:
        assert error.code in ("bad_frame", "frame_too_large")


def test_a_websocket_message_of_more_tiny_frames_than_a_turn_can_cut_is_refused() -> None:
    empty = frame(COMMAND, b"")
    assert len(parse_message(empty * MAX_FRAMES)) == MAX_FRAMES
    with pytest.raises(ClientError) as caught:
        parse_message(empty * (MAX_FRAMES + 1))
    assert (caught.value.code, caught.value.details["position"]) == ("bad_frame", 8 * MAX_FRAMES)


def test_a_websocket_message_holds_whole_frames_only() -> None:
    data = frame(PUBLISH, b"abc") + frame(COMMAND, b"{}")
    assert len(parse_message(data)) == 2
    for broken in (b"", data[:-1], data[:5]):
        with pytest.raises(ClientError) as caught:
            parse_message(broken)
        assert caught.value.code == "bad_frame"
