"""What the control plane is told about why a client is where it is: one reason, and what comes next.

How a client fares with what it is sent: one word, by the verdict on why it is slow, and how long until it has caught up.
Pure, but for what it remembers of the last seconds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from broker_core.connections.connection_view import ConnectionView
from broker_core.control.subscription_stats import SubscriptionStats
from broker_core.delivery.lifecycle import ClientState
from broker_core.documents.clients import DeliveryState, ForecastEntry, Health, VerdictEntry
from broker_core.engine.engine import Engine
from broker_core.slow_clients.evaluate.forecast import (
    ENOUGH_SAMPLES,
    TOO_FAR,
    TOO_FEW,
    is_beyond_horizon,
    slope_of,
)
from broker_core.slow_clients.evaluate.samples import RateMeter
from broker_core.slow_clients.evaluate.signals import age_ms
from broker_core.slow_clients.evaluate.why_slow import BLOCKED_MS, SlowCause, SlowEvidence, find_slow_cause

RETENTION_MS = 5_000
"""How old a forecast and a verdict may be where there are many slow clients: making them is most of an entry's cost."""


class ClientDiagnosis(NamedTuple):
    """Both None for one that keeps up."""

    forecast: ForecastEntry | None = None
    why_slow: VerdictEntry | None = None


class ClientDiagnostics:
    """One instance's explanations. Remembers the pace of each client it is asked about."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._paces: dict[str, RateMeter] = {}
        self._said: dict[str, tuple[int, ConnectionView, ClientState, ClientDiagnosis]] = {}

    def diagnose(
        self,
        connection: ConnectionView,
        figures: Mapping[str, SubscriptionStats],
        now: int,
        crowded: bool = False,
    ) -> ClientDiagnosis:
        """Why it is behind and what comes next. `crowded`: may be KEPT_MS old, if the client's state is still what it was."""
        backlog = connection.backlog
        blocked = age_ms(backlog.silent_since, now) >= BLOCKED_MS
        if not blocked and not any(one.lag_messages or one.unacked for one in figures.values()):
            return ClientDiagnosis()
        at, whose, state, said = self._said.get(connection.name, (0, None, None, ClientDiagnosis()))
        if crowded and age_ms(at, now) < RETENTION_MS and whose is connection and state is backlog.state:
            return said
        found = self._engine.guard.forecast(connection.name, now)
        said = ClientDiagnosis(found, find_slow_cause(self._evidence(connection, figures, now)))
        self._said[connection.name] = (now, connection, backlog.state, said)
        return said

    def _evidence(
        self, connection: ConnectionView, figures: Mapping[str, SubscriptionStats], now: int
    ) -> SlowEvidence:
        backlog, settle, subscriptions = connection.backlog, self._engine.settle, connection.subscriptions
        waiting = [
            (subscriptions[id], one.paused) for id, one in figures.items() if one.lag_messages or one.paused
        ]
        taken, lump = backlog.acked_bytes, backlog.window_step_bytes
        rates = self._paces.setdefault(connection.name, RateMeter()).update(
            now, taken, taken + sum(one.lag_bytes for one in figures.values())
        )
        views = [settle.view_of(connection, target) for target in subscriptions.values()]
        unacked = sum(one.unacked for one in figures.values())
        return SlowEvidence(
            # What its kernel hasn't acknowledged waits as well, though not here.
            unread_messages=sum(one.lag_messages + one.account.in_flight.messages for one in figures.values())
            - unacked,
            write_blocked_ms=age_ms(backlog.silent_since, now),
            window_full_ms=window_full_ms(figures, now),
            no_credit_ms=max((age_ms(one.spent_since, now) for one in figures.values()), default=0),
            unacked_messages=unacked,
            ack_silence_ms=max(
                (age_ms(one.acked_at, now) for one in views if one is not None and one.unacked_messages),
                default=0,
            ),
            paused=bool(waiting) and all(paused for _, paused in waiting),
            rate_limited=bool(waiting) and all(target.rate is not None for target, _ in waiting),
            replaying=any(target.cursor.is_behind for target in subscriptions.values()),
            offlined=backlog.offline is not None,
            taken_rate=rates.taken,
            arrival_rate=rates.arriving,
            loop_late_ms=settle.late_ms,
            disk_ms=self._engine.reader.last_read_ms,
            network_limited=connection.sink.is_network_limited,
            sure_rate=max(rates.taken - lump * 1_000 // rates.over_ms, 0) if rates.over_ms else 0,
            lump_bytes=lump,
            usual_taken_rate=rates.usually_taken,
            usual_arrival_rate=rates.usually_arriving,
        )

    def forget(self, connected: Mapping[str, object]) -> None:
        """Keep nothing of clients that have left."""
        if len(self._paces) > 2 * len(connected) + 100:
            self._paces = {name: known for name, known in self._paces.items() if name in connected}
        for name in self._said.keys() - connected.keys():
            del self._said[name]  # it holds on to a connection


def window_full_ms(figures: Mapping[str, SubscriptionStats], now: int) -> int:
    """How long a window of a client's subscriptions has been full."""
    return max((age_ms(one.window_full_since, now) for one in figures.values()), default=0)


SAMPLES: Final = 10
"""Seconds over which it is told whether a lag grows."""
SILENT_MS: Final = 5_000
"""A window that has been full for so long: nothing is acknowledged."""
GROWN: Final = 0.1
"""A lag that became larger by so much of itself, or of what came for it within the seconds looked at, grows; less is noise. By
itself alone it would grow for a hundred seconds and no longer: a lag that grows steadily becomes ever larger than its growth."""
FLAPS: Final = 3
FLAPPING_NS: Final = 600 * 1_000_000_000
"""Offlined FLAPS times within this time."""
_SENT_NOTHING: Final = {
    DeliveryState.PAUSED: "it is paused",
    DeliveryState.OFFLINED: "nothing is sent to it while it is offlined",
}
_TAKES_TOO_LITTLE: Final = frozenset({SlowCause.SLOW_NETWORK, SlowCause.READING_SLOWLY, SlowCause.BURST})


class LagSample(NamedTuple):
    """A subscription's lag, and all that ever matched it, in messages."""

    lag: int
    matched: int


class CatchUpEstimate(NamedTuple):
    """In how many seconds nothing waits any more; None where there is no honest time, or nothing waits, and then why."""

    in_s: float | None = None
    why_none: str = ""


class HealthInputs(NamedTuple):
    """What is known of a subscription. `cause` and `blocked_ms` are of its client's connection."""

    lag_messages: int
    lag_before: int | None
    """The oldest lag of the seconds looked at; None when it wasn't looked at before."""
    came: int = 0
    """Messages that matched it since then."""
    in_flight: int = 0
    """Messages handed over and not acknowledged by the peer."""
    unacked: int = 0
    """Those of them that its application owes an acknowledgement of."""
    cause: str = SlowCause.KEEPS_UP
    """The verdict on why it is slow."""
    blocked_ms: int = 0
    spent_ms: int = 0
    """For how long it has had no credit while something waits."""
    window_full_ms: int = 0
    paused: bool = False
    paced: bool = False
    """Delivered at a rate that was asked for: waiting isn't its client's doing."""
    draining: bool = False
    """It takes again what waited on disk: whether it comes nearer is said by the lag alone."""
    flapping: bool = False


def health_of(seen: HealthInputs) -> Health:
    """The one word."""
    if seen.paused:
        return Health.PAUSED
    if seen.flapping:
        return Health.FLAPPING
    if not seen.lag_messages and not seen.in_flight:
        return Health.KEEPS_UP
    hangs = seen.unacked > 0 and seen.cause == SlowCause.APPLICATION_HANGS
    if seen.cause == SlowCause.NOT_READING or hangs or max(seen.window_full_ms, seen.spent_ms) >= SILENT_MS:
        return Health.STALLED
    blocked = seen.blocked_ms >= BLOCKED_MS
    if not blocked and (not seen.lag_messages or seen.paced):
        return Health.KEEPS_UP
    if seen.cause == SlowCause.BROKER_BUSY:
        return Health.UNKNOWN
    if blocked:
        return Health.FALLING_BEHIND
    if seen.lag_before is None:
        return Health.UNKNOWN
    if not seen.draining and seen.cause in _TAKES_TOO_LITTLE:
        return Health.FALLING_BEHIND
    noise = GROWN * min(seen.lag_before, seen.came)
    grows = seen.cause != SlowCause.KEEPS_UP and seen.lag_messages > seen.lag_before + noise
    return Health.FALLING_BEHIND if grows else Health.KEEPS_UP


def worst_health(healths: Iterable[Health]) -> Health:
    """Of a client's subscriptions; one without any keeps up."""
    return min(healths, key=lambda one: one.rank, default=Health.KEEPS_UP)


class LagHistory:
    """The lags of clients that have one, of the last seconds, by subscription; and when they were offlined."""

    def __init__(self) -> None:
        self._lags: dict[str, dict[str, deque[tuple[int, LagSample]]]] = {}
        self._offlined: dict[str, deque[int]] = {}

    def add_sample(self, client: str, now: int, lags: Mapping[str, LagSample]) -> None:
        """Look at a client, once a second: at each of its subscriptions."""
        known = self._lags.setdefault(client, {})
        for id, look in lags.items():
            if look.lag:
                known.setdefault(id, deque(maxlen=SAMPLES)).append((now, look))
            else:
                known.pop(id, None)
        for id in known.keys() - lags.keys():
            del known[id]
        if not known:
            del self._lags[client]

    def on_offlined(self, client: str, now: int) -> None:
        """It was offlined."""
        self._offlined.setdefault(client, deque(maxlen=FLAPS)).append(now)

    def is_flapping(self, client: str, now: int) -> bool:
        """Whether it was offlined again and again."""
        moments = self._offlined.get(client)
        return moments is not None and len(moments) == FLAPS and now - moments[0] < FLAPPING_NS

    def oldest_sample(self, client: str, id: str) -> LagSample | None:
        """The oldest look known; None when it wasn't looked at for two seconds."""
        known = self._of(client, id)
        return known[0][1] if len(known) > 1 else None

    def estimate_catch_up(self, client: str, id: str, delivery: DeliveryState) -> CatchUpEstimate:
        """When nothing waits, at the pace at which the lag has shrunk since it was greatest: of what came before, as of the
        time in which it was offlined, nothing follows.

        What is drained less what arrives is by how much the lag shrinks, so that is what is measured.
        """
        if delivery in _SENT_NOTHING:
            return CatchUpEstimate(why_none=_SENT_NOTHING[delivery])
        points = [(at, look.lag) for at, look in self._of(client, id)]
        greatest = max((lag for _, lag in points), default=0)
        shrinking = points[max((at for at, (_, lag) in enumerate(points) if lag == greatest), default=0) :]
        if len(shrinking) == 1 and len(points) >= ENOUGH_SAMPLES:
            return CatchUpEstimate(why_none="it doesn't get nearer")
        slope, why = slope_of(shrinking)
        if slope >= 0:
            return CatchUpEstimate(why_none=why or TOO_FEW)
        seconds = shrinking[-1][1] / -slope
        return (
            CatchUpEstimate(why_none=TOO_FAR)
            if is_beyond_horizon(seconds, shrinking)
            else CatchUpEstimate(round(seconds, 1))
        )

    def _of(self, client: str, id: str) -> Sequence[tuple[int, LagSample]]:
        return self._lags.get(client, {}).get(id) or ()

    def on_drained(self, client: str) -> None:
        """Nothing waits for it."""
        self._lags.pop(client, None)

    def forget(self, connected: Mapping[str, object]) -> None:
        """Keep nothing of clients that have left."""
        for kept in (self._lags, self._offlined):
            if len(kept) > len(connected):
                for name in kept.keys() - connected.keys():
                    del kept[name]
