"""What the control plane is told about why a client is where it is: one reason, and what comes next."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple, Protocol

from broker_core.control.figures import is_paused
from broker_core.documents.clients import ForecastEntry, VerdictEntry
from broker_core.slow_clients.evaluate.pace import Pace
from broker_core.slow_clients.evaluate.why_slow import BLOCKED_MS, Evidence, why_slow

if TYPE_CHECKING:
    from broker_core.connections.member import Member
    from broker_core.control.figures import Figures
    from broker_core.delivery.lifecycle import ClientState
    from broker_core.engine.settle import Settle
    from broker_core.journal.reader_thread import ReaderThread

_MS = 1_000_000
KEPT_S = 5
"""How old a forecast and a verdict may be where there are many slow clients: making them is most of an entry's cost."""


class Judged(Protocol):
    """What explaining needs of a broker besides its clients."""

    @property
    def settle(self) -> Settle: ...
    @property
    def reader(self) -> ReaderThread: ...


class Explained(NamedTuple):
    """Both None for one that keeps up."""

    forecast: ForecastEntry | None = None
    why_slow: VerdictEntry | None = None


class Explaining:
    """One instance's explanations. Remembers the pace of each client it is asked about."""

    def __init__(self, judged: Judged) -> None:
        self._judged = judged
        self._paces: dict[str, Pace] = {}
        self._said: dict[str, tuple[int, Member, ClientState, Explained]] = {}

    def client(
        self, connection: Member, figures: Mapping[str, Figures], now: int, crowded: bool = False
    ) -> Explained:
        """Why it is behind and what comes next. `crowded`: may be KEPT_S old, if the client's state is still what it was."""
        backlog = connection.backlog
        blocked = backlog.blocked_since and now - backlog.blocked_since >= BLOCKED_MS * _MS
        if not blocked and not any(one.lag_messages or one.unacked for one in figures.values()):
            return Explained()
        at, whose, state, said = self._said.get(connection.name, (0, None, None, Explained()))
        if crowded and now - at < KEPT_S * 1_000 * _MS and whose is connection and state is backlog.state:
            return said
        said = self._explain(connection, figures, now)
        self._said[connection.name] = (now, connection, backlog.state, said)
        return said

    def _explain(self, connection: Member, figures: Mapping[str, Figures], now: int) -> Explained:
        found = self._judged.settle.guard.forecast(connection.name, now)
        return Explained(found, why_slow(self._evidence(connection, figures, now)))

    def _evidence(self, connection: Member, figures: Mapping[str, Figures], now: int) -> Evidence:
        backlog, settle = connection.backlog, self._judged.settle
        targets = [
            target
            for id, target in connection.subscriptions.items()
            if figures[id].lag_messages or is_paused(target)
        ]
        pace = self._paces.setdefault(connection.name, Pace())
        rates = pace.look(
            now, backlog.taken_bytes, backlog.taken_bytes + sum(one.lag_bytes for one in figures.values())
        )
        views = [settle.view_of(connection, target) for target in connection.subscriptions.values()]
        lump = backlog.lump_bytes
        silence = min(
            (one.acked_at for one in views if one is not None and one.unacked_messages and one.acked_at),
            default=0,
        )
        return Evidence(
            # What its kernel hasn't acknowledged waits as well, though not here.
            waiting_messages=sum(
                one.lag_messages + one.account.in_flight.messages - one.unacked for one in figures.values()
            ),
            write_blocked_ms=(now - backlog.blocked_since) // _MS if backlog.blocked_since else 0,
            window_full_ms=window_full_ms(figures, now),
            unacked_messages=sum(one.unacked for one in figures.values()),
            ack_silence_ms=(now - silence) // _MS if silence else 0,
            paused=bool(targets) and all(is_paused(target) for target in targets),
            rate_limited=bool(targets) and all(target.rate is not None for target in targets),
            replaying=any(target.cursor.reading for target in connection.subscriptions.values()),
            offlined=backlog.offline is not None,
            taken_rate=rates.taken,
            arrival_rate=rates.arriving,
            loop_late_ms=settle.late_ms,
            disk_ms=self._judged.reader.took_ms,
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
        for name in [name for name in self._said if name not in connected] if self._said else ():
            del self._said[name]  # it holds on to a connection


def window_full_ms(figures: Mapping[str, Figures], now: int) -> int:
    """How long a window of a client's subscriptions has been full."""
    since = min((one.window_full_since for one in figures.values() if one.window_full_since), default=0)
    return (now - since) // _MS if since else 0
