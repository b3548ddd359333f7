"""Checksums of all stored and sent data.

`crc32c(data)` is CRC32C (Castagnoli); `crc32c(more, before)` continues from a checksum. It accepts any buffer
without a copy and uses CPU instructions. Commands have 16 bits for their checksum: `crc16` (XMODEM) takes 75
ns for 80 bytes.
"""

from __future__ import annotations

from fastcrc.crc16 import xmodem as crc16
from fastcrc.crc32 import iscsi as crc32c

__all__ = ["crc16", "crc32c"]
