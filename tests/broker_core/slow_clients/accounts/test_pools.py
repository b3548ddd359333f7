"""A pool's own figures."""

from __future__ import annotations

from broker_core.slow_clients.accounts.pools import Pool
from broker_core.slow_clients.rules.rule import PoolLimits
from tests.support.slow_clients import SECOND, START


def test_it_is_looked_at_once_a_second_however_many_parts_a_tick_has() -> None:
    pool = Pool(PoolLimits("p", 1_000, 1_000, ""))
    for part in range(3 * 40):
        pool.memory_used = part
        pool.prepare(START + part * SECOND // 40)
    assert list(pool.looks.newest(10)) == [
        *(START, 0, 0),
        *(START + SECOND, 40, 0),
        *(START + 2 * SECOND, 80, 0),
    ]
