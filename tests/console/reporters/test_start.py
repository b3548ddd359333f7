"""Orders for a broker's start: the database's, with what the broker itself has noted."""

from __future__ import annotations

from dataclasses import replace

from broker_core.slow_clients.rules.staging import Stage
from console.reporters.start import _with_own_count
from tests.support.brokers import tcp_policy


def test_decisions_that_the_database_has_not_heard_of_count_against_the_allowance() -> None:
    stage = Stage(replace(tcp_policy(), revision=9), client="desk-*", allowed=3, made=1)
    assert _with_own_count(stage, None) == stage
    assert _with_own_count(None, stage) is None
    assert _with_own_count(stage, stage._replace(made=2)) == stage._replace(made=2)
    assert _with_own_count(stage, stage._replace(made=0)) == stage
    withdrawn = stage._replace(made=3, withdrawn=True)
    assert _with_own_count(stage, withdrawn) == withdrawn
    other = withdrawn._replace(document=replace(tcp_policy(), revision=8))
    assert _with_own_count(stage, other) == stage
