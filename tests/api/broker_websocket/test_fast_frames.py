"""Fast parsing of WebSocket frames: it returns exactly the whole messages that the frame writer produced."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st
from websockets.frames import Frame, Opcode

from api.broker_websocket.fast_frames import CompleteMessage, IncompleteMessage, parse_complete_message

LIMIT = 70_000
sizes = st.one_of(st.integers(0, 200), st.sampled_from((125, 126, 65_535, 65_536, LIMIT)))


def wire(opcode: Opcode, body: bytes, *, fin: bool = True, mask: bool = True) -> bytes:
    return Frame(opcode, body, fin=fin).serialize(mask=mask)


@given(st.binary(max_size=40), st.lists(sizes, min_size=1, max_size=4))
def test_messages_come_out_as_they_were_and_one_behind_another(before: bytes, lengths: list[int]) -> None:
    bodies = [bytes(number % 251 for number in range(length)) for length in lengths]
    data, at = before + b"".join(wire(Opcode.BINARY, body) for body in bodies), len(before)
    for body in bodies:
        found = parse_complete_message(data, at, LIMIT)
        assert isinstance(found, CompleteMessage) and found.message == body
        at = found.end
    assert at == len(data) and parse_complete_message(data, at, LIMIT) is None


@given(sizes, st.data())
def test_a_part_of_a_message_is_incomplete_once_its_length_is_there(length: int, data: st.DataObject) -> None:
    whole = wire(Opcode.BINARY, bytes(length))
    header = len(whole) - length - 4
    part = whole[: data.draw(st.integers(0, len(whole) - 1))]
    assert parse_complete_message(part, 0, LIMIT) == (
        IncompleteMessage(len(whole)) if len(part) >= header else None
    )


@given(st.sampled_from(list(Opcode)), st.booleans(), st.booleans(), st.integers(0, 125))
@example(Opcode.BINARY, True, True, 3)
def test_only_last_masked_binary_frames_are_taken(opcode: Opcode, fin: bool, mask: bool, length: int) -> None:
    if opcode >= Opcode.CLOSE:
        fin = True  # a control frame must not be fragmented
    taken = isinstance(
        parse_complete_message(wire(opcode, bytes(length), fin=fin, mask=mask), 0, LIMIT), CompleteMessage
    )
    assert taken == (opcode is Opcode.BINARY and fin and mask)


def test_what_is_too_large_or_not_of_the_least_length_is_left_to_who_knows_what_to_say() -> None:
    assert parse_complete_message(wire(Opcode.BINARY, bytes(LIMIT + 1)), 0, LIMIT) is None
    assert parse_complete_message(b"\x82\xfe\x00\x7d" + bytes(4 + 125), 0, LIMIT) is None
    assert parse_complete_message(b"\x82\xff" + (65_535).to_bytes(8) + bytes(4 + 65_535), 0, LIMIT) is None
    assert parse_complete_message(b"\xc2\x83" + bytes(7), 0, LIMIT) is None, "a reserved bit is set"
