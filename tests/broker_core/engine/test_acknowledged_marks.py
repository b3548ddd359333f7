"""Totals of acknowledged messages that a subscription keeps for rules on their rate."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

from hypothesis import given
from hypothesis import strategies as st

from broker_core.connections.connection_view import ConnectionView
from broker_core.engine.subscription_view import MAX_MARKS, LiveSubscriptionView
from broker_core.journal.journal import Journal
from broker_core.replay.client_subscription import ClientSubscription

MS = 1_000_000


@given(st.lists(st.tuples(st.integers(0, 3_000), st.integers(0, 9)), max_size=400), st.integers(100, 60_000))
def test_the_measured_rate_is_never_below_the_true_one(acks: list[tuple[int, int]], window_ms: int) -> None:
    account = SimpleNamespace(acknowledged=SimpleNamespace(messages=0))
    target = SimpleNamespace(
        id="s", topic="t", durable="", is_bookmark_subscription=False, account=account, stream=1
    )
    view = LiveSubscriptionView(
        cast(ConnectionView, SimpleNamespace(backlog=None)),
        cast(ClientSubscription, target),
        10,
        cast(Journal, None),
    )
    now_ms, totals = 1, [(1, 0)]
    view.mark_acknowledged(now_ms * MS)
    for passed_ms, messages in acks:
        now_ms += passed_ms
        account.acknowledged.messages += messages
        view.mark_acknowledged(now_ms * MS)
        totals.append((now_ms, account.acknowledged.messages))
    since = now_ms - window_ms
    mark = view.acked_before(since * MS)
    if since < 1:
        assert mark is None
    else:
        assert mark is not None, "marks reach back for the longest window"
        true = max(total for at, total in totals if at <= since)
        lately = [total for at, total in totals if at <= since - 1_000]
        assert max(lately, default=0) <= mark.messages <= true
    assert len(view._acked_marks) <= MAX_MARKS
