"""The signal table has one complete row for each signal."""

from __future__ import annotations

import pytest

from broker_core.config.rule_terms import SIGNALS, PolicyAction, Shape, Signal, SignalSubject, check_complete
from broker_core.config.rules import Rung
from broker_core.slow_clients.evaluate.signal_table import (
    OF_CLIENT,
    OF_POOL,
    OF_SUBSCRIPTION,
    READINGS,
    SignalReader,
    check_readers,
    client_value,
    pool_value,
    subscription_value,
)
from broker_core.slow_clients.evaluate.signals import AckedMessagesMark, PoolSignals
from broker_core.slow_clients.rules.rule import Rule
from tests.support.broker_simulation import SECOND, START
from tests.support.signals import ClientSignals, SubscriptionSignals

SLOW = SubscriptionSignals(
    "s",
    "t",
    prefetch=5,
    backlog_bytes=11,
    backlog_messages=12,
    outbox_bytes=13,
    outbox_messages=14,
    conflation_bytes=15,
    oldest_at=START - 16 * SECOND,
    unacked_messages=17,
    unacked_since=START - 18 * SECOND,
    acked_at=START - 19 * SECOND,
    acked_messages=127,
    acked_mark=AckedMessagesMark(START - 10 * SECOND, 100),
    window_full_since=START - 20 * SECOND,
    blocked_since=START - 21 * SECOND,
    pinned_bytes=22,
    waiting_messages=24,
)
CLIENT = ClientSignals(
    "c",
    "tcp",
    "instance",
    memory=1,
    outbox_messages=2,
    disk=3,
    oldest_at=START - 4 * SECOND,
    offlined_at=START - 5 * SECOND,
    conflation_bytes=6,
    blocked_since=START - 7 * SECOND,
    owed_bytes=8,
    owed_messages=9,
    subscriptions=(SLOW,),
    pinned_bytes=10,
    user_pinned_bytes=23,
    waiting_messages=25,
)
CLIENT_VALUES = {
    Signal.OUTBOUND_BYTES: 1,
    Signal.OUTBOUND_MESSAGES: 2,
    Signal.SPOOL_BYTES: 3,
    Signal.OLDEST_AGE: 4_000,
    Signal.SPOOL_AGE: 0,
    Signal.CONFLATION_BYTES: 6,
    Signal.WRITE_BLOCKED: 7_000,
    Signal.BACKLOG_BYTES: 8,
    Signal.BACKLOG_MESSAGES: 9,
    Signal.DRAIN_RATE: -1,
    Signal.PINNED_BYTES: 10,
    Signal.USER_PINNED_BYTES: 23,
    Signal.WAITING_MESSAGES: 25,
}
SUBSCRIPTION_VALUES = {
    Signal.BACKLOG_BYTES: 11,
    Signal.BACKLOG_MESSAGES: 12,
    Signal.OUTBOUND_BYTES: 13,
    Signal.OUTBOUND_MESSAGES: 14,
    Signal.CONFLATION_BYTES: 15,
    Signal.OLDEST_AGE: 16_000,
    Signal.UNACKED_MESSAGES: 17,
    Signal.UNACKED_AGE: 18_000,
    Signal.ACK_SILENCE: 19_000,
    Signal.ACKNOWLEDGED_RATE: 3_000,
    Signal.WINDOW_FULL: 20_000,
    Signal.WRITE_BLOCKED: 21_000,
    Signal.PINNED_BYTES: 22,
    Signal.WAITING_MESSAGES: 24,
}


def rule(signal: Signal) -> Rule:
    return Rule("r", "r", "", signal, Shape.HARD, 5, (Rung(PolicyAction.NOTIFY),), 1, window_ms=9)


@pytest.mark.parametrize("signal", OF_CLIENT)
def test_a_client_is_read(signal: Signal) -> None:
    assert client_value(rule(signal), CLIENT, START) == CLIENT_VALUES[signal]


@pytest.mark.parametrize("signal", OF_SUBSCRIPTION)
def test_a_subscription_is_read(signal: Signal) -> None:
    assert subscription_value(rule(signal), CLIENT, SLOW, START) == SUBSCRIPTION_VALUES[signal]


def test_a_pool_is_read() -> None:
    pool = PoolSignals("instance", 100, 30, 7)
    assert {signal: pool_value(rule(signal), pool) for signal in OF_POOL} == {
        Signal.POOL_MEMORY: 70,
        Signal.POOL_DISK: 7,
    }


def test_a_member_of_the_vocabulary_without_its_row_fails_where_the_table_is_made() -> None:
    for table in (SIGNALS, READINGS):
        assert set(table) == set(Signal)
        with pytest.raises(LookupError, match="WINDOW_FULL"):
            check_complete({signal: row for signal, row in table.items() if signal is not Signal.WINDOW_FULL})


def test_a_row_without_one_of_its_columns_cannot_be_made() -> None:
    with pytest.raises(TypeError, match="fires_without_backlog"):
        SignalReader("it has", None, None, None, sample_column=None, grows_with_time=False, outbox=False)  # type: ignore[call-arg]


def test_a_signal_is_read_off_just_what_it_is_measured_of() -> None:
    with pytest.raises(LookupError, match="a subscription aren't the same: spool_bytes"):
        check_readers({SignalSubject.SUBSCRIPTION: {*OF_SUBSCRIPTION, Signal.SPOOL_BYTES}})
