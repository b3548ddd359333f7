"""Sessions in the database that expire after a maximum age and after inactivity.

A row is stored under a hash of its key: a copy of the database does not allow anyone to use a session.
"""

from __future__ import annotations

import hashlib
import time
from typing import Any

from asgiref.sync import sync_to_async
from django.contrib.auth import SESSION_KEY
from django.contrib.sessions.backends.db import SessionStore as InDatabase
from django.utils import timezone

from console.services import sessions


def stored_key(session_key: str) -> str:
    """Return the hash under which a key's row is stored.

    It has 160 bits, the 40 hexadecimal characters of the column; the key has as many random bits.
    """
    return hashlib.blake2b(session_key.encode(), digest_size=20).hexdigest()


class SessionStore(InDatabase):
    """Session store with expiry.

    The row of an expired session stays until Django's expiry. Reading changes nothing, and the session
    can't be resumed.
    """

    def load(self) -> dict[str, Any]:
        """Return the session's data; empty if its login is no longer valid."""
        found: dict[str, Any] = super().load()
        if SESSION_KEY in found and not sessions.is_session_valid(found, str(self.session_key), time.time()):
            self._session_key = None
            return {}
        return found

    async def aload(self) -> dict[str, Any]:
        """Return the session's data; empty if its login is no longer valid."""
        return await sync_to_async(self.load)()

    def exists(self, session_key: str) -> bool:
        """Return whether a key has a row."""
        return bool(super().exists(stored_key(session_key)))

    async def aexists(self, session_key: str) -> bool:
        """Return whether a key has a row."""
        return bool(await super().aexists(stored_key(session_key)))

    def create_model_instance(self, data: dict[str, Any]) -> Any:
        """Return the row to save, under the key's hash."""
        made = super().create_model_instance(data)
        made.session_key = stored_key(made.session_key)
        return made

    async def acreate_model_instance(self, data: dict[str, Any]) -> Any:
        """Return the row to save, under the key's hash."""
        made = await super().acreate_model_instance(data)
        made.session_key = stored_key(made.session_key)
        return made

    def delete(self, session_key: str | None = None) -> None:
        """Delete the row of a key, by default the session's own."""
        key = session_key or self.session_key
        if key is not None:
            super().delete(stored_key(key))

    async def adelete(self, session_key: str | None = None) -> None:
        """Delete the row of a key, by default the session's own."""
        key = session_key or self.session_key
        if key is not None:
            await super().adelete(stored_key(key))

    def _get_session_from_db(self) -> Any:
        found = (
            self.model.objects.filter(
                session_key=stored_key(str(self.session_key)), expire_date__gt=timezone.now()
            ).first()
            if self.session_key
            else None
        )
        if found is None:
            self._session_key = None
        return found

    async def _aget_session_from_db(self) -> Any:
        return await sync_to_async(self._get_session_from_db)()
