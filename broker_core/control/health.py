"""How a client fares with what it is sent: one word, by the verdict on why it is slow, and how long until it has caught up.
Pure, but for what it remembers of the last seconds."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from broker_core.documents.clients import DeliveryState, Health
from broker_core.slow_clients.evaluate.forecast import (
    ENOUGH_SAMPLES,
    TOO_FAR,
    TOO_FEW,
    is_beyond_horizon,
    slope_of,
)
from broker_core.slow_clients.evaluate.why_slow import BLOCKED_MS, SlowCause

LOOKS: Final = 10
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


class Look(NamedTuple):
    """A subscription's lag, and all that ever matched it, in messages."""

    lag: int
    matched: int


class CaughtUp(NamedTuple):
    """In how many seconds nothing waits any more; None where there is no honest time, or nothing waits, and then why."""

    in_s: float | None = None
    why_none: str = ""


class Seen(NamedTuple):
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


def health_of(seen: Seen) -> Health:
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


def worst(healths: Iterable[Health]) -> Health:
    """Of a client's subscriptions; one without any keeps up."""
    return min(healths, key=lambda one: one.rank, default=Health.KEEPS_UP)


class Lags:
    """The lags of clients that have one, of the last seconds, by subscription; and when they were offlined."""

    def __init__(self) -> None:
        self._lags: dict[str, dict[str, deque[tuple[int, Look]]]] = {}
        self._offlined: dict[str, deque[int]] = {}

    def note(self, client: str, now: int, lags: Mapping[str, Look]) -> None:
        """Look at a client, once a second: at each of its subscriptions."""
        known = self._lags.setdefault(client, {})
        for id, look in lags.items():
            if look.lag:
                known.setdefault(id, deque(maxlen=LOOKS)).append((now, look))
            else:
                known.pop(id, None)
        for id in known.keys() - lags.keys():
            del known[id]
        if not known:
            del self._lags[client]

    def offlined(self, client: str, now: int) -> None:
        """It was offlined."""
        self._offlined.setdefault(client, deque(maxlen=FLAPS)).append(now)

    def flaps(self, client: str, now: int) -> bool:
        """Whether it was offlined again and again."""
        moments = self._offlined.get(client)
        return moments is not None and len(moments) == FLAPS and now - moments[0] < FLAPPING_NS

    def before(self, client: str, id: str) -> Look | None:
        """The oldest look known; None when it wasn't looked at for two seconds."""
        known = self._of(client, id)
        return known[0][1] if len(known) > 1 else None

    def caught_up(self, client: str, id: str, delivery: DeliveryState) -> CaughtUp:
        """When nothing waits, at the pace at which the lag has shrunk since it was greatest: of what came before, as of the
        time in which it was offlined, nothing follows.

        What is drained less what arrives is by how much the lag shrinks, so that is what is measured.
        """
        if delivery in _SENT_NOTHING:
            return CaughtUp(why_none=_SENT_NOTHING[delivery])
        points = [(at, look.lag) for at, look in self._of(client, id)]
        greatest = max((lag for _, lag in points), default=0)
        shrinking = points[max((at for at, (_, lag) in enumerate(points) if lag == greatest), default=0) :]
        if len(shrinking) == 1 and len(points) >= ENOUGH_SAMPLES:
            return CaughtUp(why_none="it doesn't get nearer")
        slope, why = slope_of(shrinking)
        if slope >= 0:
            return CaughtUp(why_none=why or TOO_FEW)
        seconds = shrinking[-1][1] / -slope
        return (
            CaughtUp(why_none=TOO_FAR)
            if is_beyond_horizon(seconds, shrinking)
            else CaughtUp(round(seconds, 1))
        )

    def _of(self, client: str, id: str) -> Sequence[tuple[int, Look]]:
        return self._lags.get(client, {}).get(id) or ()

    def rests(self, client: str) -> None:
        """Nothing waits for it."""
        self._lags.pop(client, None)

    def forget(self, connected: Mapping[str, object]) -> None:
        """Keep nothing of clients that have left."""
        for kept in (self._lags, self._offlined):
            if len(kept) > len(connected):
                for name in kept.keys() - connected.keys():
                    del kept[name]
