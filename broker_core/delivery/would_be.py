"""What would wait in a lane if the conflations that a rule decided in shadow had been done. Pure: nothing of the lane changes.

Kept as the hashes of the messages' keys, eight bytes each, so that what is counted in shadow holds on to no message.
"""

from __future__ import annotations

from array import array
from typing import NamedTuple


class WouldBe(NamedTuple):
    """After the last of them."""

    keys: array[int] = array("q")
    """Of what was left, in order."""
    came: int = 0
    """How many messages the lane had ever had then: what came later is behind these."""
    cut: int = 0
    """How many more wait in the lane."""

    def conflated(self, newer: array[int], came: int, waits: int, cut: int) -> WouldBe:
        """After the next one, of what would wait now: of `waits` messages all but `cut`. `newer` are the keys of those of them
        that came since."""
        cut = min(cut, self.cut, waits)
        # What has left since would have left here too, of what is oldest here.
        keys = (self.keys + newer)[-(waits - cut) :] if waits > cut else array("q")
        left = array("q", reversed(dict.fromkeys(reversed(keys))))
        return WouldBe(left, came, cut + len(keys) - len(left))
