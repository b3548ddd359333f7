"""CRC32C (Castagnoli) of all that is written and sent: `crc32c(data)`, and `crc32c(more, before)` to go on from a checksum.

Takes whatever has a buffer, without a copy, and uses the processor's own instructions. Commands have sixteen bits for theirs:
`crc16` (XMODEM's), 75 ns for one of 80 bytes.
"""

from __future__ import annotations

from fastcrc.crc16 import xmodem as crc16
from fastcrc.crc32 import iscsi as crc32c

__all__ = ["crc16", "crc32c"]
