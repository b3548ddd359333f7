"""Sessions in the database that are empty once they are too old, or nobody has used them for too long."""

from __future__ import annotations

import time
from typing import Any

from asgiref.sync import sync_to_async
from django.contrib.auth import SESSION_KEY
from django.contrib.sessions.backends.db import SessionStore as InDatabase

from console.services import sessions


class SessionStore(InDatabase):
    """The row of a session that ended stays until it expires: reading changes nothing, and nobody can take it up again."""

    def load(self) -> dict[str, Any]:
        """What is stored, or nothing of a login that no longer holds."""
        found: dict[str, Any] = super().load()
        if SESSION_KEY in found and not sessions.holds(found, str(self.session_key), time.time()):
            self._session_key = None
            return {}
        return found

    async def aload(self) -> dict[str, Any]:
        """The same."""
        return await sync_to_async(self.load)()
