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
from collections.abc import Sequence
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
from broker_core.errors import ClientError, OperatorError, SluiceError
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
    return _parts(batch, rows, publisher) if len(rows) else []


def _parts(batch: Batch, rows: Rows, publisher: str) -> list[RenumberedBatch]:
    try:
        made = batch.for_republish(publisher, rows)
    except ClientError:
        # A batch close to the size limit can exceed it: the link's name may be longer, or the sequences
        # need more room.
        if len(rows) == 1:
            raise
        half = len(rows) // 2
        return _parts(batch, rows[:half], publisher) + _parts(batch, rows[half:], publisher)
    numbers = batch.sequences()[rows]
    return [RenumberedBatch(int(numbers[0]), int(numbers[-1]), made)]


MAX_BYTES: Final = 64 * 1024
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
        if status.st_mode & 0o007 or status.st_size > MAX_BYTES:
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
UNDER_WAY: Final = 8 * 1024 * 1024
"""Maximum bytes sent to a destination that it hasn't stored yet. Further records wait in the log."""
HEARTBEAT_MS: Final = 5_000
RETRY_DELAY_S: Final = (0.5, 1.0, 2.0, 5.0)
"""Seconds before each attempt to reconnect; the last one repeats."""
LINK_SESSION: Final = 1
"""Publisher session of every link.

Its numbers are the sequences of this instance's log, whichever process or member carries them.
"""
ONE_TRY: Final = ReconnectPolicy(enabled=False, first_connect_timeout=30.0, logon_timeout=30.0)
"""Try each address once. The link itself decides when to try again."""


class InFlightBatch(NamedTuple):
    """A batch that was sent to the destination and isn't confirmed.

    `upto`: number of its last message in the subscription; `sequence`: its last record as the destination
    acknowledges it; `accepted_at`: when that record was accepted, ns.
    """

    upto: int
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
        super().__init__(UNDER_WAY)
        self.stored = 0
        self._link = link

    def discard(self, first: int, last: int) -> None:
        super().discard(first, last)
        self._move(self.oldest_sequence() - 1 if self._entries else self.last_sequence)

    def discard_through(self, last: int) -> None:
        super().discard_through(last)
        self._move(last)

    def _move(self, upto: int) -> None:
        self.stored = max(self.stored, upto)
        self._link.on_confirmed()


class SiteLink:
    """The link to one destination. It runs from its creation until `close`; its position remains."""

    def __init__(self, engine: Engine, settings: DestinationSettings, secrets: Path | None) -> None:
        self.settings = settings
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
        self._near: LocalEndpoint | None = None
        self._far: AsyncClient | None = None
        self._store: LinkPublishStore | None = None
        self._delivered = 0
        self._under_way: deque[InFlightBatch] = deque()
        self._settling = False
        self._refused: asyncio.Future[SluiceError] | None = None
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
                problem = await self._carry()
            except (SluiceError, OSError, TimeoutError) as error:
                problem = error
            except Exception as error:
                # A link that ended silently would pin the log for ever.
                log.exception("link_failed", link=self.settings.name)
                problem = error
            tries = 0 if self._state == "carrying" else tries + 1
            self._lost(problem)
            await asyncio.sleep(RETRY_DELAY_S[min(tries, len(RETRY_DELAY_S) - 1)])

    def _lost(self, problem: Exception) -> None:
        """Record that the link is disconnected, and why."""
        error = (
            problem if isinstance(problem, SluiceError) else OperatorError("broker_away", f"{problem}.", "")
        )
        if self._error is None or error.code != self._error.code:
            log.warning("link_away", link=self.settings.name, code=error.code, why=error.sentence)
        self._error = error
        self._enter_state("standing by" if error.code == "link_in_use" else "away")
        self._connected_at = 0

    def _enter_state(self, state: LinkState) -> None:
        if state != self._state:
            self._state, self._state_since = state, self._clock.now_ns()

    async def _carry(self) -> Exception:
        """Connect both clients and forward records; return the error that ends it.

        Raises SluiceError and OSError.
        """
        settings, loop = self.settings, asyncio.get_running_loop()
        secret = load_link_credentials(self._secrets, settings.name)
        self._store, self._refused = LinkPublishStore(self), loop.create_future()
        self._delivered, self._under_way = 0, deque()
        far = self._far = AsyncClient(
            settings.addresses,
            self._publisher,
            user=secret.user,
            password=secret.password,
            token=secret.token,
            tls=tls_context(settings.ca, settings.certificate, settings.key) if self._secure else None,
            publish_store=self._store,
            heartbeat_ms=HEARTBEAT_MS,
            reconnect=ONE_TRY,
            on_rejection=self._rejected,
            needs_sequence=True,
            publisher_session=LINK_SESSION,
        )
        lost: asyncio.Future[SluiceError] | None = None
        try:
            # The logon there comes first: its answer has the stored sequence, where the subscription begins.
            await far.start()
            lost = asyncio.ensure_future(far.wait_closed())
            self._check_instance(far.instance)
            remote = f"{settings.name} ({far.instance})"
            near = self._near = LocalEndpoint(self._engine, remote, self._forward, self._say_confirmed)
            await self._enter(near, self._store.stored)
            ends: list[asyncio.Future[SluiceError]] = [self._refused, near.ended, lost]
            begun: list[asyncio.Future[Any]] = [near.begun, *ends]
            await asyncio.wait(begun, return_when=asyncio.FIRST_COMPLETED)
            if near.begun.done():
                self._note_carried(self._store.stored)
                self._carrying()
                await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            return next(end.result() for end in ends if end.done())
        finally:
            if lost is not None:
                lost.cancel()
            await self._let_go(far)

    @property
    def _secure(self) -> bool:
        return any(address.startswith("tcps:") for address in self.settings.addresses)

    def _check_instance(self, found: str) -> None:
        """Check that the destination is another instance, and the same as before. Raises OperatorError."""
        if found == self._engine.instance:
            raise OperatorError(
                "link_to_itself",
                f"{self.settings.name} is this instance, {found}.",
                "Name another one's addresses.",
            )
        if self._instance not in ("", found):
            raise OperatorError(
                "link_elsewhere",
                f"{self.settings.name} was {self._instance}, and here {found} answers: it lacks "
                "what the other has.",
                "Give each instance a destination of its own.",
            )
        self._instance = found

    def _check_log(self, stored: int) -> None:
        """Check that the destination has no record that this log lacks.

        The record's number alone cannot show that, because the log may have passed it since. So the
        destination may have no more than the log had when the link last carried a record.

        Raises:
            OperatorError: link_gap.
        """
        limit = self._engine.frontier.durable
        if self._engine.frontier.end is None:
            limit = self._newest_carried
            with suppress(OperatorError):
                limit = self._engine.managed.get(self._client).carried_limit or limit
        if stored > limit:
            raise OperatorError(
                "link_gap",
                f"{self._instance} has records of {self._engine.instance} up to {stored},"
                f" and this log had {limit} when it was last carried.",
                "It is another log under the same name, or an older copy: give this instance a name of its"
                " own, or restore its log.",
                there=stored,
                here=limit,
            )

    async def _enter(self, near: LocalEndpoint, stored: int) -> None:
        """Subscribe at the position of the managed replay.

        The replay has one topic and filter: if the policy changed them, it is restarted at its position. If
        the destination has less than it had, the lost records are sent first: later sequences would make it
        refuse them as repeats.
        """
        settings, managed = self.settings, self._engine.managed
        if await self._engine.frontier.confirm() is None:
            raise make_behind_error(self._engine.instance)  # another member may have moved the position
        self._check_log(stored)
        with suppress(OperatorError):
            await managed.lift_carried_limit(self._client)
        self._may_carry = True
        bookmark = EPOCH_TEXT if settings.begin == "oldest" else NOW_TEXT
        with suppress(OperatorError):
            kept = managed.get(self._client)
            changed = (kept.topic, kept.filter) != (settings.topic, settings.filter)
            lost = stored < kept.carried
            if not kept.ended and (changed or lost):
                position = min(stored + 1, kept.position) if lost else kept.position
                managed.restart(
                    self._client,
                    position,
                    settings.topic,
                    settings.filter,
                    min(stored, kept.carried),
                    self._report_set_back(kept.carried, stored) if lost else None,
                )
        near.begin(
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

    def _limit_carried(self) -> None:
        self._may_carry = False
        self._newest_carried = self._engine.frontier.durable
        if self._engine.frontier.end is None:
            with suppress(OperatorError):
                self._engine.managed.limit_carried(self._client, self._newest_carried)

    def _note_carried(self, sequence: int) -> None:
        with suppress(OperatorError):
            self._engine.managed.note_carried(self._client, sequence)

    def _carrying(self) -> None:
        """Record that the link is forwarding."""
        self._enter_state("carrying")
        self._error, self._connected_at = None, self._clock.now_ns()
        log.info("link_carrying", link=self.settings.name, instance=self._instance)

    async def _let_go(self, far: AsyncClient) -> None:
        """Close both clients, and store the position."""
        if self._near is not None:
            self._gaps += self._near.gaps
            self._near.close_local()
            if self._may_carry:
                self._limit_carried()
        self._near = self._far = None
        if self._store is not None and self._state == "carrying":
            self._note_carried(self._store.stored)
        await far.close()
        self._store = None

    # Delivery here, and confirmations of the destination.

    def _forward(self, entries: Sequence[OutboxEntry]) -> None:
        """Publish delivered batches at the destination."""
        far, store, near = self._far, self._store, self._near
        if far is None or store is None or near is None:
            return
        for entry in entries:
            try:
                parts = renumber_batch(entry.batch, max(store.stored, store.last_sequence), self._publisher)
            except ClientError as error:
                self._refuse(error)
                return
            try:
                for part in parts:
                    far.publish_numbered_batch(*part)
            except SluiceError:
                return  # the connection to the destination is lost, which ends both clients
            self._delivered += entry.batch.count
            carried = entry.batch.count if parts else 0
            self._under_way.append(
                InFlightBatch(self._delivered, store.last_sequence, entry.batch.accepted_at, carried)
            )
        near.set_writable(store.nbytes < UNDER_WAY)
        self._settle_soon()

    def on_confirmed(self) -> None:
        """Process new confirmations of the destination at the end of the event-loop iteration."""
        self._settle_soon()

    @property
    def client(self) -> str:
        """Name of the link's client of this broker."""
        return self._client

    @property
    def confirmed_sequence(self) -> int:
        """The record of the log up to which the destination has everything that the link forwards.

        In a group, while another member carries the link, the value that this member reported last.
        """
        near = self._near
        position = near.position(self._engine.frontier.durable) if near is not None else None
        return (self._kept_position() if position is None else position) - 1

    def _say_confirmed(self) -> None:
        """Report the confirmed record of a sync destination."""
        if self.settings.is_sync:
            self._engine.confirmations.on_peer_confirmed(self._client, self.confirmed_sequence)

    def _kept_position(self) -> int:
        """Return the stored position; 1 without one."""
        with suppress(OperatorError):
            return self._engine.managed.get(self._client).position
        return 1

    def _settle_soon(self) -> None:
        """Schedule `_settle` for the end of the event-loop iteration."""
        # Not in this call: a delivery enters its window only when it has ended.
        if not self._settling and self._near is not None:
            self._settling = True
            asyncio.get_running_loop().call_soon(self._settle)

    def _settle(self) -> None:
        """Acknowledge here what the destination has confirmed."""
        self._settling = False
        near, store = self._near, self._store
        if near is None or store is None or (self._refused is not None and self._refused.done()):
            return  # a refused record has left the store, so `stored` would count it as confirmed
        upto = 0
        while self._under_way and self._under_way[0].sequence <= store.stored:
            done = self._under_way.popleft()
            upto = done.upto
            self._carried += done.carried
        if upto:
            self._note_carried(store.stored)  # before the position moves, or together with it
            near.acknowledge(upto)
        near.set_writable(store.nbytes < UNDER_WAY)

    def _rejected(self, rejection: Rejection) -> None:
        self._refuse(rejection.error)

    def _refuse(self, error: SluiceError) -> None:
        """End the link because the destination refuses a record. Skipping the record would lose it."""
        if self._refused is not None and not self._refused.done():
            self._refused.set_result(
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
            kept = engine.managed.get(self._client)
            position, recorded_at, set_back = kept.position, kept.recorded_at, kept.set_back
        # The stored position moves with forwarded records only. Records that the filter excludes move the
        # endpoint's position.
        passed = self._near.position(newest) if self._near is not None else None
        if passed is not None and passed > position:
            position, recorded_at = passed, 0
        if self._under_way:
            recorded_at = self._under_way[0].accepted_at
        said = (error.code, error.sentence, error.fix) if error is not None else ("", "", "")
        behind = engine.journal.count(position, newest)
        return LinkEntry(
            name=settings.name,
            client=self._client,
            addresses=list(settings.addresses),
            topic=settings.topic,
            filter=settings.filter,
            **self._confirming(),
            state=self._state,
            since=self._state_since // 1_000_000,
            instance=self._instance,
            code=said[0],
            why=said[1],
            fix=said[2],
            behind=behind,
            behind_ms=max(self._clock.now_ns() - recorded_at, 0) // 1_000_000
            if behind and recorded_at
            else 0,
            position=str(Bookmark(engine.instance, position - 1)),
            carried=self._carried,
            gaps=self._gaps + (self._near.gaps if self._near is not None else 0),
            connected_at=self._connected_at // 1_000_000 or None,
            set_back_at=set_back.at // 1_000_000 if set_back is not None else None,
            set_back_had=set_back.had if set_back is not None else 0,
            set_back_has=set_back.has if set_back is not None else 0,
        )

    def _confirming(self) -> dict[str, Any]:
        """Return the sync replication fields of `LinkEntry`."""
        confirmations, name = self._engine.confirmations, self._client
        confirming = confirmations.confirming
        return {
            "mode": confirming.mode(name).value,
            "downgraded_by": confirming.downgraded_by(name),
            "downgraded_at": confirmations.downgraded_at(name) or None,
            "confirmed": confirming.confirmed_sequence_of(name),
            "unconfirmed_ms": confirming.waited_ms(name, self._clock.seconds()),
            "downgrades": confirming.downgrades[name],
            "upgrades": confirming.upgrades[name],
        }
