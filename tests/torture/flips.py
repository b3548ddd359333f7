"""Bit flips: one bit of one file changes while no process uses the file."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass
from pathlib import Path

_NUMBERS = re.compile(r"\.\d{20}(?=\.)|\.\d+$|\.[0-9a-f]{8}(?=\.tmp)")


@dataclass(frozen=True)
class FlippedBit:
    """Position of a flipped bit: file, byte and bit."""

    path: Path
    offset: int
    bit: int

    @property
    def file_type(self) -> str:
        """Return the file's name without numbers, which is its type."""
        return _NUMBERS.sub("", self.path.name)

    def flip(self) -> None:
        """Invert the bit; a second call restores it."""
        with self.path.open("r+b") as file:
            file.seek(self.offset)
            old = file.read(1)[0]
            file.seek(self.offset)
            file.write(bytes([old ^ 1 << self.bit]))

    put_right = flip


def flip_a_bit(home: Path, chance: random.Random) -> FlippedBit | None:
    """Flip a random bit of a random file.

    Each type of file is equally likely, and its beginning more likely than the rest.
    """
    kinds: dict[str, list[Path]] = {}
    for path in sorted(home.rglob("*")):
        if path.is_file() and path.stat().st_size:
            kinds.setdefault(FlippedBit(path, 0, 0).file_type, []).append(path)
    if not kinds:
        return None
    path = chance.choice(kinds[chance.choice(sorted(kinds))])
    size = path.stat().st_size
    most = min(size, 8_192) if chance.random() < 0.5 else size
    made = FlippedBit(path, chance.randrange(most), chance.randrange(8))
    made.flip()
    return made
