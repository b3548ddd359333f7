"""Diagnosis of clients: why one is slow, which rule acts next, its health, and when it catches up.

`ClientDiagnostics` returns a verdict and a forecast, `classify_health` one word for a subscription's health.
`LagHistory` stores the lags of the last seconds for catch-up estimates. Everything else is pure.
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
    MIN_TREND_SAMPLES,
    TOO_FAR,
    TOO_FEW,
    fit_slope,
    is_beyond_horizon,
)
from broker_core.slow_clients.evaluate.samples import RateMeter
from broker_core.slow_clients.evaluate.signals import age_ms
from broker_core.slow_clients.evaluate.why_slow import BLOCKED_MS, SlowCause, SlowEvidence, find_slow_cause

RETENTION_MS = 5_000
"""Maximum age of a forecast and verdict where many clients are slow.

They are most of the cost of an entry.
"""


class ClientDiagnosis(NamedTuple):
    """Forecast and verdict of a client; both are None for a client that keeps up."""

    forecast: ForecastEntry | None = None
    why_slow: VerdictEntry | None = None


class ClientDiagnostics:
    """Diagnosis of an instance's clients. Remembers the rates of the clients it has diagnosed."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._clock = engine.clock
        self._meters: dict[str, tuple[ConnectionView, RateMeter]] = {}
        """Connection and rates of each client that was slow. Totals restart with each connection."""
        self._diagnoses: dict[str, tuple[int, ConnectionView, ClientState, ClientDiagnosis]] = {}
        """Monotonic time (ms), connection, state and result of each client's last diagnosis."""

    def diagnose(
        self,
        connection: ConnectionView,
        figures: Mapping[str, SubscriptionStats],
        now: int,
        crowded: bool = False,
    ) -> ClientDiagnosis:
        """Return why a client is behind, and which rule acts next.

        Args:
            connection: The client.
            figures: Statistics of its subscriptions by id.
            now: Current wall-clock time, ns.
            crowded: Whether the result may be up to RETENTION_MS old, if the client's state is unchanged.
        """
        backlog = connection.backlog
        blocked = age_ms(backlog.silent_since, now) >= BLOCKED_MS
        if not blocked and not any(one.lag_messages or one.unacked for one in figures.values()):
            return ClientDiagnosis()
        now_ms = self._clock.monotonic_ms()
        at_ms, diagnosed, state, diagnosis = self._diagnoses.get(
            connection.name, (0, None, None, ClientDiagnosis())
        )
        if crowded and now_ms - at_ms < RETENTION_MS and diagnosed is connection and state is backlog.state:
            return diagnosis
        forecast = self._engine.guard.forecast(connection.name, now)
        diagnosis = ClientDiagnosis(forecast, find_slow_cause(self._evidence(connection, figures, now)))
        self._diagnoses[connection.name] = (now_ms, connection, backlog.state, diagnosis)
        return diagnosis

    def _meter_for(self, connection: ConnectionView) -> RateMeter:
        """Return the rate meter of a connection; a new one for a new connection of its client."""
        known = self._meters.get(connection.name)
        if known is None or known[0] is not connection:
            known = self._meters[connection.name] = connection, RateMeter()
        return known[1]

    def _evidence(
        self, connection: ConnectionView, figures: Mapping[str, SubscriptionStats], now: int
    ) -> SlowEvidence:
        """Collect the figures on which the verdict is based."""
        backlog, policy_loop, subscriptions = (
            connection.backlog,
            self._engine.policy_loop,
            connection.subscriptions,
        )
        waiting = [
            (subscriptions[id], one.paused) for id, one in figures.items() if one.lag_messages or one.paused
        ]
        acked_bytes, step_bytes = backlog.acked_bytes, backlog.window_step_bytes
        rates = self._meter_for(connection).update(
            self._clock.monotonic_ns(),
            acked_bytes,
            acked_bytes + sum(one.lag_bytes for one in figures.values()),
        )
        views = [policy_loop.find_view(connection, target) for target in subscriptions.values()]
        unacked = sum(one.unacked for one in figures.values())
        return SlowEvidence(
            # Messages that the peer's kernel has not acknowledged are unread, too.
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
            taken_rate=rates.read_rate,
            arrival_rate=rates.arrival_rate,
            loop_late_ms=policy_loop.late_ms,
            disk_ms=self._engine.reader.last_read_ms,
            network_limited=connection.sink.is_network_limited,
            sure_rate=max(rates.read_rate - step_bytes * 1_000 // rates.span_ms, 0) if rates.span_ms else 0,
            lump_bytes=step_bytes,
            usual_taken_rate=rates.usual_read_rate,
            usual_arrival_rate=rates.usual_arrival_rate,
        )

    def drop_disconnected(self, connected: Mapping[str, object]) -> None:
        """Drop data of clients that have disconnected."""
        for known in (self._meters, self._diagnoses):
            for name in [name for name in known if name not in connected]:
                del known[name]  # it references a connection


def window_full_ms(figures: Mapping[str, SubscriptionStats], now: int) -> int:
    """Return the longest time that a window of a client's subscriptions has been full."""
    return max((age_ms(one.window_full_since, now) for one in figures.values()), default=0)


SAMPLES: Final = 10
"""Number of samples, one per second, that show whether a lag grows."""
SILENT_MS: Final = 5_000
"""A subscription whose window has been full, or that had no credit, for this long is stalled."""
MIN_LAG_GROWTH: Final = 0.1
"""Minimum growth of a lag, as a share, that is not noise.

The share is of the earlier lag, or of the messages that matched meanwhile, whichever is smaller. With the lag
alone, steady growth would stop to count after a hundred seconds, because the lag becomes ever larger than its
growth.
"""
FLAPPING_COUNT: Final = 3
"""A client that was offlined this many times within FLAPPING_NS is flapping."""
FLAPPING_NS: Final = 600 * 1_000_000_000
"""Period for FLAPS."""
NO_ESTIMATE_REASONS: Final = {
    DeliveryState.PAUSED: "it is paused",
    DeliveryState.OFFLINED: "nothing is sent to it while it is offlined",
}
"""Reasons without an estimate, by delivery state."""
SLOW_READING_CAUSES: Final = frozenset({SlowCause.SLOW_NETWORK, SlowCause.READING_SLOWLY, SlowCause.BURST})
"""Causes that mean that a client reads more slowly than messages arrive."""


class LagSample(NamedTuple):
    """Lag of a subscription, and all messages that ever matched it."""

    lag: int
    matched: int


class CatchUpEstimate(NamedTuple):
    """Seconds until no message waits; None with a reason, or None when no message waits now."""

    in_s: float | None = None
    why_none: str = ""


class HealthInputs(NamedTuple):
    """Figures of a subscription. `cause` and `blocked_ms` belong to its client's connection."""

    lag_messages: int
    earlier_lag: int | None
    """Oldest lag of the last SAMPLES seconds; None if there is no earlier sample."""
    matched_since: int = 0
    """Messages that have matched since then."""
    in_flight: int = 0
    """Messages handed to the transport and not acknowledged by the peer."""
    unacked: int = 0
    """Part of these that the application must acknowledge."""
    cause: str = SlowCause.KEEPS_UP
    """Verdict on why the client is slow."""
    blocked_ms: int = 0
    spent_ms: int = 0
    """Time without credit while messages wait."""
    window_full_ms: int = 0
    paused: bool = False
    paced: bool = False
    """Whether it is delivered at a requested rate. Waiting is then not the client's fault."""
    draining: bool = False
    """Whether its backlog on disk is being sent. Then only the lag shows whether it catches up."""
    flapping: bool = False


def classify_health(inputs: HealthInputs) -> Health:
    """Return the health of a subscription."""
    if inputs.paused:
        return Health.PAUSED
    if inputs.flapping:
        return Health.FLAPPING
    if not inputs.lag_messages and not inputs.in_flight:
        return Health.KEEPS_UP
    hangs = inputs.unacked > 0 and inputs.cause == SlowCause.APPLICATION_HANGS
    if (
        inputs.cause == SlowCause.NOT_READING
        or hangs
        or max(inputs.window_full_ms, inputs.spent_ms) >= SILENT_MS
    ):
        return Health.STALLED
    blocked = inputs.blocked_ms >= BLOCKED_MS
    if not blocked and (not inputs.lag_messages or inputs.paced):
        return Health.KEEPS_UP
    if inputs.cause == SlowCause.BROKER_BUSY:
        return Health.UNKNOWN
    if blocked:
        return Health.FALLING_BEHIND
    if inputs.earlier_lag is None:
        return Health.UNKNOWN
    if not inputs.draining and inputs.cause in SLOW_READING_CAUSES:
        return Health.FALLING_BEHIND
    noise = MIN_LAG_GROWTH * min(inputs.earlier_lag, inputs.matched_since)
    grows = inputs.cause != SlowCause.KEEPS_UP and inputs.lag_messages > inputs.earlier_lag + noise
    return Health.FALLING_BEHIND if grows else Health.KEEPS_UP


def worst_health(healths: Iterable[Health]) -> Health:
    """Return the worst health of a client's subscriptions; without subscriptions it keeps up."""
    return min(healths, key=lambda one: one.rank, default=Health.KEEPS_UP)


class LagHistory:
    """Lags of the last seconds by client and subscription, and when clients were offlined.

    Only subscriptions with a lag are stored.
    """

    def __init__(self) -> None:
        self._lags: dict[str, dict[str, deque[tuple[int, LagSample]]]] = {}
        self._offlined: dict[str, deque[int]] = {}

    def add_sample(self, client: str, now: int, samples: Mapping[str, LagSample]) -> None:
        """Add a sample of each of a client's subscriptions. Call it once a second."""
        known = self._lags.setdefault(client, {})
        for id, sample in samples.items():
            if sample.lag:
                known.setdefault(id, deque(maxlen=SAMPLES)).append((now, sample))
            else:
                known.pop(id, None)
        for id in known.keys() - samples.keys():
            del known[id]
        if not known:
            del self._lags[client]

    def on_offlined(self, client: str, now: int) -> None:
        """Record that a client was offlined."""
        self._offlined.setdefault(client, deque(maxlen=FLAPPING_COUNT)).append(now)

    def is_flapping(self, client: str, now: int) -> bool:
        """Return whether a client was offlined FLAPS times within FLAPPING_NS."""
        moments = self._offlined.get(client)
        return moments is not None and len(moments) == FLAPPING_COUNT and now - moments[0] < FLAPPING_NS

    def oldest_sample(self, client: str, id: str) -> LagSample | None:
        """Return the oldest sample stored; None if there are fewer than two."""
        known = self._samples_for(client, id)
        return known[0][1] if len(known) > 1 else None

    def estimate_catch_up(self, client: str, id: str, delivery: DeliveryState) -> CatchUpEstimate:
        """Return when no message waits, at the rate at which the lag has shrunk since it was greatest.

        Earlier samples, for example while the client was offlined, do not predict the future. The decrease of
        the lag is measured directly: it equals messages drained less messages arriving.
        """
        if delivery in NO_ESTIMATE_REASONS:
            return CatchUpEstimate(why_none=NO_ESTIMATE_REASONS[delivery])
        points = [(at, sample.lag) for at, sample in self._samples_for(client, id)]
        greatest = max((lag for _, lag in points), default=0)
        shrinking = points[max((at for at, (_, lag) in enumerate(points) if lag == greatest), default=0) :]
        if len(shrinking) == 1 and len(points) >= MIN_TREND_SAMPLES:
            return CatchUpEstimate(why_none="it doesn't get nearer")
        slope, reason = fit_slope(shrinking)
        if slope >= 0:
            return CatchUpEstimate(why_none=reason or TOO_FEW)
        seconds = shrinking[-1][1] / -slope
        return (
            CatchUpEstimate(why_none=TOO_FAR)
            if is_beyond_horizon(seconds, shrinking)
            else CatchUpEstimate(round(seconds, 1))
        )

    def _samples_for(self, client: str, id: str) -> Sequence[tuple[int, LagSample]]:
        """Return the samples of a subscription, oldest first."""
        return self._lags.get(client, {}).get(id) or ()

    def on_drained(self, client: str) -> None:
        """Drop the samples of a client without waiting messages."""
        self._lags.pop(client, None)

    def drop_disconnected(self, connected: Mapping[str, object]) -> None:
        """Drop data of clients that have disconnected."""
        for history in (self._lags, self._offlined):
            if len(history) > len(connected):
                for name in history.keys() - connected.keys():
                    del history[name]
