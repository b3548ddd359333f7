"""Who may use the control link: tokens, of which the broker keeps hashes in a file, one a line.

    sha256$<64 hexadecimal digits> console      # what follows is a name, for people

The file is looked at again for every request, so a line that is taken out shuts its holder out at once.
"""

from __future__ import annotations

import hmac
from pathlib import Path

from broker_core.access.credential_hashes import MAX_SECRET, hash_token, token_hash_problem
from broker_core.errors import OperatorError

MOST_TOKENS = 100
MOST_BYTES = 64 * 1024


class Tokens:
    """The file of hashes, read again when it has changed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._stamp: tuple[int, int, int] | None = None
        self._hashes: tuple[str, ...] = ()

    def know(self, token: str) -> bool:
        """Whether the token's hash is in the file now. Raises OperatorError bad_control_link when that can't be read."""
        presented, found = hash_token(token[:MAX_SECRET]), False
        for known in self.read():  # all of them, whichever it is: the time taken says nothing
            found |= hmac.compare_digest(presented, known)
        return found

    def read(self) -> tuple[str, ...]:
        """The hashes. OperatorError bad_control_link."""
        try:
            status = self.path.stat()
            stamp = (status.st_mtime_ns, status.st_size, status.st_ino)
            if stamp != self._stamp:
                if status.st_size > MOST_BYTES:
                    raise self._bad(f"it has over {MOST_BYTES} bytes")
                self._hashes, self._stamp = self._hashes_in(self.path.read_text("utf-8")), stamp
        except (OSError, UnicodeDecodeError) as problem:
            raise self._bad(str(problem)) from None
        return self._hashes

    def _hashes_in(self, text: str) -> tuple[str, ...]:
        lines = [line.split() for line in text.splitlines()]
        hashes = tuple(words[0] for words in lines if words and not words[0].startswith("#"))
        if len(hashes) > MOST_TOKENS:
            raise self._bad(f"it has over {MOST_TOKENS} lines")
        for number, hashed in enumerate(hashes, 1):
            if problem := token_hash_problem(hashed):
                raise self._bad(f"hash {number} can't be used: {problem}")
        return hashes

    def _bad(self, why: str) -> OperatorError:
        return OperatorError(
            "bad_control_link",
            f"The file of tokens {self.path} can't be used: {why}.",
            "Name a file with a hash of `manage.py controltoken` on each line (SLUICE_CONTROL_TOKENS).",
        )
