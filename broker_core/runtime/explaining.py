"""What the control plane is told about why a client is where it is: what it is owed, one reason, and what comes next."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from broker_core.slow_clients.why_slow import Evidence, why_slow

if TYPE_CHECKING:
    from broker_core.delivery import ClientState
    from broker_core.runtime.client_subscription import ClientSubscription
    from broker_core.runtime.connection import Connection

_MS = 1_000_000
KEPT_S = 5
"""How old a forecast and a verdict may be where there are many slow clients: making them is most of an entry's cost."""


class Explaining:
    """One instance's explanations. Looks at a client once a second, and remembers two figures of each."""

    def __init__(self) -> None:
        self._before: dict[str, tuple[int, int, int]] = {}
        """Of each client: when it was looked at, bytes sent by then, bytes that waited."""
        self._said: dict[str, tuple[int, Connection, ClientState, dict[str, Any]]] = {}

    def client(self, connection: Connection, now: int, crowded: bool = False) -> dict[str, Any]:
        """The part of a client's entry that explains. `forecast` and `why_slow` are None for one that keeps up.

        `crowded`: these two may be KEPT_S old, if the client's state is still what it was.
        """
        backlog = connection.backlog
        unacked = backlog.lanes.unacked if backlog.lanes else 0
        waiting = backlog.messages or (backlog.spool is not None and backlog.spool.messages)
        return {
            "matched_messages": connection.matched_messages,
            "lost_messages": backlog.lost_messages,
            "unacked_messages": unacked,
            "window_full_ms": _window_full_ms(connection, now),
            "held_bytes": backlog.lanes.nbytes,
            **(self._slow(connection, now, crowded) if waiting or unacked else {"forecast": None, "why_slow": None}),
            "last_decision": connection.host.judging.last_of(connection.name),
        }

    def _slow(self, connection: Connection, now: int, crowded: bool) -> dict[str, Any]:
        at, whose, state, said = self._said.get(connection.name, (0, None, None, {}))
        if crowded and now - at < KEPT_S * 1_000 * _MS and whose is connection and state is connection.backlog.state:
            return said
        said = self._explain(connection, now)
        self._said[connection.name] = (now, connection, connection.backlog.state, said)
        return said

    def _explain(self, connection: Connection, now: int) -> dict[str, Any]:
        found = connection.host.judging.guard.forecast(connection.name, now)
        why = why_slow(self._evidence(connection, now))
        return {
            "forecast": {key: getattr(value, "value", value) for key, value in found._asdict().items()} if found else None,
            "why_slow": {"cause": why.cause.value, "sentence": why.sentence, "evidence": why.evidence},
        }

    def _evidence(self, connection: Connection, now: int) -> Evidence:
        backlog, host = connection.backlog, connection.host
        spool = backlog.spool
        targets = [target for target in connection.subscriptions.values() if _waits(connection, target)]
        waiting_bytes = backlog.nbytes + (spool.backlog_bytes if spool is not None else 0)
        drained, arrived = self._rates(connection.name, now, backlog.sent_bytes, waiting_bytes)
        signals = [target.signals for target in targets if target.signals is not None and target.signals.unacked_messages]
        silence = min((one.acked_at for one in signals if one.acked_at), default=0)
        return Evidence(
            waiting_messages=backlog.messages + (spool.messages if spool is not None else 0),
            write_blocked_ms=(now - backlog.blocked_since) // _MS if backlog.blocked_since else 0,
            window_full_ms=_window_full_ms(connection, now),
            unacked_messages=backlog.lanes.unacked,
            ack_silence_ms=(now - silence) // _MS if silence else 0,
            paused=bool(targets) and all(_paused(connection, target) for target in targets),
            rate_limited=bool(targets) and all(target.rate is not None for target in targets),
            replaying=any(target.replaying for target in connection.subscriptions.values()),
            offlined=backlog.offline is not None,
            drain_rate=drained,
            arrival_rate=arrived,
            loop_late_ms=host.judging.late_ms,
            disk_ms=host.disk_ms,
        )

    def _rates(self, name: str, now: int, sent: int, waiting: int) -> tuple[int, int]:
        """Bytes a second taken and arrived since the client was looked at before."""
        before = self._before.get(name)
        self._before[name] = (now, sent, waiting)
        if before is None or now <= before[0]:
            return 0, 0
        seconds = (now - before[0]) / 1e9
        drained = max(sent - before[1], 0)
        return int(drained / seconds), int(max(drained + waiting - before[2], 0) / seconds)

    def forget(self, connected: set[str]) -> None:
        """Keep nothing of clients that have left."""
        if len(self._before) > 2 * len(connected) + 100:
            self._before = {name: known for name, known in self._before.items() if name in connected}
        for name in [name for name in self._said if name not in connected] if self._said else ():
            del self._said[name]  # it holds on to a connection


def subscription_facts(target: ClientSubscription) -> dict[str, Any]:
    """What a subscription's entry has besides what it asked for."""
    lane = target.connection.backlog.lanes.get(target.subscription.stream)
    window = lane.window if lane is not None else None
    return {
        "ack": window.mode.value if window is not None else None,
        "prefetch": window.prefetch if window is not None else None,
        "unacked_messages": window.unacked if window is not None else 0,
        "durable": target.durable or None,
        "lease_ms": target.lease_ms or None,
        "lost_messages": target.lost_messages,
        "paused": _paused(target.connection, target),
    }


def _window_full_ms(connection: Connection, now: int) -> int:
    since = min((lane.full_since for lane in connection.backlog.lanes.values() if lane.full_since), default=0)
    return (now - since) // _MS if since else 0


def _waits(connection: Connection, target: ClientSubscription) -> bool:
    lane = connection.backlog.lanes.get(target.subscription.stream)
    return lane is None or bool(lane.messages) or target.paused


def _paused(connection: Connection, target: ClientSubscription) -> bool:
    lane = connection.backlog.lanes.get(target.subscription.stream)
    return target.paused or (lane is not None and lane.paused)
