"""NATS JetStream as the log service.

One file-backed stream for a log, with three replicas if there are three servers.

Only members of a group import this module.

Each member appends under its own subject. Each append states which of the member's entries must be the
newest (`Nats-Expected-Last-Subject-Sequence`). So an entry whose answer was lost is in the log once,
however often it is sent. A delayed entry can't come behind a later one. Of two processes with one member's
name only the later one appends. The server's deduplication window for `Nats-Msg-Id` isn't needed.

A consumer reads only what the quorum has committed. It lives in the memory of one server. If that server
fails, another consumer is made where reading stopped. Every wait has a limit. A failed connection isn't
repaired: `attach` makes a new one.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress
from secrets import token_hex
from typing import Any, Final, TypeVar
from uuid import UUID

import structlog
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.js import api
from nats.js.errors import APIError, NotFoundError

from broker_core.errors import OperatorError
from broker_core.group.engine_log import (
    MAX_ENTRY_BYTES,
    AppendConflictError,
    EntrySender,
    LogEntry,
    LogServiceUnavailableError,
    StreamInfo,
    StreamOrigin,
    unpacked_size,
)
from broker_core.group.settings import GroupSettings

T = TypeVar("T")
log = structlog.get_logger("sluice.group")
ANSWER_S: Final = 4.0
"""Seconds that one request waits. The member's retries and its hold limit are longer."""
SILENCE_S: Final = 4.0
"""Seconds without a message of the consumer after which it counts as failed.

It sends a heartbeat each second.
"""
PULL: Final = 64
PULL_BYTES: Final = 2 * MAX_ENTRY_BYTES
"""Bytes of one pull request. As many again may be in flight."""
ASKED_FOR_S: Final = 3.0
"""Seconds after which a pull request expires and the next is made.

A server that can send but receives nothing becomes silent then, which SILENCE_S detects.
"""
LACKING: Final = 3
"""Heartbeats in a row without an entry that the log has, after which reading moves to another server.

JetStream may place a consumer on any server: also on one that is catching up, for minutes if it lost its
disk, or one that receives nothing from the others. Such a server sends only heartbeats, one each second.
The leader can't tell which servers are up to date.
"""
PLACED_ANEW: Final = 8
"""Maximum consumers made to get one on another server. JetStream places them at random."""
RETENTION_S: Final = 72 * 3_600.0
"""Seconds that the log service retains an entry: the longest time that a member may be away."""
HEARD_NS: Final = 5 * 1_000_000_000
"""Time within which a leader must have had contact with a majority, else it may be deposed.

Servers send each second.
"""
SEEN_NS: Final = 10 * 1_000_000_000
"""Time in ns without contact to the leader after which a server doesn't count as up to date.

This also holds if there was nothing to replicate.
"""
_HEADROOM: Final = 64 * 1024
_STILL_UNDER_WAY: Final = 10164
"""Error code of JetStream: an earlier entry of the subject is still being stored.

Seen four times in some 7,000 entries of 1 MB, although the entry before had been answered: the server seems
to answer a moment before it has noted that it did.
"""
STORED_AGAIN: Final = 20
"""Attempts after _STILL_UNDER_WAY, every 10 ms.

A refused entry isn't in the log, and each attempt is compared again.
"""
_WRONG_LAST, _IN_USE, _NO_STREAM, _NO_MESSAGE = 10071, 10058, 10059, 10037
_RUN, _NUMBER = "Sluice-Run", "Sluice-Number"
_LOG, _GENERATION = "sluice_log", "sluice_generation"
_ENDINGS = ("batch completed", "message size exceeds maxbytes")
"""Descriptions of a status that ends a pull request normally.

The request has delivered all its entries, or all the whole entries that fit its bytes.
"""
_KEPT = "kept"
"""Part of the subjects of a log that was set aside. No member appends there."""
_BASE, _BASE_CHAIN = "sluice_base", "sluice_base_chain"
_KEY, _KEY_BYTES = "sluice_key", 32
_NS = 1_000_000_000


class StreamReplacedError(LogServiceUnavailableError):
    """The stream was set aside: it is no group's log any longer, and another one replaces it."""


class JetStreamLog:
    """The log of a group, for one member. Implements `engine_log.SharedLog`, which documents the methods."""

    def __init__(self, settings: GroupSettings) -> None:
        self._settings = settings
        self._stream = _name_of(settings, 1)
        self._subject = f"sluice.{settings.instance}.log.{settings.member}"
        self._told = f"sluice.{settings.instance}.told.{settings.member}"
        self._client: Client | None = None
        self._pulled: Subscription | None = None
        self._consumer = ""
        self._reads_at = ""
        """The server that has the consumer; "" for a single server."""
        self._lacking = 0
        """Heartbeats in a row that came although the log has an entry that the consumer didn't deliver."""
        self._asked = 0
        """Messages of the current pull requests that are still to come."""
        self._following = 0
        """The number of the next entry."""
        self._heard: Callable[[bytes], None] | None = None
        self._why = ""
        self._server = ""
        """The server of the newest connection."""
        self._end: int | None = None
        """The log's newest entry at the check before."""

    # The connection and the stream.

    async def attach(self, offered: UUID | None, *, elsewhere: bool = False) -> StreamInfo:
        await self._reach(self._server if elsewhere else "")
        try:
            attached = await self._look()
            if elsewhere and 2 * attached.heard <= attached.servers:
                raise _unconfirmed(attached)
            return attached
        except NotFoundError:
            if offered is None:
                raise self._lost() from None
        except StreamReplacedError:
            raise self._lost() from None
        # Another member may create the stream at this moment; then its metadata count.
        await self._make(StreamOrigin(offered))
        return await self.stream_info()

    def _lost(self) -> OperatorError:
        return OperatorError(
            "engine_lost",
            f"The engine has no log of {self._settings.instance}.",
            "A member that has applied one acknowledges nothing until it is back. See "
            "`engine_lost` in docs/group.md.",
        )

    async def create_stream(self, beginning: StreamOrigin) -> StreamInfo:
        await self._reach()
        self._stream = _name_of(self._settings, beginning.generation)
        if not await self._make(beginning):
            raise OperatorError(
                "log_exists",
                f"The engine has a stream {self._stream} already.",
                "To join it: `replication join`, or `reseed` where there is a journal.",
            )
        return await self.stream_info()

    async def retire_stream(self) -> str:
        await self._reach()
        try:
            config = (await _answered(self._open.jetstream().stream_info(self._stream))).config
            kept = (
                f"sluice.{self._settings.instance}.{_KEPT}.{(config.metadata or {}).get(_GENERATION, '1')}.*"
            )
            await _answered(self._open.jetstream().update_stream(config, subjects=[kept]))
        except APIError as problem:
            raise _away(problem) from None
        return self._stream

    async def _reach(self, other_than: str = "") -> None:
        """Connect, if possible to another server than `other_than`."""
        await self.close()
        self._why, self._end = "", None
        self._client = client = Client()
        servers = list(self._settings.engines)
        await self._connect(client, [one for one in servers if one != other_than] or servers)
        self._server = client.connected_url.geturl() if client.connected_url is not None else ""
        largest = client.max_payload
        if largest < MAX_ENTRY_BYTES + _HEADROOM:
            raise OperatorError(
                "wrong_stream",
                f"The engine takes messages of {largest} bytes, and a batch may have {MAX_ENTRY_BYTES}.",
                f"Set max_payload to {MAX_ENTRY_BYTES + _HEADROOM} or more in its configuration.",
            )
        if self._heard is not None:
            await _answered(client.subscribe(f"sluice.{self._settings.instance}.told.*", cb=self._on_told))
        self._stream = await self._named()

    async def _named(self) -> str:
        """Return the name of the stream that receives the group's entries.

        The first generation's if there is none.

        A subject belongs to one stream at most.
        """
        wanted = f"sluice.{self._settings.instance}.log.*"
        try:
            return await _answered(self._open.jetstream().find_stream_name_by_subject(wanted))
        except NotFoundError:
            return _name_of(self._settings, 1)
        except APIError as problem:
            raise _away(problem) from None

    def _tls(self) -> ssl.SSLContext | None:
        """Return the TLS context of the settings; None without `tls://` addresses.

        The CA file is read for each connection, so that a renewed one takes effect.
        """
        if not any(one.startswith("tls://") for one in self._settings.engines):
            return None
        ca = self._settings.ca
        try:
            return ssl.create_default_context(cafile=ca or None)
        except OSError as problem:  # SSLError is one
            raise LogServiceUnavailableError(f"{ca} can't be used: {problem}") from None

    async def _connect(self, client: Client, servers: list[str]) -> None:
        tls = self._tls()
        try:
            await _answered(
                client.connect(
                    servers=servers,
                    name=f"sluice {self._settings.instance} {self._settings.member}",
                    allow_reconnect=False,
                    connect_timeout=2,
                    ping_interval=2,
                    max_outstanding_pings=2,
                    pending_size=2 * (MAX_ENTRY_BYTES + _HEADROOM),
                    error_cb=self._on_error,
                    tls=tls,
                ),
                ANSWER_S * 2,
            )
        except LogServiceUnavailableError as problem:
            raise LogServiceUnavailableError(self._why or str(problem)) from None

    async def _on_error(self, problem: Exception) -> None:
        self._why = _said(problem)

    async def _make(self, beginning: StreamOrigin) -> bool:
        """Create the stream; return False if it exists already."""
        config = api.StreamConfig(
            name=self._stream,
            subjects=[f"sluice.{self._settings.instance}.log.*"],
            storage=api.StorageType.FILE,
            num_replicas=self._settings.replicas,
            max_age=RETENTION_S,
            discard=api.DiscardPolicy.OLD,
            deny_delete=True,
            deny_purge=True,
            metadata={
                _LOG: str(beginning.log),
                _GENERATION: str(beginning.generation),
                _BASE: str(beginning.base),
                _BASE_CHAIN: beginning.chain.hex(),
                _KEY: token_hex(_KEY_BYTES),
            },
        )
        try:
            await _answered(self._open.jetstream().add_stream(config))
        except APIError as problem:
            if problem.err_code != _IN_USE:
                raise _away(problem) from None
            return False
        return True

    async def stream_info(self) -> StreamInfo:
        try:
            return await self._look()
        except NotFoundError as problem:
            # Restarted servers may not know the stream for a moment. `attach` decides whether it is lost.
            raise _away(problem) from None

    async def _look(self) -> StreamInfo:
        """Return the state of the stream.

        Raises NotFoundError if there is none, StreamReplacedError, OperatorError wrong_stream.
        """
        try:
            info = await _answered(self._open.jetstream().stream_info(self._stream))
        except NotFoundError as problem:
            if problem.err_code != _NO_STREAM:
                raise _away(problem) from None
            raise
        except APIError as problem:
            raise _away(problem) from None
        config, cluster = info.config, info.cluster
        metadata = config.metadata or {}
        try:
            log, generation = UUID(metadata[_LOG]), int(metadata[_GENERATION])
            base, chain = int(metadata[_BASE]), bytes.fromhex(metadata[_BASE_CHAIN])
            key = bytes.fromhex(metadata[_KEY])
        except (KeyError, ValueError):
            raise self._wrong("it doesn't say whose log it is") from None
        if config.subjects and config.subjects[0].startswith(f"sluice.{self._settings.instance}.{_KEPT}."):
            raise StreamReplacedError(f"{self._stream} was set aside")
        if config.subjects != [f"sluice.{self._settings.instance}.log.*"]:
            raise self._wrong(f"its subjects are {config.subjects}")
        if config.storage != api.StorageType.FILE or config.retention != api.RetentionPolicy.LIMITS:
            raise self._wrong("it doesn't keep its entries in files until they are old")
        if not (config.deny_delete and config.deny_purge):
            raise self._wrong("entries of it can be deleted")
        replicas = (cluster.replicas or []) if cluster is not None else []
        # `before` is None in a new connection: then no earlier end can excuse a server that lags.
        last, before, self._end = info.state.last_seq, self._end, info.state.last_seq
        return StreamInfo(
            log,
            generation,
            info.state.first_seq,
            last,
            (cluster.leader or "") if cluster is not None else "",
            1 + len(replicas),
            1 + sum(_up_to_date(one, last, before) for one in replicas),
            base,
            chain,
            key,
            1 + sum(_is_heard(one) for one in replicas),
        )

    def _wrong(self, why: str) -> OperatorError:
        return OperatorError(
            "wrong_stream",
            f"The engine's stream {self._stream} can't be the log of {self._settings.instance}: {why}.",
            "Name other engines (SLUICE_GROUP_ENGINES), or remove that stream if it is nobody's.",
        )

    # Appending.

    async def append(self, sender: EntrySender, content: bytes, expected: int) -> int:
        headers = {
            _RUN: sender.run,
            _NUMBER: str(sender.number),
            api.Header.EXPECTED_LAST_SUBJECT_SEQUENCE.value: str(expected),
        }
        js = self._open.jetstream()
        for left in reversed(range(STORED_AGAIN)):
            try:
                ack = await _answered(
                    js.publish(self._subject, content, timeout=ANSWER_S, stream=self._stream, headers=headers)
                )
            except APIError as problem:
                if problem.err_code == _WRONG_LAST:
                    raise AppendConflictError from None
                if problem.err_code != _STILL_UNDER_WAY or not left:
                    raise _away(problem) from None
                await asyncio.sleep(0.01)
            else:
                break
        return ack.seq

    async def newest_entry(self) -> tuple[int, EntrySender] | None:
        try:
            found = await _answered(self._open.jetstream().get_last_msg(self._stream, self._subject))
        except NotFoundError as problem:
            if problem.err_code != _NO_MESSAGE:
                raise _away(problem) from None
            return None
        except APIError as problem:
            raise _away(problem) from None
        return found.seq or 0, _sender(self._settings.member, found.headers)

    # Reading.

    async def read_from(self, number: int) -> None:
        self._following = number
        await self._read(elsewhere_than="")

    async def _read(self, elsewhere_than: str) -> None:
        """Make a consumer at the next entry, and pull from it.

        `elsewhere_than`: a server to avoid, if chance permits; "" for none.
        """
        client, self._lacking, self._asked = self._open, 0, 0
        config = api.ConsumerConfig(
            deliver_policy=api.DeliverPolicy.BY_START_SEQUENCE,
            opt_start_seq=self._following,
            ack_policy=api.AckPolicy.NONE,
            num_replicas=1,
            mem_storage=True,
            inactive_threshold=30.0,
            max_waiting=8,
        )
        for _ in range(PLACED_ANEW):
            try:
                made = await _answered(client.jetstream().add_consumer(self._stream, config))
            except APIError as problem:
                raise _away(problem) from None
            self._consumer = made.name
            self._reads_at = (made.cluster.leader or "") if made.cluster is not None else ""
            if not elsewhere_than or self._reads_at != elsewhere_than:
                break  # abandoned consumers expire (`inactive_threshold`)
        self._pulled = await _answered(
            client.subscribe(client.new_inbox(), pending_msgs_limit=8 * PULL, pending_bytes_limit=0)
        )
        await self._pull()

    async def _pull(self) -> None:
        """Request PULL more entries, so that they arrive before the present ones have been applied."""
        assert self._pulled is not None
        asked = {
            "batch": PULL,
            "max_bytes": PULL_BYTES,
            "expires": int(ASKED_FOR_S * _NS),
            "idle_heartbeat": _NS,
        }
        subject = f"$JS.API.CONSUMER.MSG.NEXT.{self._stream}.{self._consumer}"
        await _answered(self._open.publish(subject, json.dumps(asked).encode(), self._pulled.subject))
        self._asked += PULL

    async def next_entry(self, max_bytes: int) -> list[LogEntry]:
        assert self._pulled is not None
        entries: list[LogEntry] = []
        size = 0
        while not entries or (self._pulled.pending_msgs and size < max_bytes):
            message = await self._message(self._pulled)
            if message.headers and "Status" in message.headers:
                await self._on_status(message.headers)
                continue
            self._asked -= 1
            self._lacking = 0
            entry = self._entry(message)
            if entry is not None:
                entries.append(entry)
                size += unpacked_size(entry.content)
            if self._asked <= 0:
                await self._pull()
        return entries

    async def _message(self, pulled: Subscription) -> Msg:
        try:
            return await _answered(pulled.next_msg(SILENCE_S), 2 * SILENCE_S)
        except LogServiceUnavailableError as problem:
            raise LogServiceUnavailableError(f"the log can't be read: {self._why or problem}") from None

    async def _on_status(self, headers: dict[str, str]) -> None:
        """Process a status message of the consumer: a heartbeat, or the end of a pull request.

        Moves the reading to another server if this one lacks entries. Raises LogServiceUnavailableError for
        any other status.
        """
        status = headers["Status"]
        assert self._pulled is not None
        if not self._pulled.pending_msgs:  # else it is older than the queued messages
            self._lacking = self._lacking + 1 if self._following <= (self._end or 0) else 0
        if self._lacking >= LACKING:
            await self._read_elsewhere()
            return
        if status == "100":
            return  # a heartbeat
        why = headers.get("Description", "").lower()
        if status in ("404", "408") or (status == "409" and any(ending in why for ending in _ENDINGS)):
            # The pull request ended before it delivered all its entries. After a complete one, its last
            # entry has already caused the next request. Another request for each ending would leave ever
            # more in flight, in the end more than the subscription holds.
            self._asked -= int(headers.get("Nats-Pending-Messages", self._asked))
            if self._asked <= 0:
                await self._pull()
            return
        raise LogServiceUnavailableError(f"the log can't be read: {status} {headers.get('Description', '')}")

    async def _read_elsewhere(self) -> None:
        """Continue reading on another server."""
        log.warning("engine_lacks_entries", engine=self._reads_at, wanted=self._following, last=self._end)
        assert self._pulled is not None
        await _answered(self._pulled.unsubscribe())
        await self._read(elsewhere_than=self._reads_at)

    def _entry(self, message: Msg) -> LogEntry | None:
        """Return a message as the next entry; None for an entry that was read before.

        Raises LogServiceUnavailableError if an entry is missing before it.
        """
        words = message.reply.split(".")
        # $JS.ACK.stream.consumer.delivered.entry.delivery.at.behind; a domain and an account may precede
        # the stream.
        number, at, behind = (
            (int(words[5]), int(words[7]), int(words[8]))
            if len(words) == 9
            else (int(words[7]), int(words[9]), int(words[10]))
        )
        if number < self._following:
            return None
        if number > self._following:
            raise LogServiceUnavailableError(f"entry {number} came where {self._following} was expected")
        self._following += 1
        member = message.subject.rpartition(".")[2]
        return LogEntry(number, at, _sender(member, message.headers), message.data, behind)

    # Messages between members.

    async def publish_status(self, content: bytes) -> None:
        await _answered(self._open.publish(self._told, content))

    def read_statuses(self, heard: Callable[[bytes], None]) -> None:
        self._heard = heard

    async def _on_told(self, message: Msg) -> None:
        if self._heard is not None:
            self._heard(message.data)

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            with suppress(Exception):
                await asyncio.wait_for(client.close(), ANSWER_S)

    @property
    def is_connected(self) -> bool:
        return self._client is not None and self._client.is_connected

    @property
    def _open(self) -> Client:
        """The open connection. Raises LogServiceUnavailableError without one."""
        if self._client is None or not self._client.is_connected:
            raise LogServiceUnavailableError(self._why or "the connection is closed")
        return self._client


async def _answered(work: Awaitable[T], seconds: float = 2 * ANSWER_S) -> T:
    """Await an answer of the NATS client for at most `seconds`.

    JetStream's refusals (APIError) pass, because their meaning differs between calls. Any other failure
    makes the connection unusable and raises LogServiceUnavailableError.
    """
    try:
        return await asyncio.wait_for(work, seconds)
    except APIError:
        raise
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        # The client cancels the awaiting task when its connection closes.
        raise LogServiceUnavailableError("the connection was closed") from None
    except Exception as problem:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            # The client turned this task's own cancellation into another exception.
            raise asyncio.CancelledError from None
        raise LogServiceUnavailableError(_said(problem)) from None


def _is_heard(engine: api.PeerInfo) -> bool:
    """Return whether the leader has had contact with this server within HEARD_NS."""
    return not engine.offline and engine.active is not None and engine.active < HEARD_NS


def _unconfirmed(attached: StreamInfo) -> LogServiceUnavailableError:
    return LogServiceUnavailableError(
        f"{attached.leader or 'a server'} answers as the leader,"
        f" and has heard {attached.heard} of {attached.servers} servers"
    )


def _up_to_date(engine: api.PeerInfo, last: int, before: int | None) -> bool:
    """Return whether a server has all entries, or lacks only entries newer than the previous check.

    `before`: the log's last entry at that check; None if there was none. Under load each server is an entry
    or two behind at any moment; a server that doesn't keep up is behind at two checks.
    """
    if engine.current:
        return True
    if engine.offline or engine.active is None or engine.active >= SEEN_NS or before is None:
        return False
    return last - (engine.lag or 0) >= before


def _name_of(settings: GroupSettings, generation: int) -> str:
    """Return the name of a generation's stream. No instance name contains a "="."""
    return settings.stream if generation == 1 else f"{settings.stream}={generation}"


def _sender(member: str, headers: dict[str, Any] | None) -> EntrySender:
    """Return the sender of an entry from its headers."""
    said = headers or {}
    number = str(said.get(_NUMBER, ""))
    return EntrySender(member, str(said.get(_RUN, "")), int(number) if number.isdigit() else 0)


def _away(problem: APIError) -> LogServiceUnavailableError:
    """Convert a refusal of JetStream to LogServiceUnavailableError."""
    return LogServiceUnavailableError(f"{problem.description or problem} ({problem.err_code})")


def _said(problem: BaseException) -> str:
    """Return the text of an exception of the client."""
    if isinstance(problem, TimeoutError):  # NATS's says "timeout", Python's nothing
        return "no engine answers in time"
    return str(problem).removeprefix("nats: ") or type(problem).__name__
