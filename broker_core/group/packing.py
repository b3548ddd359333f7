"""An entry's bytes as they travel: batches as they are, or packed, where that makes them much smaller.

Three engines copy, store and sync each byte of an entry: some 10 ms of processor a MB at each, where deflating
takes two, once, and inflating between one and two at each member. A packed entry says so itself:

    | 0 magic "SLZ1" | 4 length u32 of what is packed | 8 deflated, without a checksum: batches have their own |

What isn't packed begins with a batch, "SLB1", or is empty. How it travelled changes nothing of what an entry becomes.
"""

from __future__ import annotations

import struct
from typing import Final, cast

from isal import isal_zlib

from broker_core.errors import ClientError
from broker_core.group.ports import MAX_ENTRY_BYTES

WORTH_BYTES: Final = 4 * 1024
"""Smaller entries are a matter of disks' syncs, not of bytes."""
_WORTH: Final = 0.8
"""Of its length at most, or an entry stays as it is."""
_LEVEL: Final = 1
_MAGIC: Final = b"SLZ1"
_HEAD = struct.Struct("<4sI")
_INFLATE_ERRORS = (cast("type[Exception]", isal_zlib.error), ValueError)


def packed(content: bytes) -> bytes:
    """The shorter form of an entry's bytes."""
    if not WORTH_BYTES <= len(content) <= MAX_ENTRY_BYTES:
        return content
    packer = isal_zlib.compressobj(_LEVEL, isal_zlib.DEFLATED, -15)
    found = b"".join((_HEAD.pack(_MAGIC, len(content)), packer.compress(content), packer.flush()))
    return found if len(found) < _WORTH * len(content) else content


def unpacked_length(content: bytes) -> int:
    """How long an entry is unpacked, as it says."""
    if not content.startswith(_MAGIC) or len(content) < _HEAD.size:
        return len(content)
    return int(_HEAD.unpack_from(content)[1])


def unpacked(content: bytes) -> bytes:
    """Its batches. ClientError bad_batch_error when that isn't what was packed; never more than MAX_ENTRY_BYTES are made of it."""
    if not content.startswith(_MAGIC):
        return content
    length = unpacked_length(content)
    if length > MAX_ENTRY_BYTES:
        raise _bad(f"{length} bytes are packed, and an entry has {MAX_ENTRY_BYTES}")
    inflater = isal_zlib.decompressobj(-15)
    try:
        found = inflater.decompress(memoryview(content)[_HEAD.size :], length + 1)
    except _INFLATE_ERRORS as problem:
        raise _bad(str(problem)) from None
    if len(found) != length or not inflater.eof:
        raise _bad(f"{length} bytes were packed, and {len(found)} came out")
    return found


def _bad(why: str) -> ClientError:
    return ClientError(
        "bad_batch", f"What is packed can't be unpacked: {why}.", "Look at the engines' disks."
    )
