"""Slower replacements for packages that a Spark executor may lack.

PySpark's Arrow functions need numpy and pyarrow, so every executor has these. fastcrc, isal, orjson,
msgspec and re2 may be missing. `install_fallbacks` then registers a replacement under the package's name,
before any module imports it. Regular expressions and MessagePack have none: they are refused. Installed
packages are never replaced.
"""

from __future__ import annotations

import json
import sys
import types
import zlib
from binascii import crc_hqx
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

_POLYNOMIAL = 0x82F63B78
_BLOCK = 4_096
"""Bytes looked up together. The table for them has 4 MB, which fits a processor's cache."""
_Table = npt.NDArray[np.uint32]


def install_fallbacks() -> None:
    """Register a replacement for each missing package in `sys.modules`."""
    for name, made in _FALLBACKS.items():
        if name not in sys.modules and find_spec(name) is None:
            for module in made():
                sys.modules[module.__name__] = module


@cache
def _byte_table() -> _Table:
    """Return the CRC of each single byte."""
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, (table >> 1) ^ np.uint32(_POLYNOMIAL), table >> 1).astype(np.uint32)
    return table


@cache
def _block_table() -> _Table:
    """Return the contribution of each byte value at each position of a block to the block's CRC."""
    base, table = _byte_table(), np.empty((_BLOCK, 256), np.uint32)
    table[-1] = base
    for index in range(_BLOCK - 2, -1, -1):
        table[index] = (table[index + 1] >> 8) ^ base[table[index + 1] & 0xFF]
    return table


@cache
def _shift_table() -> list[list[int]]:
    """Return how a CRC changes over a block, by its four bytes.

    They act as if they were XORed into the block's first four bytes.
    """
    shifted: list[list[int]] = _block_table()[:4].tolist()
    return shifted


def crc32c(data: Any, value: int = 0) -> int:
    """Return the CRC32C (Castagnoli) of bytes, continued from `value`.

    A CRC is linear: the contributions of bytes are looked up by position and joined by XOR, a block at a
    time.
    """
    raw = np.frombuffer(data, np.uint8)
    state, whole_blocks_bytes = ~value & 0xFFFFFFFF, len(raw) // _BLOCK * _BLOCK
    if whole_blocks_bytes:
        table, table_offsets = _block_table().ravel(), np.arange(_BLOCK, dtype=np.int64) * 256
        shift = _shift_table()
        for start in range(0, whole_blocks_bytes, 256 * _BLOCK):
            blocks = raw[start : min(start + 256 * _BLOCK, whole_blocks_bytes)].reshape(-1, _BLOCK)
            for part in np.bitwise_xor.reduce(table[table_offsets + blocks], axis=1).tolist():
                state = (
                    shift[0][state & 0xFF]
                    ^ shift[1][state >> 8 & 0xFF]
                    ^ shift[2][state >> 16 & 0xFF]
                    ^ shift[3][state >> 24]
                    ^ part
                )
    tail, base = raw[whole_blocks_bytes:], _byte_table()
    if len(tail) >= 4:
        # The remainder in the same way: the state is XORed into its first four bytes.
        mixed = tail.copy()
        mixed[:4] ^= np.frombuffer(state.to_bytes(4, "little"), np.uint8)
        table = _block_table()[_BLOCK - len(tail) :]
        state = int(np.bitwise_xor.reduce(table[np.arange(len(tail)), mixed]))
    else:
        for byte in tail.tolist():
            state = (state >> 8) ^ int(base[(state ^ byte) & 0xFF])
    return ~state & 0xFFFFFFFF


def _fastcrc() -> list[types.ModuleType]:
    package: Any = types.ModuleType("fastcrc")
    package.crc16, package.crc32 = types.ModuleType("fastcrc.crc16"), types.ModuleType("fastcrc.crc32")
    package.crc16.xmodem = crc16
    package.crc32.iscsi = crc32c  # fastcrc's name for CRC32C
    return [package, package.crc16, package.crc32]


def crc16(data: Any) -> int:
    """Return the CRC-16/XMODEM of bytes."""
    return crc_hqx(data, 0)


def _isal() -> list[types.ModuleType]:
    """Return a module whose isal_zlib is zlib, which has all names that are used."""
    package = types.ModuleType("isal")
    package.isal_zlib = zlib  # type: ignore[attr-defined]
    return [package]


def _orjson() -> list[types.ModuleType]:
    module: Any = types.ModuleType("orjson")
    module.loads = json.loads
    module.dumps = lambda value: json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()
    module.JSONDecodeError = ValueError  # ValueError covers bytes that aren't UTF-8
    return [module]


def _refuse(package: str) -> Callable[..., NoReturn]:
    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise ImportError(f"This needs the Python package {package} on every executor.")

    return refuse


def _re2() -> list[types.ModuleType]:
    module: Any = types.ModuleType("re2")
    module.error = ValueError
    module.Options = types.SimpleNamespace
    module.compile = _refuse("google-re2")
    return [module]


def _msgspec() -> list[types.ModuleType]:
    module: Any = types.ModuleType("msgspec")
    module.MsgspecError = module.DecodeError = module.ValidationError = ValueError
    refused = types.SimpleNamespace(decode=_refuse("msgspec"), encode=_refuse("msgspec"))
    module.msgpack = module.json = types.SimpleNamespace(Decoder=lambda: refused, Encoder=lambda: refused)
    module.Struct = _Struct
    return [module]


class _Struct:
    """Base class whose subclasses become dataclasses.

    `array_like` and `gc` only matter to the missing encoder.
    """

    def __init_subclass__(
        cls, *, frozen: bool = False, eq: bool = True, gc: bool = True, array_like: bool = False
    ) -> None:
        dataclass(frozen=frozen, eq=eq)(cls)


_FALLBACKS: dict[str, Callable[[], list[types.ModuleType]]] = {
    "fastcrc": _fastcrc,
    "isal": _isal,
    "orjson": _orjson,
    "re2": _re2,
    "msgspec": _msgspec,
}
