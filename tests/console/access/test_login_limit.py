from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from console.access import login_limit
from console.access.login_limit import FORGIVEN_INTERVAL_S, MAX_ADDRESSES, MAX_FAILURES, LoginThrottle


def failed(limit: LoginThrottle, times: int, address: str = "192.0.2.7", now: float = 1_000.0) -> None:
    for _ in range(times):
        limit.record_failure(address, now)


def test_one_more_than_the_most_waits_and_one_failure_is_forgiven_at_a_time() -> None:
    limit = LoginThrottle()
    failed(limit, MAX_FAILURES - 1)
    assert limit.wait_s("192.0.2.7", 1_000.0) == 0
    failed(limit, 1)
    assert limit.wait_s("192.0.2.7", 1_000.0) == FORGIVEN_INTERVAL_S
    assert limit.wait_s("192.0.2.8", 1_000.0) == 0
    assert limit.wait_s("192.0.2.7", 1_000.0 + FORGIVEN_INTERVAL_S) == 0


def test_no_number_of_failures_makes_the_wait_longer() -> None:
    limit = LoginThrottle()
    failed(limit, 10 * MAX_FAILURES)
    assert limit.wait_s("192.0.2.7", 1_000.0) == FORGIVEN_INTERVAL_S


def test_so_many_addresses_are_remembered_and_no_more() -> None:
    limit = LoginThrottle()
    for number in range(MAX_ADDRESSES + 50):
        limit.record_failure(f"10.0.{number // 250}.{number % 250}", 1_000.0)
    assert len(limit._failures) == MAX_ADDRESSES


@given(st.lists(st.integers(0, 60), max_size=60))
def test_so_many_addresses_of_a_minute_are_told_once_each(numbers: list[int]) -> None:
    limit = LoginThrottle()
    told = [number for number in numbers if limit.should_report(f"10.0.0.{number}", 1_000.0)]
    assert told == list(dict.fromkeys(numbers))[: login_limit.REPORT_ADDRESSES]
    assert limit.should_report("10.0.0.1", 1_060.0)
