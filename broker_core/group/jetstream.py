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

from broker_core.errors import OperatorError, describe_exception
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
REQUEST_TIMEOUT_S: Final = 4.0
"""Seconds that one request waits. The member's retries and its hold limit are longer."""
CONSUMER_TIMEOUT_S: Final = 4.0
"""Seconds without a message of the consumer after which it counts as failed.

It sends a heartbeat each second.
"""
PULL_MESSAGES: Final = 64
PULL_BYTES: Final = 2 * MAX_ENTRY_BYTES
"""Bytes of one pull request. As many again may be in flight."""
PULL_EXPIRY_S: Final = 3.0
"""Seconds after which a pull request expires and the next is made.

A server that can send but receives nothing becomes silent then, which SILENCE_S detects.
"""
MAX_STALE_HEARTBEATS: Final = 3
"""Heartbeats in a row without an entry that the log has, after which reading moves to another server.

JetStream may place a consumer on any server: also on one that is catching up, for minutes if it lost its
disk, or one that receives nothing from the others. Such a server sends only heartbeats, one each second.
The leader can't tell which servers are up to date.
"""
MAX_CONSUMER_ATTEMPTS: Final = 8
"""Maximum consumers made to get one on another server. JetStream places them at random."""
RETENTION_S: Final = 72 * 3_600.0
"""Seconds that the log service retains an entry: the longest time that a member may be away."""
MAX_LEADER_SILENCE_NS: Final = 5 * 1_000_000_000
"""Time within which a leader must have had contact with a majority, else it may be deposed.

Servers send each second.
"""
MAX_SERVER_SILENCE_NS: Final = 10 * 1_000_000_000
"""Time in ns without contact to the leader after which a server doesn't count as up to date.

This also holds if there was nothing to replicate.
"""
_HEADROOM: Final = 64 * 1024
_PREVIOUS_NOT_STORED: Final = 10164
"""Error code of JetStream: an earlier entry of the subject is still being stored.

Seen four times in some 7,000 entries of 1 MB, although the entry before had been answered: the server seems
to answer a moment before it has noted that it did.
"""
MAX_APPEND_ATTEMPTS: Final = 20
"""Attempts after _STILL_UNDER_WAY, every 10 ms.

A refused entry isn't in the log, and each attempt is compared again.
"""
_WRONG_LAST, _IN_USE, _NO_STREAM, _NO_MESSAGE = 10071, 10058, 10059, 10037
_RUN, _NUMBER = "Sluice-Run", "Sluice-Number"
_LOG, _GENERATION = "sluice_log", "sluice_generation"
_PULL_END_TEXTS = ("batch completed", "message size exceeds maxbytes")
"""Descriptions of a status that ends a pull request normally.

The request has delivered all its entries, or all the whole entries that fit its bytes.
"""
_RETIRED = "kept"
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
        self._stream = _stream_name(settings, 1)
        self._subject = f"sluice.{settings.instance}.log.{settings.member}"
        self._status_subject = f"sluice.{settings.instance}.told.{settings.member}"
        self._client: Client | None = None
        self._pull_subscription: Subscription | None = None
        self._consumer = ""
        self._consumer_server = ""
        """The server that has the consumer; "" for a single server."""
        self._stale_heartbeats = 0
        """Heartbeats in a row that came although the log has an entry that the consumer didn't deliver."""
        self._messages_due = 0
        """Messages of the current pull requests that are still to come."""
        self._next_number = 0
        """The number of the next entry."""
        self._on_message: Callable[[bytes], None] | None = None
        self._last_error = ""
        self._server = ""
        """The server of the newest connection."""
        self._checked_end: int | None = None
        """The log's newest entry at the check before."""

    # The connection and the stream.

    async def attach(self, offered: UUID | None, *, elsewhere: bool = False) -> StreamInfo:
        await self._reconnect(self._server if elsewhere else "")
        try:
            stream = await self._read_stream_info()
            if elsewhere and 2 * stream.reachable <= stream.servers:
                raise _unconfirmed_error(stream)
            return stream
        except NotFoundError:
            if offered is None:
                raise self._log_lost_error() from None
        except StreamReplacedError:
            raise self._log_lost_error() from None
        # Another member may create the stream at this moment; then its metadata count.
        await self._add_stream(StreamOrigin(offered))
        return await self.stream_info()

    def _log_lost_error(self) -> OperatorError:
        return OperatorError(
            "engine_lost",
            f"The log service has no log of {self._settings.instance}.",
            "A member that has applied its log acknowledges nothing until the log is restored. See "
            "`engine_lost` in docs/group.md.",
        )

    async def create_stream(self, beginning: StreamOrigin) -> StreamInfo:
        await self._reconnect()
        self._stream = _stream_name(self._settings, beginning.generation)
        if not await self._add_stream(beginning):
            raise OperatorError(
                "log_exists",
                f"The log service has a stream {self._stream} already.",
                "To join it: `replication join`, or `reseed` where there is a journal.",
            )
        return await self.stream_info()

    async def retire_stream(self) -> str:
        await self._reconnect()
        try:
            config = (await _await_answer(self._open_client.jetstream().stream_info(self._stream))).config
            generation = (config.metadata or {}).get(_GENERATION, "1")
            retired_subjects = f"sluice.{self._settings.instance}.{_RETIRED}.{generation}.*"
            await _await_answer(
                self._open_client.jetstream().update_stream(config, subjects=[retired_subjects])
            )
        except APIError as problem:
            raise _unavailable_error(problem) from None
        return self._stream

    async def _reconnect(self, avoided_server: str = "") -> None:
        """Connect, if possible to another server than `avoided_server`."""
        await self.close()
        self._last_error, self._checked_end = "", None
        self._client = client = Client()
        servers = list(self._settings.engines)
        await self._connect(client, [server for server in servers if server != avoided_server] or servers)
        self._server = client.connected_url.geturl() if client.connected_url is not None else ""
        largest = client.max_payload
        if largest < MAX_ENTRY_BYTES + _HEADROOM:
            raise OperatorError(
                "wrong_stream",
                f"The log service accepts messages of {largest} bytes, but a batch can have "
                f"{MAX_ENTRY_BYTES}.",
                f"Set max_payload to {MAX_ENTRY_BYTES + _HEADROOM} or more in its configuration.",
            )
        if self._on_message is not None:
            await _await_answer(
                client.subscribe(f"sluice.{self._settings.instance}.told.*", cb=self._on_nats_message)
            )
        self._stream = await self._find_stream_name()

    async def _find_stream_name(self) -> str:
        """Return the name of the stream that receives the group's entries.

        The first generation's if there is none.

        A subject belongs to one stream at most.
        """
        subjects = f"sluice.{self._settings.instance}.log.*"
        try:
            return await _await_answer(self._open_client.jetstream().find_stream_name_by_subject(subjects))
        except NotFoundError:
            return _stream_name(self._settings, 1)
        except APIError as problem:
            raise _unavailable_error(problem) from None

    def _tls(self) -> ssl.SSLContext | None:
        """Return the TLS context of the settings; None without `tls://` addresses.

        The CA file is read for each connection, so that a renewed one takes effect.
        """
        if not any(address.startswith("tls://") for address in self._settings.engines):
            return None
        ca = self._settings.ca
        try:
            return ssl.create_default_context(cafile=ca or None)
        except OSError as problem:  # SSLError is one
            raise LogServiceUnavailableError(f"{ca} can't be used: {problem}") from None

    async def _connect(self, client: Client, servers: list[str]) -> None:
        tls = self._tls()
        try:
            await _await_answer(
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
                REQUEST_TIMEOUT_S * 2,
            )
        except LogServiceUnavailableError as problem:
            raise LogServiceUnavailableError(self._last_error or str(problem)) from None

    async def _on_error(self, problem: Exception) -> None:
        self._last_error = _error_text(problem)

    async def _add_stream(self, beginning: StreamOrigin) -> bool:
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
            await _await_answer(self._open_client.jetstream().add_stream(config))
        except APIError as problem:
            if problem.err_code != _IN_USE:
                raise _unavailable_error(problem) from None
            return False
        return True

    async def stream_info(self) -> StreamInfo:
        try:
            return await self._read_stream_info()
        except NotFoundError as problem:
            # Restarted servers may not know the stream for a moment. `attach` decides whether it is lost.
            raise _unavailable_error(problem) from None

    async def _read_stream_info(self) -> StreamInfo:
        """Return the state of the stream.

        Raises NotFoundError if there is none, StreamReplacedError, OperatorError wrong_stream.
        """
        try:
            info = await _await_answer(self._open_client.jetstream().stream_info(self._stream))
        except NotFoundError as problem:
            if problem.err_code != _NO_STREAM:
                raise _unavailable_error(problem) from None
            raise
        except APIError as problem:
            raise _unavailable_error(problem) from None
        config, cluster = info.config, info.cluster
        metadata = config.metadata or {}
        try:
            log, generation = UUID(metadata[_LOG]), int(metadata[_GENERATION])
            base, chain = int(metadata[_BASE]), bytes.fromhex(metadata[_BASE_CHAIN])
            key = bytes.fromhex(metadata[_KEY])
        except (KeyError, ValueError):
            raise self._wrong_stream_error("it doesn't name the owner of its log") from None
        if config.subjects and config.subjects[0].startswith(f"sluice.{self._settings.instance}.{_RETIRED}."):
            raise StreamReplacedError(f"{self._stream} was set aside")
        if config.subjects != [f"sluice.{self._settings.instance}.log.*"]:
            raise self._wrong_stream_error(f"its subjects are {config.subjects}")
        if config.storage != api.StorageType.FILE or config.retention != api.RetentionPolicy.LIMITS:
            raise self._wrong_stream_error("it doesn't store its entries in files until they expire")
        if not (config.deny_delete and config.deny_purge):
            raise self._wrong_stream_error("entries of it can be deleted")
        replicas = (cluster.replicas or []) if cluster is not None else []
        # `previous_last` is None in a new connection: then no earlier end can excuse a server that lags.
        last, previous_last, self._checked_end = info.state.last_seq, self._checked_end, info.state.last_seq
        return StreamInfo(
            log,
            generation,
            info.state.first_seq,
            last,
            (cluster.leader or "") if cluster is not None else "",
            1 + len(replicas),
            1 + sum(_is_up_to_date(server, last, previous_last) for server in replicas),
            base,
            chain,
            key,
            1 + sum(_is_reachable(server) for server in replicas),
        )

    def _wrong_stream_error(self, reason: str) -> OperatorError:
        return OperatorError(
            "wrong_stream",
            f"The log service's stream {self._stream} can't be the log of "
            f"{self._settings.instance}: {reason}.",
            "Set SLUICE_GROUP_ENGINES to other servers, or remove that stream if no group uses it.",
        )

    # Appending.

    async def append(self, sender: EntrySender, content: bytes, expected: int) -> int:
        headers = {
            _RUN: sender.run,
            _NUMBER: str(sender.number),
            api.Header.EXPECTED_LAST_SUBJECT_SEQUENCE.value: str(expected),
        }
        js = self._open_client.jetstream()
        for remaining_attempts in reversed(range(MAX_APPEND_ATTEMPTS)):
            try:
                ack = await _await_answer(
                    js.publish(
                        self._subject,
                        content,
                        timeout=REQUEST_TIMEOUT_S,
                        stream=self._stream,
                        headers=headers,
                    )
                )
            except APIError as problem:
                if problem.err_code == _WRONG_LAST:
                    raise AppendConflictError from None
                if problem.err_code != _PREVIOUS_NOT_STORED or not remaining_attempts:
                    raise _unavailable_error(problem) from None
                await asyncio.sleep(0.01)
            else:
                break
        return ack.seq

    async def newest_entry(self) -> tuple[int, EntrySender] | None:
        try:
            message = await _await_answer(
                self._open_client.jetstream().get_last_msg(self._stream, self._subject)
            )
        except NotFoundError as problem:
            if problem.err_code != _NO_MESSAGE:
                raise _unavailable_error(problem) from None
            return None
        except APIError as problem:
            raise _unavailable_error(problem) from None
        return message.seq or 0, _parse_sender(self._settings.member, message.headers)

    # Reading.

    async def read_from(self, number: int) -> None:
        self._next_number = number
        await self._start_consumer(avoided_server="")

    async def _start_consumer(self, avoided_server: str) -> None:
        """Make a consumer at the next entry, and pull from it.

        `avoided_server`: a server to avoid, if chance permits; "" for none.
        """
        client, self._stale_heartbeats, self._messages_due = self._open_client, 0, 0
        config = api.ConsumerConfig(
            deliver_policy=api.DeliverPolicy.BY_START_SEQUENCE,
            opt_start_seq=self._next_number,
            ack_policy=api.AckPolicy.NONE,
            num_replicas=1,
            mem_storage=True,
            inactive_threshold=30.0,
            max_waiting=8,
        )
        for _ in range(MAX_CONSUMER_ATTEMPTS):
            try:
                consumer = await _await_answer(client.jetstream().add_consumer(self._stream, config))
            except APIError as problem:
                raise _unavailable_error(problem) from None
            self._consumer = consumer.name
            self._consumer_server = (consumer.cluster.leader or "") if consumer.cluster is not None else ""
            if not avoided_server or self._consumer_server != avoided_server:
                break  # abandoned consumers expire (`inactive_threshold`)
        self._pull_subscription = await _await_answer(
            client.subscribe(client.new_inbox(), pending_msgs_limit=8 * PULL_MESSAGES, pending_bytes_limit=0)
        )
        await self._request_entries()

    async def _request_entries(self) -> None:
        """Request PULL more entries, so that they arrive before the present ones have been applied."""
        assert self._pull_subscription is not None
        request = {
            "batch": PULL_MESSAGES,
            "max_bytes": PULL_BYTES,
            "expires": int(PULL_EXPIRY_S * _NS),
            "idle_heartbeat": _NS,
        }
        subject = f"$JS.API.CONSUMER.MSG.NEXT.{self._stream}.{self._consumer}"
        await _await_answer(
            self._open_client.publish(subject, json.dumps(request).encode(), self._pull_subscription.subject)
        )
        self._messages_due += PULL_MESSAGES

    async def next_entry(self, max_bytes: int) -> list[LogEntry]:
        assert self._pull_subscription is not None
        entries: list[LogEntry] = []
        size = 0
        while not entries or (self._pull_subscription.pending_msgs and size < max_bytes):
            message = await self._next_message(self._pull_subscription)
            if message.headers and "Status" in message.headers:
                await self._on_status(message.headers)
                continue
            self._messages_due -= 1
            self._stale_heartbeats = 0
            entry = self._parse_entry(message)
            if entry is not None:
                entries.append(entry)
                size += unpacked_size(entry.content)
            if self._messages_due <= 0:
                await self._request_entries()
        return entries

    async def _next_message(self, subscription: Subscription) -> Msg:
        try:
            return await _await_answer(subscription.next_msg(CONSUMER_TIMEOUT_S), 2 * CONSUMER_TIMEOUT_S)
        except LogServiceUnavailableError as problem:
            raise LogServiceUnavailableError(
                f"the log can't be read: {self._last_error or problem}"
            ) from None

    async def _on_status(self, headers: dict[str, str]) -> None:
        """Process a status message of the consumer: a heartbeat, or the end of a pull request.

        Moves the reading to another server if this one lacks entries. Raises LogServiceUnavailableError for
        any other status.
        """
        status = headers["Status"]
        assert self._pull_subscription is not None
        if not self._pull_subscription.pending_msgs:  # else it is older than the queued messages
            self._stale_heartbeats = (
                self._stale_heartbeats + 1 if self._next_number <= (self._checked_end or 0) else 0
            )
        if self._stale_heartbeats >= MAX_STALE_HEARTBEATS:
            await self._move_consumer()
            return
        if status == "100":
            return  # a heartbeat
        description = headers.get("Description", "").lower()
        if status in ("404", "408") or (
            status == "409" and any(ending in description for ending in _PULL_END_TEXTS)
        ):
            # The pull request ended before it delivered all its entries. After a complete one, its last
            # entry has already caused the next request. Another request for each ending would leave ever
            # more in flight, in the end more than the subscription holds.
            self._messages_due -= int(headers.get("Nats-Pending-Messages", self._messages_due))
            if self._messages_due <= 0:
                await self._request_entries()
            return
        raise LogServiceUnavailableError(f"the log can't be read: {status} {headers.get('Description', '')}")

    async def _move_consumer(self) -> None:
        """Continue reading on another server."""
        log.warning(
            "engine_lacks_entries",
            engine=self._consumer_server,
            wanted=self._next_number,
            last=self._checked_end,
        )
        assert self._pull_subscription is not None
        await _await_answer(self._pull_subscription.unsubscribe())
        await self._start_consumer(avoided_server=self._consumer_server)

    def _parse_entry(self, message: Msg) -> LogEntry | None:
        """Return a message as the next entry; None for an entry that was read before.

        Raises LogServiceUnavailableError if an entry is missing before it.
        """
        tokens = message.reply.split(".")
        # $JS.ACK.stream.consumer.delivered.entry.delivery.at.behind; a domain and an account may precede
        # the stream.
        number, at, entries_after = (
            (int(tokens[5]), int(tokens[7]), int(tokens[8]))
            if len(tokens) == 9
            else (int(tokens[7]), int(tokens[9]), int(tokens[10]))
        )
        if number < self._next_number:
            return None
        if number > self._next_number:
            raise LogServiceUnavailableError(f"entry {number} came where {self._next_number} was expected")
        self._next_number += 1
        member = message.subject.rpartition(".")[2]
        return LogEntry(number, at, _parse_sender(member, message.headers), message.data, entries_after)

    # Messages between members.

    async def publish_status(self, content: bytes) -> None:
        await _await_answer(self._open_client.publish(self._status_subject, content))

    def read_statuses(self, on_message: Callable[[bytes], None]) -> None:
        self._on_message = on_message

    async def _on_nats_message(self, message: Msg) -> None:
        if self._on_message is not None:
            self._on_message(message.data)

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            with suppress(Exception):
                await asyncio.wait_for(client.close(), REQUEST_TIMEOUT_S)

    @property
    def is_connected(self) -> bool:
        return self._client is not None and self._client.is_connected

    @property
    def _open_client(self) -> Client:
        """The open connection. Raises LogServiceUnavailableError without one."""
        if self._client is None or not self._client.is_connected:
            raise LogServiceUnavailableError(self._last_error or "the connection is closed")
        return self._client


async def _await_answer(work: Awaitable[T], seconds: float = 2 * REQUEST_TIMEOUT_S) -> T:
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
        raise LogServiceUnavailableError(_error_text(problem)) from None


def _is_reachable(server: api.PeerInfo) -> bool:
    """Return whether the leader has had contact with this server within HEARD_NS."""
    return not server.offline and server.active is not None and server.active < MAX_LEADER_SILENCE_NS


def _unconfirmed_error(stream: StreamInfo) -> LogServiceUnavailableError:
    return LogServiceUnavailableError(
        f"{stream.leader or 'a server'} answers as the leader,"
        f" and has heard {stream.reachable} of {stream.servers} servers"
    )


def _is_up_to_date(server: api.PeerInfo, last: int, previous_last: int | None) -> bool:
    """Return whether a server has all entries, or lacks only entries newer than the previous check.

    `previous_last`: the log's last entry at that check; None if there was none. Under load each server is an
    entry or two behind at any moment; a server that doesn't keep up is behind at two checks.
    """
    if server.current:
        return True
    if (
        server.offline
        or server.active is None
        or server.active >= MAX_SERVER_SILENCE_NS
        or previous_last is None
    ):
        return False
    return last - (server.lag or 0) >= previous_last


def _stream_name(settings: GroupSettings, generation: int) -> str:
    """Return the name of a generation's stream. No instance name contains a "="."""
    return settings.stream if generation == 1 else f"{settings.stream}={generation}"


def _parse_sender(member: str, headers: dict[str, Any] | None) -> EntrySender:
    """Return the sender of an entry from its headers."""
    values = headers or {}
    number = str(values.get(_NUMBER, ""))
    return EntrySender(member, str(values.get(_RUN, "")), int(number) if number.isdigit() else 0)


def _unavailable_error(problem: APIError) -> LogServiceUnavailableError:
    """Convert a refusal of JetStream to LogServiceUnavailableError."""
    return LogServiceUnavailableError(f"{problem.description or problem} ({problem.err_code})")


def _error_text(problem: BaseException) -> str:
    """Return the text of an exception of the client."""
    if isinstance(problem, TimeoutError):  # NATS's says "timeout", Python's nothing
        return "no server of the log service answers in time"
    return describe_exception(problem).removeprefix("nats: ")
