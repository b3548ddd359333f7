"""A pool's own figures."""

from __future__ import annotations

from broker_core.slow_clients.accounts.pools import Pool
from broker_core.slow_clients.rules.rule import PoolLimits
from tests.support.broker_simulation import SECOND, START, FixedBacklog, make_guard, policy


def test_it_is_looked_at_once_a_second_however_many_parts_a_tick_has() -> None:
    pool = Pool(PoolLimits("p", 1_000, 1_000, ""))
    for part in range(3 * 40):
        pool.memory_used, pool.offlined_memory = part, part // 4
        pool.prepare_ranking(START + part * SECOND // 40)
    assert list(pool.samples.newest(10)) == [
        *(START, 0, 0),
        *(START + SECOND, 30, 0),
        *(START + 2 * SECOND, 60, 0),
    ]


def test_a_disconnected_client_does_not_count_and_is_never_chosen() -> None:
    made = make_guard(policy())
    uses = [made.register(name, "tcp", FixedBacklog()) for name in ("a", "b")]
    pool = uses[0].pool
    for use, size in zip(uses, (200, 100), strict=True):
        made.on_queued(use, size, START)
        made.on_spooled(use, 10 * size, START)
    assert pool.by_memory.largest(2) == uses == pool.by_disk.largest(2)
    made.unregister(uses[0])
    assert pool.by_memory.largest(2) == uses[1:] == pool.by_disk.largest(2)
    assert (pool.memory_used, pool.disk_used) == (100, 1_000)
