"""Sessions in the database that are empty once they are too old, or nobody has used them for too long.

A row is found by a hash of its key: whoever reads the database, or a copy of it, can't come in with what stands there.
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
    """What stands in the database for a key: 160 bits in the column's 40 signs, of a key with as many random ones."""
    return hashlib.blake2b(session_key.encode(), digest_size=20).hexdigest()


class SessionStore(InDatabase):
    """The row of a session that ended stays until it expires: reading changes nothing, and nobody can take it up again."""

    def load(self) -> dict[str, Any]:
        """What is stored, or nothing of a login that no longer holds."""
        found: dict[str, Any] = super().load()
        if SESSION_KEY in found and not sessions.is_session_valid(found, str(self.session_key), time.time()):
            self._session_key = None
            return {}
        return found

    async def aload(self) -> dict[str, Any]:
        """The same."""
        return await sync_to_async(self.load)()

    def exists(self, session_key: str) -> bool:
        """Whether there is a row for the key."""
        return bool(super().exists(stored_key(session_key)))

    async def aexists(self, session_key: str) -> bool:
        """The same."""
        return bool(await super().aexists(stored_key(session_key)))

    def create_model_instance(self, data: dict[str, Any]) -> Any:
        """The row to save, under the hash of its key."""
        made = super().create_model_instance(data)
        made.session_key = stored_key(made.session_key)
        return made

    async def acreate_model_instance(self, data: dict[str, Any]) -> Any:
        """The same."""
        made = await super().acreate_model_instance(data)
        made.session_key = stored_key(made.session_key)
        return made

    def delete(self, session_key: str | None = None) -> None:
        """Take the row away."""
        key = session_key or self.session_key
        if key is not None:
            super().delete(stored_key(key))

    async def adelete(self, session_key: str | None = None) -> None:
        """The same."""
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
