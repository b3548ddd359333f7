"""Live feed of the console: one WebSocket per browser tab.

The first message is a snapshot. Deltas follow, at most four a second, and each decision as it happens:

{"type": "snapshot", "seq": 1, "at": ms, "status": {...}, "clients": [...]}
{"type": "delta",    "seq": 2, "at": ms, "status": {...}, "changed": [...], "removed": [...]}
{"type": "decision", "seq": 3, "decision": {...}}

A tab requests a view in the address (`/live/?view=clients&limit=100`), and later by the message `{"view":
…}`. It then gets totals and the rows that it shows (`api/live_window.py`). A socket that requests no view
gets all clients. `instance` in the address selects an instance for this socket; without it the socket
follows the session's.

`seq` counts the messages of this socket: a page that misses one asks for a new snapshot. The channel layer
may drop what the broker sends. Each delta is made against the last message of this socket, so a drop makes
a page older but never wrong.
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
"""Group of the channel layer to which brokers send snapshots and decisions."""
_SNAPSHOTS = msgspec.json.Decoder(Snapshot)
_DECISIONS = msgspec.json.Decoder(DecisionEntry)
MIN_INTERVAL_S = 0.25
"""Minimum seconds between two snapshots or deltas of one socket."""
CLOSE_NOT_LOGGED_IN = 4401
"""WebSocket close code for a session that is not, or no longer, logged in."""
CLOSE_OTHER_SITE = 4403
"""WebSocket close code for a handshake from another site's page."""
# The feed stops within this time after its session ended elsewhere (logout, inactivity, disabled account).
# A withdrawn grant takes effect within it too.
SESSION_CHECK_S = 30.0


MAX_MESSAGE_CHARS = 64 * 1024
"""Maximum characters of a message from a tab."""
MEMBER_TIMEOUT_S = 5.0
"""Seconds after which a silent member's snapshot is omitted from its group's snapshot."""
MAX_SNAPSHOTS = 16
"""Maximum encoded snapshots that `SnapshotCache` remembers."""


class SnapshotCache:
    """Newest snapshots that this process received, decoded once for all its tabs.

    For a group it holds each member's snapshot and the merged one. Only the event loop may use it.
    """

    def __init__(self) -> None:
        self._instance_by_snapshot: dict[bytes, str] = {}
        """Instances of recently decoded snapshots, by encoded snapshot."""
        self._member_snapshots: dict[str, dict[str, tuple[float, Snapshot]]] = {}
        """Snapshots by instance and member, with the monotonic time in seconds at which they arrived."""
        self._shared: dict[str, live_window.SharedSnapshot] = {}
        """Merged snapshots by instance."""
        self._reads: dict[str, tuple[int, asyncio.Task[live_window.SharedSnapshot | None]]] = {}
        """Reads of large snapshots by broker, with the moment (ms) of the announced snapshot."""

    def add_snapshot(self, snapshot: bytes) -> live_window.SharedSnapshot:
        """Add an encoded snapshot. Returns the merged snapshot of its instance."""
        if snapshot not in self._instance_by_snapshot:
            made = _SNAPSHOTS.decode(snapshot)
            while len(self._instance_by_snapshot) >= MAX_SNAPSHOTS:
                del self._instance_by_snapshot[next(iter(self._instance_by_snapshot))]
            self._instance_by_snapshot[snapshot] = made.status.instance
            return self._add(made)
        return self._shared[self._instance_by_snapshot[snapshot]]

    def fetch(self, broker: str, at: int) -> asyncio.Task[live_window.SharedSnapshot | None]:
        """Return a task that reads a broker's large snapshot from Redis, which may be newer than `at`.

        All tabs of this process share one task for the same broker and moment. Callers must shield it from
        their own cancellation.
        """
        if broker not in self._reads or self._reads[broker][0] != at:
            self._reads[broker] = (at, asyncio.create_task(self.load_large_snapshot(broker)))
        return self._reads[broker][1]

    async def load_large_snapshot(self, broker: str) -> live_window.SharedSnapshot | None:
        """Read a broker's large snapshot from Redis; None when Redis has none or does not answer."""
        made = await asyncio.to_thread(_large, broker)
        return None if made is None else self._add(made)

    def _add(self, made: Snapshot) -> live_window.SharedSnapshot:
        """Store a member's snapshot; return the merged snapshot of its instance."""
        instance, now = made.status.instance, time.monotonic()
        parts = self._member_snapshots.setdefault(instance, {})
        parts[made.status.member] = (now, made)
        for silent in [
            one for one, (received_at, _) in parts.items() if received_at < now - MEMBER_TIMEOUT_S
        ]:
            del parts[silent]
        self._shared[instance] = live_window.SharedSnapshot(
            group_answers.merge_snapshots([part for _, part in parts.values()])
        )
        return self._shared[instance]


def _large(broker: str) -> Snapshot | None:
    """Read a broker's large snapshot from Redis; None if Redis has none or does not answer."""
    with suppress(redis.RedisError):
        encoded = latest_snapshot.read_snapshot(broker)
        return _SNAPSHOTS.decode(encoded) if encoded else None
    return None


_cache = SnapshotCache()
"""Snapshots of this process."""


class SameOriginOnly:
    """ASGI middleware that refuses WebSockets opened by pages of other sites.

    The browser sends the session cookie with such a connection, too.
    """

    def __init__(self, inner: Callable[..., Awaitable[Any]]) -> None:
        self.inner = inner

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> Any:
        """Accept a handshake whose Origin equals its Host; answer 403 to any other."""
        headers = dict(scope.get("headers") or ())
        origin = urlsplit(headers.get(b"origin", b"").decode("latin-1"))
        host = headers.get(b"host", b"").decode("latin-1")
        if origin.scheme in ("http", "https") and origin.netloc and origin.netloc.lower() == host.lower():
            return await self.inner(scope, receive, send)
        await send({"type": "websocket.close", "code": CLOSE_OTHER_SITE})
        return None


class LiveFeed(AsyncWebsocketConsumer):
    """Live feed of one browser tab."""

    sent: Snapshot | None = None
    """Snapshot in the last message to the tab; the next delta is made against it."""
    newest: Snapshot | None = None
    """Newest snapshot, restricted to the account's rights unless the tab requested a view."""
    shared: live_window.SharedSnapshot | None = None
    """Newest snapshot with its cached sort orders."""
    view_request: live_window.WindowRequest | None = None
    """View that the tab requested; None for all clients."""
    window: live_window.WindowState | None = None
    """Window that the tab has; None before its first snapshot."""
    sequence = 0
    """Number of messages sent so far."""
    sent_at = 0.0
    """Monotonic seconds of the last snapshot or delta."""
    delayed: asyncio.Task[None] | None = None
    """Task that sends the newest snapshot after `MIN_INTERVAL_S`."""
    session_check: asyncio.Task[None] | None = None
    """Task that checks the session."""
    access: EffectiveAccess = EffectiveAccess()
    """Rights of the account, renewed every `SESSION_CHECK_S`."""
    instance = ""
    """Instance that the socket describes: the one in its address, else the session's."""
    requested = ""
    """Instance in the socket's address; "" without one."""

    async def connect(self) -> None:
        """Accept a logged-in operator and send the first snapshot.

        Joins the group before it reads the snapshot, so that no update between the two is lost.
        """
        await self.accept()  # closing before accepting would reach the page as 1006, without our close code
        if not self.scope["user"].is_authenticated:
            await self.close(code=CLOSE_NOT_LOGGED_IN)
            return
        query = self.scope.get("query_string", b"").decode("latin-1")
        self.requested = live_window.requested_instance(query)
        if not await self._check_session():
            await self.close(code=CLOSE_NOT_LOGGED_IN)
            return
        with suppress(ValueError):
            self.view_request = live_window.parse_query(query)
        self.session_check = asyncio.create_task(self._watch_session())
        await self.channel_layer.group_add(GROUP, self.channel_name)
        with suppress(SluiceError):
            # Without the broker no snapshot exists yet; the broker's first message will bring one.
            names = [one.name for one in addresses_of(self.instance)]
            found = [await _cache.load_large_snapshot(name) for name in names]
            shown = next((one for one in reversed(found) if one is not None), None)
            load_snapshot = database_sync_to_async(live.instance_snapshot)
            await self._offer(shown or live_window.SharedSnapshot(await load_snapshot(self.instance)))

    async def disconnect(self, code: int) -> None:
        """Leave the group and cancel the tasks."""
        for task in (self.delayed, self.session_check):
            if task is not None and task is not asyncio.current_task():
                task.cancel()
        await self.channel_layer.group_discard(GROUP, self.channel_name)

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:
        """Handle a tab's message: "snapshot" requests a full snapshot, JSON changes the view.

        Ignores any other message.
        """
        if not text_data or len(text_data) > MAX_MESSAGE_CHARS:
            return
        if text_data != "snapshot":
            try:
                self.view_request = live_window.parse_message(text_data)
            except msgspec.MsgspecError:
                return
        if self.newest is not None:
            self.sent = self.window = None
            await self._send_newest()

    async def live_snapshot(self, event: dict[str, Any]) -> None:
        """Handle a broker's snapshot, or the notice that Redis has a large one."""
        if "snapshot" in event:
            await self._offer(_cache.add_snapshot(event["snapshot"]))
        elif event["broker"].partition("/")[0] == self.instance:
            found = await asyncio.shield(_cache.fetch(event["broker"], event["at"]))
            if found is not None:
                await self._offer(found)

    def _visible_part(self, snapshot: Snapshot) -> Snapshot | None:
        """Return the part of a snapshot that the account may see; None if it must not see the instance."""
        instance = snapshot.status.instance
        if not self.access.allows(Permission.VIEW, instance=instance):
            return None
        patterns = self.access.client_patterns(instance)
        if patterns is None:
            return snapshot
        visible = [
            one for one in snapshot.clients if any(name_matches(pattern, one.name) for pattern in patterns)
        ]
        return msgspec.structs.replace(snapshot, clients=visible)

    async def live_decision(self, event: dict[str, Any]) -> None:
        """Send a decision immediately.

        Before the first snapshot it is dropped, since the page has nothing to show it beside.
        """
        decision, instance = _DECISIONS.decode(event["decision"]), str(event["instance"])
        if (
            self.sent is not None
            and instance == self.instance
            and self.access.allows(Permission.VIEW, instance=instance, client=decision.client)
        ):
            await self._send({"type": "decision", "decision": decision})

    async def _offer(self, shared: live_window.SharedSnapshot) -> None:
        """Send a snapshot now, or once `MIN_INTERVAL_S` has passed.

        If several arrive within the interval, only the newest is sent. Ignores other instances and older
        snapshots.
        """
        snapshot = shared.snapshot
        if snapshot.status.instance != self.instance:
            return
        if self.newest is not None and snapshot.at < self.newest.at:
            return  # the group's message overtook the snapshot requested at connect
        if self.view_request is None:
            visible = self._visible_part(snapshot)
        else:  # `build_window` restricts a window to visible clients
            allowed = self.access.allows(Permission.VIEW, instance=snapshot.status.instance)
            visible = snapshot if allowed else None
        if visible is None:
            return
        self.newest, self.shared = visible, shared
        wait = self.sent_at + MIN_INTERVAL_S - time.monotonic()
        if wait <= 0:
            await self._send_newest()
        elif self.delayed is None or self.delayed.done():
            self.delayed = asyncio.create_task(self._send_later(wait))

    async def _send_later(self, wait: float) -> None:
        await asyncio.sleep(wait)
        await self._send_newest()

    async def _send_newest(self) -> None:
        """Send the newest snapshot as the requested window, as a full snapshot, or as a delta."""
        snapshot, sent = self.newest, self.sent
        if snapshot is None or snapshot is sent:
            return
        self.sent, self.sent_at = snapshot, time.monotonic()
        if self.view_request is not None and self.shared is not None:
            patterns = self.access.client_patterns(snapshot.status.instance)
            before, self.window = (
                self.window,
                live_window.build_window(self.shared, self.view_request, patterns),
            )
            message = (
                live_window.window_snapshot(self.window)
                if before is None
                else live_window.window_delta(before, self.window)
            )
            await self._send(message)
            return
        if sent is None:
            fields = {"at": snapshot.at, "status": snapshot.status, "clients": snapshot.clients}
            await self._send({"type": "snapshot", **fields})
        else:
            await self._send({"type": "delta", **make_delta(sent, snapshot)})

    async def _send(self, message: dict[str, object]) -> None:
        """Send a message with the next sequence number."""
        self.sequence += 1
        await self.send(text_data=msgspec.json.encode({**message, "seq": self.sequence}).decode())

    async def _watch_session(self) -> None:
        """Close the feed when its session ends, even if there is no update to send.

        Receiving updates does not count as activity of the session.
        """
        while True:
            await asyncio.sleep(SESSION_CHECK_S)
            try:
                welcome = await self._check_session()
            except DatabaseError:
                continue  # the next check decides
            if not welcome:
                await self.close(code=CLOSE_NOT_LOGGED_IN)
                return

    async def _check_session(self) -> bool:
        holds: bool = await database_sync_to_async(self._is_session_valid)()
        return holds

    def _is_session_valid(self) -> bool:
        """Return whether the session is valid and its account active. Renews `access` and `instance`.

        After a change of either, the snapshot that was allowed before is discarded.
        """
        request = HttpRequest()
        request.session = SessionStore(self.scope["session"].session_key)
        user, before = get_user(request), (self.instance, self.access)
        self.instance = self.requested or current_instance.instance_chosen_in(request.session)
        self.access = access_of(user)
        if (self.instance, self.access) != before:
            self.newest = self.shared = self.sent = self.window = None
        return bool(user.is_authenticated and user.is_active)
