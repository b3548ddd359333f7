"""A batch's dictionary: the publisher's name and the topics, as bytes and as text. The same ones come again and again."""

from __future__ import annotations

import struct
from functools import lru_cache

from broker_core.batch.layout import HEADER_SIZE, MAX_DICTIONARY, PADDING, bad_batch


@lru_cache(maxsize=8_192)
def encode_dictionary(publisher: str, topics: tuple[str, ...]) -> bytes:
    """The bytes, padded to a multiple of 8."""
    parts = [struct.pack("<H", len(topics) + 1)]
    for entry in (publisher, *topics):
        raw = entry.encode()
        parts += (struct.pack("<H", len(raw)), raw)
    whole = b"".join(parts)
    return whole + PADDING[len(whole) & 7]


@lru_cache(maxsize=8_192)
def decode_dictionary(raw: bytes) -> tuple[str, ...]:
    """The publisher's name and the topics. ClientError bad_batch."""
    entries: list[str] = []
    try:
        (number,) = struct.unpack_from("<H", raw)
        if not 2 <= number <= MAX_DICTIONARY:
            raise bad_batch(f"a dictionary has 2 to {MAX_DICTIONARY} entries, not {number}", HEADER_SIZE)
        at = 2
        for _ in range(number):
            (length,) = struct.unpack_from("<H", raw, at)
            text = raw[at + 2 : at + 2 + length]
            if len(text) != length:
                raise bad_batch("a dictionary entry is cut off", HEADER_SIZE + at)
            entries.append(text.decode())
            at += 2 + length
    except (struct.error, UnicodeDecodeError):
        raise bad_batch("the dictionary can't be read", HEADER_SIZE) from None
    if at + (-at & 7) != len(raw):
        raise bad_batch("the dictionary's length is wrong", 12)
    return tuple(entries)
