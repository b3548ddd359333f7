"""What the control plane is told about why a client is where it is: one reason, and what comes next."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from broker_core.connections.connection_view import ConnectionView
from broker_core.control.figures import Figures
from broker_core.delivery.lifecycle import ClientState
from broker_core.documents.clients import ForecastEntry, VerdictEntry
from broker_core.engine.engine import Engine
from broker_core.slow_clients.evaluate.samples import RateMeter
from broker_core.slow_clients.evaluate.signals import age_ms
from broker_core.slow_clients.evaluate.why_slow import BLOCKED_MS, SlowEvidence, find_slow_cause

KEPT_MS = 5_000
"""How old a forecast and a verdict may be where there are many slow clients: making them is most of an entry's cost."""


class Explained(NamedTuple):
    """Both None for one that keeps up."""

    forecast: ForecastEntry | None = None
    why_slow: VerdictEntry | None = None


class Explaining:
    """One instance's explanations. Remembers the pace of each client it is asked about."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._paces: dict[str, RateMeter] = {}
        self._said: dict[str, tuple[int, ConnectionView, ClientState, Explained]] = {}

    def client(
        self, connection: ConnectionView, figures: Mapping[str, Figures], now: int, crowded: bool = False
    ) -> Explained:
        """Why it is behind and what comes next. `crowded`: may be KEPT_MS old, if the client's state is still what it was."""
        backlog = connection.backlog
        blocked = age_ms(backlog.silent_since, now) >= BLOCKED_MS
        if not blocked and not any(one.lag_messages or one.unacked for one in figures.values()):
            return Explained()
        at, whose, state, said = self._said.get(connection.name, (0, None, None, Explained()))
        if crowded and age_ms(at, now) < KEPT_MS and whose is connection and state is backlog.state:
            return said
        found = self._engine.guard.forecast(connection.name, now)
        said = Explained(found, find_slow_cause(self._evidence(connection, figures, now)))
        self._said[connection.name] = (now, connection, backlog.state, said)
        return said

    def _evidence(self, connection: ConnectionView, figures: Mapping[str, Figures], now: int) -> SlowEvidence:
        backlog, settle, subscriptions = connection.backlog, self._engine.settle, connection.subscriptions
        waiting = [
            (subscriptions[id], one.paused) for id, one in figures.items() if one.lag_messages or one.paused
        ]
        taken, lump = backlog.taken_bytes, backlog.lump_bytes
        rates = self._paces.setdefault(connection.name, RateMeter()).look(
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
            replaying=any(target.cursor.reading for target in subscriptions.values()),
            offlined=backlog.offline is not None,
            taken_rate=rates.taken,
            arrival_rate=rates.arriving,
            loop_late_ms=settle.late_ms,
            disk_ms=self._engine.reader.took_ms,
            network_limited=connection.sink.network_limited,
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


def window_full_ms(figures: Mapping[str, Figures], now: int) -> int:
    """How long a window of a client's subscriptions has been full."""
    return max((age_ms(one.window_full_since, now) for one in figures.values()), default=0)
