"""The console's live feed: one WebSocket a tab. First a snapshot, then deltas, at most four a second, and decisions.

    {"type": "snapshot", "seq": 1, "at": ms, "status": {...}, "clients": [...]}
    {"type": "delta",    "seq": 2, "at": ms, "status": {...}, "changed": [...], "removed": [...]}
    {"type": "decision", "seq": 3, "decision": {...}}

A tab says what it looks at, in the address (`/live/?view=clients&limit=100`) and later by `{"view": …}`: then it gets totals and
the rows it shows (api/live_window.py). A socket that asks for no view gets all clients.

`seq` counts this socket's messages, so a page that misses one knows and comes back for a new snapshot. The channel layer
may drop what the broker sends; a delta is made against what this socket last sent, so that costs freshness, never truth.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

import msgspec
import redis
from channels.db import database_sync_to_async
from channels.generic.websocket import AsyncWebsocketConsumer
from django.contrib.auth import get_user
from django.db import DatabaseError
from django.http import HttpRequest

from api import live_window
from api.snapshot_delta import make_delta
from broker_core.documents.instance import Snapshot
from broker_core.documents.system_records import DecisionEntry
from broker_core.errors import SluiceError
from broker_core.names import name_matches
from console import current_instance, group_answers
from console.access.rights import EffectiveAccess
from console.broker_link import addresses_of
from console.choices import Permission
from console.live import latest_snapshot
from console.queries import live
from console.services.actors import access_of
from console.web.session_store import SessionStore

GROUP = "live"
_SNAPSHOTS = msgspec.json.Decoder(Snapshot)
_DECISIONS = msgspec.json.Decoder(DecisionEntry)
LEAST_INTERVAL_S = 0.25
CLOSE_NOT_LOGGED_IN = 4401
CLOSE_ENDED = 4403
# A session that ended elsewhere (logged out, unused for too long, account disabled) stops being fed within this time, and a grant that was
# taken away no longer shows what it showed.
SESSION_CHECK_S = 30.0


MAX_SAID = 64 * 1024
"""Characters of what a tab says."""
MEMBER_HELD_S = 5.0
"""A member that says nothing for so long is left out of what its group is told of."""
MAX_TOLD = 16


class SnapshotCache:
    """The newest snapshots that this process was told of, read once for all its tabs: of a group, each member's, and all as one.

    Of the event loop alone.
    """

    def __init__(self) -> None:
        self._told: dict[bytes, str] = {}
        """Those that were read lately, and whose they are."""
        self._of: dict[str, dict[str, tuple[float, Snapshot]]] = {}
        self._shared: dict[str, live_window.SharedSnapshot] = {}
        self._coming: dict[str, tuple[int, asyncio.Task[live_window.SharedSnapshot | None]]] = {}

    def add_snapshot(self, snapshot: bytes) -> live_window.SharedSnapshot:
        """A snapshot as JSON; what all brokers of its instance say by now."""
        if snapshot not in self._told:
            made = _SNAPSHOTS.decode(snapshot)
            while len(self._told) >= MAX_TOLD:
                del self._told[next(iter(self._told))]
            self._told[snapshot] = made.status.instance
            return self._add(made)
        return self._shared[self._told[snapshot]]

    def fetch(self, broker: str, at: int) -> asyncio.Task[live_window.SharedSnapshot | None]:
        """The large snapshot of that moment out of Redis, or a newer one: once for all tabs of this process."""
        if broker not in self._coming or self._coming[broker][0] != at:
            self._coming[broker] = (at, asyncio.create_task(self.large_snapshot_time(broker)))
        return self._coming[broker][1]

    async def large_snapshot_time(self, broker: str) -> live_window.SharedSnapshot | None:
        """None when there is none, or it wasn't large."""
        made = await asyncio.to_thread(_large, broker)
        return None if made is None else self._add(made)

    def _add(self, made: Snapshot) -> live_window.SharedSnapshot:
        instance, now = made.status.instance, time.monotonic()
        parts = self._of.setdefault(instance, {})
        parts[made.status.member] = (now, made)
        for silent in [one for one, (heard, _) in parts.items() if heard < now - MEMBER_HELD_S]:
            del parts[silent]
        self._shared[instance] = live_window.SharedSnapshot(
            group_answers.merge_snapshots([part for _, part in parts.values()])
        )
        return self._shared[instance]


def _large(broker: str) -> Snapshot | None:
    with suppress(redis.RedisError):
        told = latest_snapshot.read_snapshot(broker)
        return _SNAPSHOTS.decode(told) if told else None
    return None


_seen = SnapshotCache()


class SameOriginOnly:
    """Refuses WebSockets that another site's page opened: the browser would send our session cookie with them."""

    def __init__(self, inner: Callable[..., Awaitable[Any]]) -> None:
        self.inner = inner

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> Any:
        """Let the socket in when its Origin is the host that it calls; otherwise answer 403 to the handshake."""
        headers = dict(scope.get("headers") or ())
        origin = urlsplit(headers.get(b"origin", b"").decode("latin-1"))
        host = headers.get(b"host", b"").decode("latin-1")
        if origin.scheme in ("http", "https") and origin.netloc and origin.netloc.lower() == host.lower():
            return await self.inner(scope, receive, send)
        await send({"type": "websocket.close", "code": CLOSE_ENDED})
        return None


class LiveFeed(AsyncWebsocketConsumer):
    """One tab's feed."""

    sent: Snapshot | None = None
    newest: Snapshot | None = None
    shared: live_window.SharedSnapshot | None = None
    want: live_window.WindowRequest | None = None
    held: live_window.WindowState | None = None
    sequence = 0
    sent_at = 0.0
    delayed: asyncio.Task[None] | None = None
    watching: asyncio.Task[None] | None = None
    access: EffectiveAccess = EffectiveAccess()
    instance = ""

    async def connect(self) -> None:
        """Let logged-in operators in; join the group before the snapshot is read, so that nothing falls between."""
        await self.accept()  # a close before it would reach the page as 1006, without our code
        if not self.scope["user"].is_authenticated:
            await self.close(code=CLOSE_NOT_LOGGED_IN)
            return
        if not await self._still_welcome():
            await self.close(code=CLOSE_NOT_LOGGED_IN)
            return
        with suppress(ValueError):
            self.want = live_window.parse_query(self.scope.get("query_string", b"").decode("latin-1"))
        self.watching = asyncio.create_task(self._watch_session())
        await self.channel_layer.group_add(GROUP, self.channel_name)
        with suppress(SluiceError):
            # Without the broker there is no snapshot yet; its first message will be one.
            names = [one.name for one in addresses_of(self.instance)]
            found = [await _seen.large_snapshot_time(name) for name in names]
            shown = next((one for one in reversed(found) if one is not None), None)
            asked = database_sync_to_async(live.instance_snapshot)
            await self._offer(shown or live_window.SharedSnapshot(await asked(self.instance)))

    async def disconnect(self, code: int) -> None:
        """Leave the group."""
        for task in (self.delayed, self.watching):
            if task is not None and task is not asyncio.current_task():
                task.cancel()
        await self.channel_layer.group_discard(GROUP, self.channel_name)

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:
        """A tab asks for a whole snapshot again ("snapshot"), or says what it looks at now. Anything else is ignored."""
        if not text_data or len(text_data) > MAX_SAID:
            return
        if text_data != "snapshot":
            try:
                self.want = live_window.parse_message(text_data)
            except msgspec.MsgspecError:
                return
        if self.newest is not None:
            self.sent = self.held = None
            await self._send_newest()

    async def live_snapshot(self, event: dict[str, Any]) -> None:
        """The broker's snapshot of this second, or the word that a large one is there."""
        if "snapshot" in event:
            await self._offer(_seen.add_snapshot(event["snapshot"]))
        elif event["broker"].partition("/")[0] == self.instance:
            found = await asyncio.shield(_seen.fetch(event["broker"], event["at"]))
            if found is not None:
                await self._offer(found)

    def _seen(self, snapshot: Snapshot) -> Snapshot | None:
        """The part of a snapshot that this account may see: None of an instance it may not see at all."""
        instance = snapshot.status.instance
        if not self.access.allows(Permission.VIEW, instance=instance):
            return None
        patterns = self.access.client_patterns(instance)
        if patterns is None:
            return snapshot
        seen = [
            one for one in snapshot.clients if any(name_matches(pattern, one.name) for pattern in patterns)
        ]
        return msgspec.structs.replace(snapshot, clients=seen)

    async def live_decision(self, event: dict[str, Any]) -> None:
        """A decision, at once. Before the first snapshot there is nothing it could be shown beside."""
        decision, instance = _DECISIONS.decode(event["decision"]), str(event["instance"])
        if (
            self.sent is not None
            and instance == self.instance
            and self.access.allows(Permission.VIEW, instance=instance, client=decision.client)
        ):
            await self._send({"type": "decision", "decision": decision})

    async def _offer(self, shared: live_window.SharedSnapshot) -> None:
        """Send it now, or when the least interval has passed; then the newest one alone."""
        snapshot = shared.snapshot
        if snapshot.status.instance != self.instance:
            return
        if self.newest is not None and snapshot.at < self.newest.at:
            return  # the group's message overtook the snapshot asked for at connect
        if self.want is None:
            seen = self._seen(snapshot)
        else:  # a window is cut to what may be seen when it is made
            allowed = self.access.allows(Permission.VIEW, instance=snapshot.status.instance)
            seen = snapshot if allowed else None
        if seen is None:
            return
        self.newest, self.shared = seen, shared
        wait = self.sent_at + LEAST_INTERVAL_S - time.monotonic()
        if wait <= 0:
            await self._send_newest()
        elif self.delayed is None or self.delayed.done():
            self.delayed = asyncio.create_task(self._send_later(wait))

    async def _send_later(self, wait: float) -> None:
        await asyncio.sleep(wait)
        await self._send_newest()

    async def _send_newest(self) -> None:
        snapshot, sent = self.newest, self.sent
        if snapshot is None or snapshot is sent:
            return
        self.sent, self.sent_at = snapshot, time.monotonic()
        if self.want is not None and self.shared is not None:
            patterns = self.access.client_patterns(snapshot.status.instance)
            before, self.held = self.held, live_window.build_window(self.shared, self.want, patterns)
            told = (
                live_window.window_snapshot(self.held)
                if before is None
                else live_window.window_delta(before, self.held)
            )
            await self._send(told)
            return
        if sent is None:
            whole = {"at": snapshot.at, "status": snapshot.status, "clients": snapshot.clients}
            await self._send({"type": "snapshot", **whole})
        else:
            await self._send({"type": "delta", **make_delta(sent, snapshot)})

    async def _send(self, message: dict[str, object]) -> None:
        self.sequence += 1
        await self.send(text_data=msgspec.json.encode({**message, "seq": self.sequence}).decode())

    async def _watch_session(self) -> None:
        """Close when the session ends, whether or not there is anything to feed. Being fed is no use of a session."""
        while True:
            await asyncio.sleep(SESSION_CHECK_S)
            try:
                welcome = await self._still_welcome()
            except DatabaseError:
                continue  # the next look will say
            if not welcome:
                await self.close(code=CLOSE_NOT_LOGGED_IN)
                return

    async def _still_welcome(self) -> bool:
        holds: bool = await database_sync_to_async(self._session_holds)()
        return holds

    def _session_holds(self) -> bool:
        """Whether the session still holds and its account is still active; renews what the account may see."""
        request = HttpRequest()
        request.session = SessionStore(self.scope["session"].session_key)
        self.instance = current_instance.instance_chosen_in(request.session)
        user = get_user(request)
        self.access = access_of(user)
        return bool(user.is_authenticated and user.is_active)
