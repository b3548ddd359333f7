"""A peer's receive window moves in steps.

A steady reader above the floor never counts as slow for it; one below the floor does, in time.
"""

from __future__ import annotations

from hypothesis import example, given, settings
from hypothesis import strategies as st

from broker_core.slow_clients.accounts.guard import SlowClientGuard
from broker_core.slow_clients.rules.rule import SAMPLES
from broker_core.slow_clients.rules.scopes import RuleSubject
from tests.support.broker_simulation import SECOND, START, FixedBacklog, make_guard, policy, rule_book

FLOOR = 5_000
KIB = 1 << 10


class SteppedWindowReader(FixedBacklog):
    """A client that reads `rate` bytes a second, but whose window opens one step at a time."""

    def __init__(self, rate: int, lump: int, phase: float, arriving: int) -> None:
        super().__init__(START)
        self.rate, self.window_step_bytes, self.arriving = rate, lump, arriving
        self._ahead = int(lump * phase)
        self.owed_bytes = 1

    def move(self, elapsed_ns: int) -> None:
        """Set the figures to `elapsed_ns` after the start."""
        read = self.rate * elapsed_ns // SECOND
        self.acked_bytes = (read + self._ahead) // self.window_step_bytes * self.window_step_bytes
        # The oldest that waits came when as much had come as has been taken by now.
        self.oldest_at = START + min(self.acked_bytes * SECOND // self.arriving, elapsed_ns)


def acted_after(reader: SteppedWindowReader, seconds: float) -> float | None:
    """Seconds until the guard acts; None: not within this time. Looked at eight times a second."""
    made: SlowClientGuard = make_guard(policy(xap=[{"enabled": True, "throughput": FLOOR}]))
    made.on_queued(made.register("c", "tcp", reader), 50_000, START)
    for part in range(int(seconds * 8)):
        now = START + part * SECOND // 8
        reader.move(now - START)
        if made.tick_part(now):
            return part / 8
    return None


LUMPS = st.integers(8 * KIB, 400_000)


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from([10_000, 20_000, 50_000, 100_000]),
    LUMPS,
    st.floats(0, 1, exclude_max=True),
    st.sampled_from([1, 5, 100]),
)
@example(10_000, 400_000, 0.0, 100)
@example(10_000, 400_000, 0.999, 1)
@example(10_000, 8 * KIB, 0.0, 5)
def test_a_steady_reader_above_the_floor_is_never_acted_on(
    rate: int, lump: int, phase: float, times: int
) -> None:
    assert (
        acted_after(SteppedWindowReader(rate, lump, phase, arriving=rate * times), 3 * lump / FLOOR + 90)
        is None
    )


@settings(max_examples=30, deadline=None)
@given(LUMPS, st.floats(0, 1, exclude_max=True))
@example(400_000, 0.999)
@example(300_000, 0.999)
@example(8 * KIB, 0.5)
def test_one_below_the_floor_is_acted_on_within_the_stated_worst_case(lump: int, phase: float) -> None:
    (rule,) = [
        rule
        for rule in rule_book(policy(xap=[{"enabled": True}])).client_rules_for(RuleSubject("tcp"))
        if rule.name == "xap.throughput"
    ]
    worst = rule.worst_case_ms(0, lump) / 1_000
    reader = SteppedWindowReader(1_000, lump, phase, arriving=100_000)
    at = acted_after(reader, worst + 1)
    assert at is not None and lump / FLOOR <= at <= worst
    assert worst <= 2.2 * lump / FLOOR + 12


def test_after_an_idle_time_a_burst_is_not_held_against_a_reader() -> None:
    """For longer than the observation window few bytes arrived and all were read: the client is behind from
    the burst on, not before.
    """
    made = make_guard(policy(xap=[{"enabled": True}]))
    reader = SteppedWindowReader(10_000, 400_000, 0.0, arriving=50_000)
    use = made.register("c", "tcp", reader)
    made.on_queued(use, 10, START)
    acts = []
    for second in range(300):
        now = START + second * SECOND
        reader.oldest_at, reader.acked_bytes = now - 1, second * 100
        acts += made.tick(now)
    before, burst = reader.acked_bytes, START + 300 * SECOND
    for second in range(200):
        now = burst + second * SECOND
        reader.acked_bytes = before + second * 10_000 // 400_000 * 400_000
        reader.oldest_at = min(burst + (reader.acked_bytes - before) * SECOND // 50_000, now)
        acts += made.tick(now)
    assert acts == []


def test_the_memory_of_a_client_stays_within_two_and_three_quarters_kib() -> None:
    made = make_guard(policy(xap=[{"enabled": True}]))
    reader = SteppedWindowReader(10_000, 400_000, 0.0, arriving=50_000)
    use = made.register("c", "tcp", reader)
    made.on_queued(use, 100_000, START)
    for second in range(400):
        reader.move(second * SECOND)
        made.tick(START + second * SECOND)
    assert use.history is not None
    samples, marks = use.history.samples, use.history.marks
    assert len(samples) == SAMPLES and len(marks) <= 19
    assert 8 * (len(samples) * samples.width + len(marks) * marks.width) <= 2.75 * KIB
    assert START + 399 * SECOND - marks.first()[0] >= 80 * SECOND, (
        "they reach as far back as a lump at the floor takes"
    )
