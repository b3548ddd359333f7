"""Passwords that were right since the process began: who comes back with the same needn't be checked slowly again.

Kept are digests under a key that never leaves the process, one a user, and bound to the hash of the policy: a password that
was changed there is checked anew. What isn't found here is checked as ever, so a guess costs what it did.
"""

from __future__ import annotations

import hmac
import secrets
from collections import OrderedDict
from hashlib import blake2b
from typing import Final

MAX_PROVEN: Final = 10_000
"""Users; those who haven't come for the longest time go first."""


class Proven:
    """One instance's."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)
        self._digests: OrderedDict[str, bytes] = OrderedDict()

    def holds(self, user: str, password: str, hashed: str) -> bool:
        """Whether this password was right for the user's hash, as it is now in the policy."""
        known = self._digests.get(user)
        if known is None or not hmac.compare_digest(known, self._digest(password, hashed)):
            return False
        self._digests.move_to_end(user)
        return True

    def add(self, user: str, password: str, hashed: str) -> None:
        """It was right."""
        self._digests[user] = self._digest(password, hashed)
        self._digests.move_to_end(user)
        if len(self._digests) > MAX_PROVEN:
            self._digests.popitem(last=False)

    def _digest(self, password: str, hashed: str) -> bytes:
        return blake2b(f"{hashed}\0{password}".encode("utf-8", "surrogatepass"), key=self._key).digest()
