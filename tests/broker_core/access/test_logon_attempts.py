"""Failed logons: slower each time, then a wait, forgotten after a while."""

from __future__ import annotations

from broker_core.access import logon_attempts as module
from broker_core.access.logon_attempts import (
    MAX_COUNTERS,
    MAX_DELAY_MS,
    MAX_REMOTE_FAILURES,
    MAX_USER_FAILURES,
    WINDOW_MS,
    FailedLogonTracker,
)


def test_each_failure_makes_the_answer_slower_up_to_a_limit() -> None:
    attempts = FailedLogonTracker()
    delays = [attempts.record_failure("10.0.0.1", "maria", 0) for _ in range(7)]
    assert delays == [100, 200, 400, 800, 1_600, MAX_DELAY_MS, MAX_DELAY_MS]


def test_after_so_many_a_user_waits_and_others_from_there_do_not() -> None:
    attempts = FailedLogonTracker()
    for at in range(MAX_USER_FAILURES):
        assert attempts.wait_ms("10.0.0.1", "maria", at) == 0
        attempts.record_failure("10.0.0.1", "maria", at)
    assert attempts.wait_ms("10.0.0.1", "maria", MAX_USER_FAILURES) == WINDOW_MS - 1
    assert attempts.wait_ms("10.0.0.1", "vera", MAX_USER_FAILURES) == 0
    assert attempts.wait_ms("10.0.0.2", "maria", MAX_USER_FAILURES) == 0
    assert attempts.wait_ms("10.0.0.1", "maria", MAX_USER_FAILURES - 1 + WINDOW_MS) == 0


def test_guessing_under_many_names_makes_the_remote_wait() -> None:
    attempts = FailedLogonTracker()
    for number in range(MAX_REMOTE_FAILURES):
        attempts.record_failure("10.0.0.1", f"user-{number}", 0)
    assert attempts.wait_ms("10.0.0.1", "somebody else", 1) > 0
    assert attempts.wait_ms("10.0.0.2", "somebody else", 1) == 0


def test_a_success_forgives_the_user_and_not_the_guesses_under_other_names() -> None:
    attempts = FailedLogonTracker()
    for _ in range(MAX_USER_FAILURES):
        attempts.record_failure("10.0.0.1", "maria", 0)
    attempts.record_success("10.0.0.1", "maria")
    assert attempts.wait_ms("10.0.0.1", "maria", 1) == 0
    for number in range(MAX_REMOTE_FAILURES - MAX_USER_FAILURES):
        attempts.record_failure("10.0.0.1", f"user-{number}", 1)
    attempts.record_success("10.0.0.1", "maria")
    assert attempts.wait_ms("10.0.0.1", "maria", 2) > 0


def test_a_token_without_a_user_name_is_not_kept_waiting_by_guesses_at_names() -> None:
    attempts = FailedLogonTracker()
    for number in range(MAX_USER_FAILURES):
        attempts.record_failure("10.0.0.1", f"user-{number}", 0)
    assert attempts.wait_ms("10.0.0.1", "", 1) == 0


def test_no_more_than_so_many_are_remembered() -> None:
    attempts = FailedLogonTracker()
    for number in range(MAX_COUNTERS + 10):
        attempts.record_failure(f"10.0.{number // 256}.{number % 256}", "", 0)
    assert len(attempts) == module.MAX_COUNTERS
