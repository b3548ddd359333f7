"""What slow-client policy decides is done here, one function for each action, and nowhere else.

Each takes the connection and the decision under way. It calls `record` exactly once, at once or when the client has
answered, with what the act brought to light: whether the client was told, and what it lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from broker_core.delivery import ClientState
from broker_core.protocols import replies
from broker_core.runtime.latest import keep_latest
from broker_core.slow_clients.decision import Decision
from broker_core.slow_clients.rules import Action, Unit

if TYPE_CHECKING:
    from broker_core.runtime.client_subscription import ClientSubscription
    from broker_core.runtime.connection import Connection

RETRY_AFTER_MS = 1_000
ALL = 2**62


class UnderWay:
    """A decision while it is carried out. `identity` names it to the client, the console and the journal."""

    def __init__(self, decision: Decision, identity: str, keep: Callable[[Decision, str], None]) -> None:
        self.decision = decision
        self.identity = identity
        self._keep = keep

    def record(self, told: str = "no", **found: Any) -> None:
        """The act is done: keep the decision with what came to light."""
        self._keep(replace(self.decision, told=told, **found), self.identity)


Act = Callable[["Connection", UnderWay], None]


def notify(connection: Connection, act: UnderWay) -> None:
    """Operators see the decision; nothing else happens."""
    act.record()


def warn(connection: Connection, act: UnderWay) -> None:
    """Tell the client, and go on."""
    _tell(connection, act)


def conflate_backlog(connection: Connection, act: UnderWay) -> None:
    """Keep the latest message per key of what waits."""
    for target in _targets(connection, act.decision):
        keep_latest(connection, target, act.decision.rule)
    act.record()


def discard_oldest(connection: Connection, act: UnderWay) -> None:
    """Drop the oldest until the subscription is within the limit."""
    decision = act.decision
    messages, nbytes = (decision.limit, ALL) if decision.unit is Unit.MESSAGES else (ALL, decision.limit)
    lost = kept = 0
    for target in _targets(connection, act.decision):
        stream = target.subscription.stream
        lost += connection.backlog.discard_oldest(stream, messages, nbytes, decision.rule)
        kept += connection.backlog.lane(stream).messages
    connection.host.judging.judge(connection)
    act.record(lost=lost, kept=kept)


def offline(connection: Connection, act: UnderWay) -> None:
    """Move what waits to the spool."""
    if connection.backlog.state is not ClientState.LIVE:
        act.record()
        return
    try:
        move_to_spool(connection, act.decision.at)
    except OSError as problem:
        act.record()
        connection.close("disk_full", f"This client must be offlined, and its spool can't be made: {problem}.")
        return
    act.record()
    connection.host.judging.judge(connection)


def move_to_spool(connection: Connection, at: int) -> None:
    """Offline a live client. Raises OSError when its spool can't be made. The caller judges it anew."""
    connection.backlog.go_offline(connection.host.judging.new_spool(connection))
    for target in connection.subscriptions.values():
        if target.conflating is not None:
            target.conflating.offlined()
    connection.host.events.add(at, connection.name, "offline_start", "offlined")


def continue_from_journal(connection: Connection, act: UnderWay) -> None:
    """Forget what waits in memory and read it from the journal instead, from the last sent position on."""
    for target in _targets(connection, act.decision):
        connection.host.subscribing.continue_from_journal(target)
    act.record()


def pause(connection: Connection, act: UnderWay) -> None:
    """Send nothing of the subscription, for a time or until it is resumed."""
    loop = asyncio.get_running_loop()
    for target in _targets(connection, act.decision):
        stream = target.subscription.stream
        connection.backlog.lane(stream).paused = True
        if act.decision.for_ms:
            loop.call_later(act.decision.for_ms / 1_000, resume, connection, stream)
    _tell(connection, act)


def resume(connection: Connection, stream: int) -> None:
    """Send again what a pause held back."""
    lane = connection.backlog.lanes.get(stream)
    if lane is not None and lane.paused:
        lane.paused = False
        connection.backlog.go_on()


def cancel_subscription(connection: Connection, act: UnderWay) -> None:
    """End the subscription and say so; the client's others go on."""
    decision = act.decision
    for target in _targets(connection, act.decision):
        connection.cancel(target, decision.rule)
        connection.reply(replies.Cancelled(
            id=target.subscription.id, code=decision.reason.value, message=decision.sentence(), decision=act.identity,
            retry_after_ms=RETRY_AFTER_MS,
        ))
    _tell(connection, act)


def ask_to_close(connection: Connection, act: UnderWay) -> None:
    """Ask the client to close. It is never closed by force: the rule asks again (seed 003), or has a wider rung."""
    connection.reply(replies.CloseRequested(
        code=act.decision.reason.value, message=act.decision.sentence(), retry_after_ms=RETRY_AFTER_MS
    ))
    _tell(connection, act)


def disconnect(connection: Connection, act: UnderWay) -> None:
    """Tell the client and close its connection."""
    _close(connection, act, RETRY_AFTER_MS)


def refuse(connection: Connection, act: UnderWay) -> None:
    """The same, and the name can't log on for a while."""
    connection.host.refused.add(connection.name, act.decision, connection.host.monotonic_ms())
    _close(connection, act, max(act.decision.for_ms, RETRY_AFTER_MS))


def delete_durable(connection: Connection, act: UnderWay) -> None:
    """The same as a disconnect, and the durable subscription is deleted: nothing is kept for it any more."""
    for target in _targets(connection, act.decision):
        if target.durable:
            connection.host.durables.delete(connection.name, target.durable)
            target.durable = ""
    _close(connection, act, RETRY_AFTER_MS)


ACTS: Final[dict[Action, Act]] = {
    Action.NOTIFY: notify,
    Action.WARN: warn,
    Action.CONFLATE: conflate_backlog,
    Action.DISCARD_OLDEST: discard_oldest,
    Action.OFFLINE: offline,
    Action.CONTINUE_FROM_JOURNAL: continue_from_journal,
    Action.PAUSE: pause,
    Action.CANCEL_SUBSCRIPTION: cancel_subscription,
    Action.ASK_TO_CLOSE: ask_to_close,
    Action.DISCONNECT: disconnect,
    Action.REFUSE: refuse,
    Action.DELETE_DURABLE: delete_durable,
}


def _targets(connection: Connection, decision: Decision) -> list[ClientSubscription]:
    """The subscription a decision names, or all of the client's."""
    if not decision.subscription:
        return list(connection.subscriptions.values())
    found = connection.subscriptions.get(decision.subscription)
    return [found] if found is not None else []


def _notice(act: UnderWay, retry_after_ms: int | None) -> replies.Notice:
    decision = act.decision
    return replies.Notice(
        **decision.notice(), retry_after_ms=retry_after_ms, decision=act.identity,
        subscription=decision.subscription or None, resume_token=decision.resume_token or None,
    )


def _tell(connection: Connection, act: UnderWay) -> None:
    connection.tellings.tell(act.identity, _notice(act, None), act.record)


def _close(connection: Connection, act: UnderWay, retry_after_ms: int) -> None:
    act.decision = replace(act.decision, resume_token=connection.host.hand_off(connection))
    connection.close_by_decision(act.identity, _notice(act, retry_after_ms), act.record)
