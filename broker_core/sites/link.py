"""A link: follows this instance's log as its client, and publishes the records at one destination.

At the destination the link is the publisher, and the sequence of a record in this log is its publisher
sequence. So the destination detects records that are repeated after a crash, and a record has the same
number on both sides. Records that another site published here aren't forwarded.

The link acknowledges a record here when the destination reports it as persisted. A managed replay stores
the position here. It pins the log, and is never ahead of the destination. Every failure ends in the same
way: the link closes both clients, and opens them again at that position.

The replay also stores the newest sequence that the destination has confirmed. A destination that reports
less was restored from a backup. The next process that carries the link, here or at another member of a
group, then goes back to the destination's position.

Links log on with credentials from a file on the broker's machine, so that no policy, revision or database
contains them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import structlog

from broker_core.batch import Batch, Rows
from broker_core.bookmark import EPOCH_TEXT, NOW_TEXT, Bookmark
from broker_core.client.async_client import AsyncClient
from broker_core.client.connector import ReconnectPolicy
from broker_core.client.links import tls_context
from broker_core.client.publish_store import MemoryPublishStore
from broker_core.client.publisher import Rejection
from broker_core.config.destinations import DestinationSettings
from broker_core.config.preset_settings import MAX_PREFETCH
from broker_core.connections.subscription_setup import make_behind_error
from broker_core.delivery.entries import OutboxEntry
from broker_core.documents.replication import LinkEntry, LinkState
from broker_core.engine.engine import Engine
from broker_core.errors import ClientError, OperatorError, SluiceError, describe_exception
from broker_core.journal.commit_log import LogGeneration
from broker_core.names import BROKER_NAME, LINK_PREFIX, link_client_name, publisher_origin
from broker_core.protocols import commands
from broker_core.replay.positions.file import DestinationSetBack
from broker_core.sites.local_endpoint import SUBSCRIPTION, LocalEndpoint


class RenumberedBatch(NamedTuple):
    """A batch for the destination: first and last sequence of its records, and its bytes."""

    first: int
    last: int
    batch: bytearray


def renumber_batch(batch: Batch, after: int, publisher: str) -> list[RenumberedBatch]:
    """Return the records of a batch that the destination lacks, as batches of the link.

    `after`: the newest sequence that the destination has. `publisher`: the link's name there. Nearly always
    one batch; none if another site published the batch.
    """
    if publisher_origin(batch.publisher_name):
        return []
    sequences = batch.sequences()
    rows = np.flatnonzero(sequences > np.uint64(after))
    return _split_batch(batch, rows, publisher) if len(rows) else []


def _split_batch(batch: Batch, rows: Rows, publisher: str) -> list[RenumberedBatch]:
    try:
        made = batch.for_republish(publisher, rows)
    except ClientError:
        # A batch close to the size limit can exceed it: the link's name may be longer, or the sequences
        # need more room.
        if len(rows) == 1:
            raise
        half = len(rows) // 2
        return _split_batch(batch, rows[:half], publisher) + _split_batch(batch, rows[half:], publisher)
    numbers = batch.sequences()[rows]
    return [RenumberedBatch(int(numbers[0]), int(numbers[-1]), made)]


MAX_SECRETS_BYTES: Final = 64 * 1024
"""Maximum size of the secrets file."""


class LinkCredentials(NamedTuple):
    """Credentials of a logon: a token, or a user with a password, or neither."""

    token: str | None = None
    user: str | None = None
    password: str | None = None


def load_link_credentials(path: Path | None, destination: str) -> LinkCredentials:
    """Read a destination's credentials from the file that SLUICE_LINK_SECRETS names.

    Its lines are `DESTINATION TOKEN` or `DESTINATION USER PASSWORD`. A destination without a line gets
    none; it may use a certificate. The file is read for each logon. Raises OperatorError no_link_secret.
    """
    if path is None:
        return LinkCredentials()
    try:
        status = path.stat()
        if status.st_mode & 0o007 or status.st_size > MAX_SECRETS_BYTES:
            raise ValueError("others may read it, or it is too long")
        lines = [line.split(maxsplit=2) for line in path.read_text("utf-8").splitlines()]
    except (OSError, ValueError) as problem:
        raise OperatorError(
            "no_link_secret",
            f"The file of the links' secrets {path} can't be used: {problem}.",
            "Name a file that its owner alone may read, with `DESTINATION TOKEN` on each line "
            "(SLUICE_LINK_SECRETS).",
        ) from None
    for words in lines:
        if words[:1] == [destination]:
            return (
                LinkCredentials(user=words[1], password=words[2])
                if len(words) == 3
                else LinkCredentials("".join(words[1:]) or None)
            )
    return LinkCredentials()


log = structlog.get_logger("sluice.sites")
MAX_IN_FLIGHT_BYTES: Final = 8 * 1024 * 1024
"""Maximum bytes sent to a destination that it hasn't stored yet. Further records wait in the log."""
HEARTBEAT_MS: Final = 5_000
RETRY_DELAYS_S: Final = (0.5, 1.0, 2.0, 5.0)
"""Seconds before each attempt to reconnect; the last one repeats."""
LINK_SESSION: Final = 1
"""Publisher session of every link.

Its numbers are the sequences of this instance's log, whichever process or member carries them.
"""
SINGLE_ATTEMPT: Final = ReconnectPolicy(enabled=False, first_connect_timeout=30.0, logon_timeout=30.0)
"""Try each address once. The link itself decides when to try again."""


class InFlightBatch(NamedTuple):
    """A batch that was sent to the destination and isn't confirmed.

    `last_message`: number of its last message in the subscription; `sequence`: its last record as the
    destination acknowledges it; `accepted_at`: when that record was accepted, ns.
    """

    last_message: int
    sequence: int
    accepted_at: int
    carried: int
    """Number of its messages that were sent."""


class LinkPublishStore(MemoryPublishStore):
    """Records that a link has sent and its destination has not confirmed.

    `stored`: sequence in this log up to which the destination has everything.
    """

    durable = True  # the records are in the log

    def __init__(self, link: SiteLink) -> None:
        super().__init__(MAX_IN_FLIGHT_BYTES)
        self.stored = 0
        self._link = link

    def discard(self, first: int, last: int) -> None:
        super().discard(first, last)
        self._update_stored(self.oldest_sequence() - 1 if self._entries else self.last_sequence)

    def discard_through(self, last: int) -> None:
        super().discard_through(last)
        self._update_stored(last)

    def _update_stored(self, sequence: int) -> None:
        self.stored = max(self.stored, sequence)
        self._link.on_confirmed()


class SiteLink:
    """The link to one destination. It runs from its creation until `close`; its position remains."""

    def __init__(
        self,
        engine: Engine,
        settings: DestinationSettings,
        secrets: Path | None,
        removed_limits: Mapping[str, int],
    ) -> None:
        """Create the link and start it if it is enabled.

        Args:
            engine: Engine of this broker.
            settings: Settings of the destination.
            secrets: File with the links' credentials.
            removed_limits: Newest record that removed links can have carried, by instance.
        """
        self.settings, self._removed_limits = settings, removed_limits
        self._engine, self._secrets = engine, secrets
        self._clock = engine.clock
        self._client = f"{LINK_PREFIX}{settings.name}"
        self._publisher = link_client_name(engine.instance)
        self._state: LinkState = "away" if settings.enabled else "off"
        self._state_since = engine.clock.now_ns()
        self._error: SluiceError | None = None
        self._instance = ""
        self._connected_at = 0
        self._newest_carried = engine.frontier.durable
        """Newest record of the log when nothing was carried any more: the destination has no newer one."""
        self._may_carry = False
        self._carried = self._gaps = 0
        self._local: LocalEndpoint | None = None
        self._remote: AsyncClient | None = None
        self._store: LinkPublishStore | None = None
        self._delivered = 0
        self._in_flight: deque[InFlightBatch] = deque()
        self._is_acknowledge_scheduled = False
        self._refusal: asyncio.Future[SluiceError] | None = None
        self._task = asyncio.create_task(self._run(), name=self._client) if settings.enabled else None

    async def close(self) -> None:
        """Stop forwarding and disconnect."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    async def _run(self) -> None:
        """Forward records, and reconnect after every failure."""
        tries = 0
        while True:
            try:
                problem = await self._forward_until_failure()
            except (SluiceError, OSError, TimeoutError) as error:
                problem = error
            except Exception as error:
                # A link that ended silently would pin the log for ever.
                log.exception("link_failed", link=self.settings.name)
                problem = error
            tries = 0 if self._state == "carrying" else tries + 1
            self._mark_disconnected(problem)
            await asyncio.sleep(RETRY_DELAYS_S[min(tries, len(RETRY_DELAYS_S) - 1)])

    def _mark_disconnected(self, problem: Exception) -> None:
        """Record that the link is disconnected, and why."""
        error = (
            problem
            if isinstance(problem, SluiceError)
            else OperatorError("broker_away", f"{describe_exception(problem)}.", "")
        )
        if self._error is None or error.code != self._error.code:
            log.warning("link_away", link=self.settings.name, code=error.code, why=error.sentence)
        self._error = error
        self._enter_state("standing by" if error.code == "link_in_use" else "away")
        self._connected_at = 0

    def _enter_state(self, state: LinkState) -> None:
        if state != self._state:
            self._state, self._state_since = state, self._clock.now_ns()

    async def _forward_until_failure(self) -> Exception:
        """Connect both clients and forward records; return the error that ends it.

        Raises SluiceError and OSError.
        """
        settings, loop = self.settings, asyncio.get_running_loop()
        secret = load_link_credentials(self._secrets, settings.name)
        self._store, self._refusal = LinkPublishStore(self), loop.create_future()
        self._delivered, self._in_flight = 0, deque()
        remote = self._remote = AsyncClient(
            settings.addresses,
            self._publisher,
            user=secret.user,
            password=secret.password,
            token=secret.token,
            tls=tls_context(settings.ca, settings.certificate, settings.key) if self._uses_tls else None,
            publish_store=self._store,
            heartbeat_ms=HEARTBEAT_MS,
            reconnect=SINGLE_ATTEMPT,
            on_rejection=self._on_rejected,
            needs_sequence=True,
            publisher_session=LINK_SESSION,
        )
        disconnected: asyncio.Future[SluiceError] | None = None
        try:
            # The logon there comes first: its answer has the stored sequence, where the subscription begins.
            await remote.start()
            disconnected = asyncio.ensure_future(remote.wait_closed())
            self._check_instance(remote.instance)
            peer_name = f"{settings.name} ({remote.instance})"
            local = self._local = LocalEndpoint(
                self._engine, peer_name, self._forward, self._report_confirmed
            )
            await self._subscribe_local(local, self._store.stored)
            failures: list[asyncio.Future[SluiceError]] = [self._refusal, local.failure, disconnected]
            following: list[asyncio.Future[Any]] = [local.following, *failures]
            await asyncio.wait(following, return_when=asyncio.FIRST_COMPLETED)
            if local.following.done():
                await self._lift_carried_limit()  # of a new link, whose replay did not exist before
                self._note_carried(self._store.stored)
                self._mark_forwarding()
                await asyncio.wait(failures, return_when=asyncio.FIRST_COMPLETED)
            return next(failure.result() for failure in failures if failure.done())
        finally:
            if disconnected is not None:
                disconnected.cancel()
            await self._close_clients(remote)

    @property
    def _uses_tls(self) -> bool:
        return any(address.startswith("tcps:") for address in self.settings.addresses)

    def _check_instance(self, instance: str) -> None:
        """Check that the destination is another instance, and the same as before. Raises OperatorError."""
        if instance == self._engine.instance:
            raise OperatorError(
                "link_to_itself",
                f"{self.settings.name} is this instance, {instance}.",
                "Name another one's addresses.",
            )
        if self._instance not in ("", instance):
            raise OperatorError(
                "link_elsewhere",
                f"{self.settings.name} was {self._instance}, and here {instance} answers: it lacks "
                "what the other has.",
                "Give each instance a destination of its own.",
            )
        self._instance = instance

    def _check_log(self, stored: int) -> None:
        """Check that the destination has no record that this log lacks.

        The record's number alone cannot show that, because the log may have passed it since. So the
        destination may have no more than the log had when a link to that instance last carried a record.
        Of a group's log, only `init` makes a shorter one. It has a new generation, and the destination may
        have no more than this generation began with, unless a link has carried in it.

        Raises:
            OperatorError: link_gap.
        """
        managed, durable = self._engine.managed, self._engine.frontier.durable
        limit = durable
        if (generation := self._log_generation()).number:
            if 0 < managed.carried_generation_to(self._instance) < generation.number:
                limit = min(durable, generation.base)
        else:
            limit = self._newest_carried
            with suppress(OperatorError):
                limit = managed.get(self._client).carried_limit or limit
            removed = self._removed_limits.get(self._instance, 0)
            limit = max(limit, managed.carried_limit_to(self._instance, durable), removed)
        if stored > limit:
            raise OperatorError(
                "link_gap",
                f"{self._instance} has records of {self._engine.instance} up to {stored},"
                f" and this log had {limit} when it was last carried.",
                "It is another log under the same name, or an older copy: give this instance another "
                "name, or restore its log.",
                there=stored,
                here=limit,
            )

    async def _subscribe_local(self, local: LocalEndpoint, stored: int) -> None:
        """Subscribe at the position of the managed replay.

        The replay has one topic and filter: if the policy changed them, it is restarted at its position. If
        the destination has less than it had, the lost records are sent first: later sequences would make it
        refuse them as repeats.
        """
        settings, managed = self.settings, self._engine.managed
        if await self._engine.frontier.confirm() is None:
            raise make_behind_error(self._engine.instance)  # another member may have moved the position
        self._check_log(stored)
        await self._lift_carried_limit()
        self._may_carry = True
        bookmark = EPOCH_TEXT if settings.begin == "oldest" else NOW_TEXT
        with suppress(OperatorError):
            replay = managed.get(self._client)
            has_changed = (replay.topic, replay.filter) != (settings.topic, settings.filter)
            is_set_back = stored < replay.carried
            if not replay.ended and (has_changed or is_set_back):
                position = min(stored + 1, replay.position) if is_set_back else replay.position
                managed.restart(
                    self._client,
                    position,
                    settings.topic,
                    settings.filter,
                    min(stored, replay.carried),
                    self._report_set_back(replay.carried, stored) if is_set_back else None,
                )
        local.begin(
            self._client,
            commands.Subscribe(
                id=SUBSCRIPTION,
                topic=settings.topic,
                filter=settings.filter,
                bookmark=bookmark,
                managed=self._client,
                ack="client",
                prefetch=MAX_PREFETCH,
            ),
        )

    def _report_set_back(self, had: int, has: int) -> DestinationSetBack:
        """Report on `$SLUICE.clients` and in the log that the destination lost records; return the loss."""
        now = self._clock.now_ns()
        log.warning("link_set_back", link=self.settings.name, had=had, has=has)
        name = self.settings.name
        sentence = f"{name} had confirmed record {had} and has {has}: {has + 1} to {had} are carried again"
        self._engine.events.add(now, BROKER_NAME, "link_set_back", sentence)
        return DestinationSetBack(now, had, has)

    def _log_generation(self) -> LogGeneration:
        """Return the generation of the group's log. Raises ClientError behind while it isn't known."""
        following = self._engine.dispatch.following
        if following is None:
            return LogGeneration(0, 0)
        generation = following.log_generation
        if generation is None:
            raise make_behind_error(self._engine.instance)
        return generation

    async def _lift_carried_limit(self) -> None:
        with suppress(OperatorError):
            await self._engine.managed.lift_carried_limit(
                self._client, self._instance, self._log_generation().number
            )

    def _limit_carried(self) -> None:
        self._may_carry = False
        self._newest_carried = self._engine.frontier.durable
        if self._engine.frontier.end is None:
            with suppress(OperatorError):
                self._engine.managed.limit_carried(self._client, self._newest_carried)

    def _note_carried(self, sequence: int) -> None:
        with suppress(OperatorError):
            self._engine.managed.note_carried(self._client, sequence)

    def _mark_forwarding(self) -> None:
        """Record that the link is forwarding."""
        self._enter_state("carrying")
        self._error, self._connected_at = None, self._clock.now_ns()
        log.info("link_carrying", link=self.settings.name, instance=self._instance)

    async def _close_clients(self, remote: AsyncClient) -> None:
        """Close both clients, and store the position."""
        if self._local is not None:
            self._gaps += self._local.gaps
            self._local.close_local()
            if self._may_carry:
                self._limit_carried()
        self._local = self._remote = None
        if self._store is not None and self._state == "carrying":
            self._note_carried(self._store.stored)
        await remote.close()
        self._store = None

    # Delivery here, and confirmations of the destination.

    def _forward(self, entries: Sequence[OutboxEntry]) -> None:
        """Publish delivered batches at the destination."""
        remote, store, local = self._remote, self._store, self._local
        if remote is None or store is None or local is None:
            return
        for entry in entries:
            try:
                parts = renumber_batch(entry.batch, max(store.stored, store.last_sequence), self._publisher)
            except ClientError as error:
                self._fail_refused(error)
                return
            try:
                for part in parts:
                    remote.publish_numbered_batch(*part)
            except SluiceError:
                return  # the connection to the destination is lost, which ends both clients
            self._delivered += entry.batch.count
            message_count = entry.batch.count if parts else 0
            self._in_flight.append(
                InFlightBatch(self._delivered, store.last_sequence, entry.batch.accepted_at, message_count)
            )
        local.set_writable(store.nbytes < MAX_IN_FLIGHT_BYTES)
        self._schedule_acknowledge()

    def on_confirmed(self) -> None:
        """Process new confirmations of the destination at the end of the event-loop iteration."""
        self._schedule_acknowledge()

    @property
    def client(self) -> str:
        """Name of the link's client of this broker."""
        return self._client

    @property
    def confirmed_sequence(self) -> int:
        """The record of the log up to which the destination has everything that the link forwards.

        In a group, while another member carries the link, the value that this member reported last.
        """
        local = self._local
        position = local.position(self._engine.frontier.durable) if local is not None else None
        return (self._stored_position() if position is None else position) - 1

    def _report_confirmed(self) -> None:
        """Report the confirmed record of a sync destination."""
        if self.settings.is_sync:
            self._engine.confirmations.on_peer_confirmed(self._client, self.confirmed_sequence)

    def _stored_position(self) -> int:
        """Return the stored position; 1 without one."""
        with suppress(OperatorError):
            return self._engine.managed.get(self._client).position
        return 1

    def _schedule_acknowledge(self) -> None:
        """Schedule `_acknowledge_confirmed` for the end of the event-loop iteration."""
        # Not in this call: a delivery enters its window only when it has ended.
        if not self._is_acknowledge_scheduled and self._local is not None:
            self._is_acknowledge_scheduled = True
            asyncio.get_running_loop().call_soon(self._acknowledge_confirmed)

    def _acknowledge_confirmed(self) -> None:
        """Acknowledge here what the destination has confirmed."""
        self._is_acknowledge_scheduled = False
        local, store = self._local, self._store
        if local is None or store is None or (self._refusal is not None and self._refusal.done()):
            return  # a refused record has left the store, so `stored` would count it as confirmed
        last_message = 0
        while self._in_flight and self._in_flight[0].sequence <= store.stored:
            batch = self._in_flight.popleft()
            last_message = batch.last_message
            self._carried += batch.carried
        if last_message:
            self._note_carried(store.stored)  # before the position moves, or together with it
            local.acknowledge(last_message)
        local.set_writable(store.nbytes < MAX_IN_FLIGHT_BYTES)

    def _on_rejected(self, rejection: Rejection) -> None:
        self._fail_refused(rejection.error)

    def _fail_refused(self, error: SluiceError) -> None:
        """End the link because the destination refuses a record. Skipping the record would lose it."""
        if self._refusal is not None and not self._refusal.done():
            self._refusal.set_result(
                OperatorError(
                    "link_refused",
                    f"{self._instance} doesn't take a record of this link: {error.sentence} ({error.code})",
                    error.fix
                    or "Mend it there, or leave such records out by the destination's topic or filter.",
                )
            )

    # For operators.

    def to_entry(self) -> LinkEntry:
        """Return the link's current state for the control plane."""
        settings, engine, error = self.settings, self._engine, self._error
        position, recorded_at, newest = 1, 0, engine.frontier.durable
        set_back: DestinationSetBack | None = None
        with suppress(OperatorError):
            replay = engine.managed.get(self._client)
            position, recorded_at, set_back = replay.position, replay.recorded_at, replay.set_back
        # The stored position moves with forwarded records only. Records that the filter excludes move the
        # endpoint's position. The time of the next record is unknown until the endpoint has read it; that of
        # the last carried one may be long before.
        local_position = self._local.position(newest) if self._local is not None else None
        if local_position is not None:
            position, recorded_at = max(position, local_position), 0
        if self._in_flight:
            recorded_at = self._in_flight[0].accepted_at
        error_fields = (error.code, error.sentence, error.fix) if error is not None else ("", "", "")
        records_behind = engine.journal.count(position, newest)
        return LinkEntry(
            name=settings.name,
            client=self._client,
            addresses=list(settings.addresses),
            topic=settings.topic,
            filter=settings.filter,
            **self._sync_fields(),
            state=self._state,
            since=self._state_since // 1_000_000,
            instance=self._instance,
            code=error_fields[0],
            why=error_fields[1],
            fix=error_fields[2],
            behind=records_behind,
            behind_ms=max(self._clock.now_ns() - recorded_at, 0) // 1_000_000
            if records_behind and recorded_at
            else 0,
            position=str(Bookmark(engine.instance, position - 1)),
            carried=self._carried,
            gaps=self._gaps + (self._local.gaps if self._local is not None else 0),
            connected_at=self._connected_at // 1_000_000 or None,
            set_back_at=set_back.at // 1_000_000 if set_back is not None else None,
            set_back_had=set_back.had if set_back is not None else 0,
            set_back_has=set_back.has if set_back is not None else 0,
        )

    def _sync_fields(self) -> dict[str, Any]:
        """Return the sync replication fields of `LinkEntry`."""
        confirmations, name = self._engine.confirmations, self._client
        confirming = confirmations.confirming
        return {
            "mode": confirming.mode(name).value,
            "downgraded_by": confirming.downgraded_by(name),
            "downgraded_at": confirmations.downgraded_at(name) or None,
            "confirmed": confirming.get_confirmed_sequence(name),
            "unconfirmed_ms": confirming.waited_ms(name, self._clock.seconds()),
            "downgrades": confirming.downgrades[name],
            "upgrades": confirming.upgrades[name],
        }
