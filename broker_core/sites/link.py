"""What of a delivered batch a link carries, and under which numbers. Pure.

At the other side a record's publisher is the link, and its publisher sequence is the sequence that it has here: so what is repeated
after a kill is known there and left out, and each record can be named there as here. What another site brought isn't
carried on.

What links prove themselves with: a file on the broker's machine, so that no policy, revision or database has it.

One link: follows this instance's log as its client, publishes what it gets at the destination under this instance's own sequences,
and acknowledges here what the destination says is persisted there.

So the place where it is belongs to a managed replay, which is kept here, holds the log, and is never ahead of what the destination
has; and what comes twice after a kill of either side the destination knows by its number. Every loss ends in
the same way: both ends are closed, and made again from that place.

The replay also has the newest number that the destination has confirmed. A destination that has less was
restored from a backup: the process that carries the link next, here or at another member of a group, goes back
to where the destination is.
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
    """A batch to publish there: its records' first and last number, and its bytes."""

    first: int
    last: int
    batch: bytearray


def renumber_batch(batch: Batch, after: int, publisher: str) -> list[RenumberedBatch]:
    """What goes of a batch, without what the other side has up to the sequence `after`. One part nearly always; none of what
    another site brought."""
    if publisher_origin(batch.publisher_name):
        return []
    sequences = batch.sequences()
    rows = np.flatnonzero(sequences > np.uint64(after))
    return _parts(batch, rows, publisher) if len(rows) else []


def _parts(batch: Batch, rows: Rows, publisher: str) -> list[RenumberedBatch]:
    try:
        made = batch.for_republish(publisher, rows)
    except ClientError:
        # Its publisher's name was shorter, or its numbers lie far apart: a batch that was just within the limits isn't any more.
        if len(rows) == 1:
            raise
        half = len(rows) // 2
        return _parts(batch, rows[:half], publisher) + _parts(batch, rows[half:], publisher)
    numbers = batch.sequences()[rows]
    return [RenumberedBatch(int(numbers[0]), int(numbers[-1]), made)]


MAX_BYTES: Final = 64 * 1024


class LinkCredentials(NamedTuple):
    """What a logon takes: a token, or a user with a password, or nothing."""

    token: str | None = None
    user: str | None = None
    password: str | None = None


def load_link_credentials(path: Path | None, destination: str) -> LinkCredentials:
    """Out of the file that SLUICE_LINK_SECRETS names: lines `DESTINATION TOKEN`, or `DESTINATION USER PASSWORD`.

    Nothing for a destination without a line, which may show a certificate. Read anew for each logon. Raises OperatorError no_link_secret.
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
            "Name a file that its owner alone may read, with `DESTINATION TOKEN` on each line (SLUICE_LINK_SECRETS).",
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
"""Bytes that a destination may have been sent and not stored yet; the rest waits in the log."""
HEARTBEAT_MS: Final = 5_000
RETRY_DELAY_S: Final = (0.5, 1.0, 2.0, 5.0)
"""How long it waits before it tries again; the last of them from then on."""
LINK_SESSION: Final = 1
"""The publisher session of every link: its numbers are the sequences of this instance's log, whichever
process or member carries them."""
ONE_TRY: Final = ReconnectPolicy(enabled=False, first_connect_timeout=30.0, logon_timeout=30.0)
"""Each address once: what happens then is the link's to say."""


class InFlightBatch(NamedTuple):
    """What was delivered here: up to which of the subscription's messages, up to which record (as the destination acknowledges it), and
    when that was accepted (ns)."""

    upto: int
    sequence: int
    accepted_at: int
    carried: int
    """Messages of it that were sent."""


class LinkPublishStore(MemoryPublishStore):
    """Tells how far the destination has everything: `stored` is that record's number here."""

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
    """One destination's. `close` ends it; its place stays."""

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
        """Carry no more."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    async def _run(self) -> None:
        tries = 0
        while True:
            try:
                problem = await self._carry()
            except (SluiceError, OSError, TimeoutError) as error:
                problem = error
            except Exception as error:
                # A link that died without a word would hold the log for ever.
                log.exception("link_failed", link=self.settings.name)
                problem = error
            tries = 0 if self._state == "carrying" else tries + 1
            self._lost(problem)
            await asyncio.sleep(RETRY_DELAY_S[min(tries, len(RETRY_DELAY_S) - 1)])

    def _lost(self, problem: Exception) -> None:
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
        """From here to there until something ends it; what. Raises SluiceError and OSError."""
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
                self._check_log(self._store.stored)
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
        if found == self._engine.instance:
            raise OperatorError(
                "link_to_itself",
                f"{self.settings.name} is this instance, {found}.",
                "Name another one's addresses.",
            )
        if self._instance not in ("", found):
            raise OperatorError(
                "link_elsewhere",
                f"{self.settings.name} was {self._instance}, and here {found} answers: it lacks what the other has.",
                "Give each instance a destination of its own.",
            )
        self._instance = found

    def _check_log(self, stored: int) -> None:
        newest = self._engine.frontier.durable
        if stored > newest:
            raise OperatorError(
                "link_gap",
                f"{self._instance} has records of {self._engine.instance} up to {stored}, and this log ends with {newest}.",
                "It is another log under the same name: give this instance a name of its own, or restore its log.",
                there=stored,
                here=newest,
            )

    async def _enter(self, near: LocalEndpoint, stored: int) -> None:
        """Subscribe where the managed replay is.

        The replay is of one topic and filter: when the policy changes them it is made anew in its place. A
        destination that has less than it had gets the lost records first: the numbers of newer ones would
        shut them out.
        """
        settings, managed = self.settings, self._engine.managed
        if await self._engine.frontier.confirm() is None:
            raise make_behind_error(
                self._engine.instance
            )  # where the place is kept, other members may have told
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

    def _note_carried(self, sequence: int) -> None:
        with suppress(OperatorError):
            self._engine.managed.note_carried(self._client, sequence)

    def _carrying(self) -> None:
        self._enter_state("carrying")
        self._error, self._connected_at = None, self._clock.now_ns()
        log.info("link_carrying", link=self.settings.name, instance=self._instance)

    async def _let_go(self, far: AsyncClient) -> None:
        if self._near is not None:
            self._gaps += self._near.gaps
            self._near.close_local()
        self._near = self._far = None
        if self._store is not None and self._state == "carrying":
            self._note_carried(self._store.stored)
        await far.close()
        self._store = None

    # What comes, and what is stored there.

    def _forward(self, entries: Sequence[OutboxEntry]) -> None:
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
                return  # the far end is lost, which ends both
            self._delivered += entry.batch.count
            carried = entry.batch.count if parts else 0
            self._under_way.append(
                InFlightBatch(self._delivered, store.last_sequence, entry.batch.accepted_at, carried)
            )
        near.set_writable(store.nbytes < UNDER_WAY)
        self._settle_soon()

    def on_confirmed(self) -> None:
        """The destination has more."""
        self._settle_soon()

    @property
    def client(self) -> str:
        """As whom it follows the log here."""
        return self._client

    @property
    def confirmed_sequence(self) -> int:
        """Up to which record of the log the destination has everything that the link takes. In a group, while another member carries
        it, that is what that one told last."""
        near = self._near
        position = near.position(self._engine.frontier.durable) if near is not None else None
        return (self._kept_position() if position is None else position) - 1

    def _say_confirmed(self) -> None:
        if self.settings.is_sync:
            self._engine.confirmations.on_peer_confirmed(self._client, self.confirmed_sequence)

    def _kept_position(self) -> int:
        with suppress(OperatorError):
            return self._engine.managed.get(self._client).position
        return 1

    def _settle_soon(self) -> None:
        # Not here: what is delivered is entered in its window when the delivery has ended.
        if not self._settling and self._near is not None:
            self._settling = True
            asyncio.get_running_loop().call_soon(self._settle)

    def _settle(self) -> None:
        self._settling = False
        near, store = self._near, self._store
        if near is None or store is None or (self._refused is not None and self._refused.done()):
            return  # what was refused has left the store, and isn't there
        upto = 0
        while self._under_way and self._under_way[0].sequence <= store.stored:
            done = self._under_way.popleft()
            upto = done.upto
            self._carried += done.carried
        if upto:
            self._note_carried(store.stored)  # with the position, or before it
            near.acknowledge(upto)
        near.set_writable(store.nbytes < UNDER_WAY)

    def _rejected(self, rejection: Rejection) -> None:
        self._refuse(rejection.error)

    def _refuse(self, error: SluiceError) -> None:
        """A record that the destination doesn't take: it isn't left out, so nothing behind it goes."""
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
        """As it stands now."""
        settings, engine, error = self.settings, self._engine, self._error
        position, recorded_at, newest = 1, 0, engine.frontier.durable
        set_back: DestinationSetBack | None = None
        with suppress(OperatorError):
            kept = engine.managed.get(self._client)
            position, recorded_at, set_back = kept.position, kept.recorded_at, kept.set_back
        # What is kept moves with what was carried. Records that the filter leaves out are passed without a
        # word.
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
        """What `LinkEntry` says of whether it is waited for."""
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
