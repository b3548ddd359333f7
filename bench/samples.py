"""What storing the history of 2,000 busy clients costs: `python -m bench.samples` (DATABASE_URL names another database).

Ten minutes of reports, ten seconds apart, none of the clients at rest; then their minutes, then forgetting as many rows as
came in. Processor time of this process, of PostgreSQL's backend if there is one, and of Redis, against ten minutes of one core.
"""

from __future__ import annotations

import os
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

from msgspec import structs

from broker_core.documents.instance import Snapshot
from tests.support.fake_broker import make_client, make_pool, make_snapshot, make_transport

CLIENTS, MINUTES = 2_000, 10
ONE = make_client("one")


def main() -> None:
    """Measure and print."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "console.project.settings_test")
    import django

    django.setup()
    from django.core.management import call_command
    from django.db import connection
    from django.utils import timezone

    from console.models import ClientSample
    from console.services import policies, reports, rollup

    call_command("migrate", verbosity=0)
    instance = policies.ensure_instance("bench-1")
    start = timezone.now().replace(second=0, microsecond=0) - timedelta(minutes=MINUTES + 2)
    connection.ensure_connection()
    before = _spent(connection)
    for slot in range(MINUTES * 6):
        at_ms = int((start.timestamp() + slot * 10) * 1000)
        reports.record_report(_snapshot(instance.name, at_ms, slot))
    stored = _spent(connection)
    rollup.roll_up(timezone.now())
    rolled = _spent(connection)
    for _ in range(MINUTES):
        rollup.forget_old(timezone.now() + timedelta(days=1))
    forgotten = _spent(connection)
    core = MINUTES * 60
    for word, spent in (
        ("store", stored - before),
        ("roll up", rolled - stored),
        ("forget", forgotten - rolled),
    ):
        print(f"{word:8} {spent:6.2f} s  {100 * spent / core:5.2f} % of one core")
    print(
        f"together {forgotten - before:6.2f} s  {100 * (forgotten - before) / core:5.2f} % on {connection.vendor}"
    )
    assert ClientSample.objects.count() == 0
    _ring(instance.name)


def _ring(instance: str) -> None:
    """The same clients each second, into Redis if one is there."""
    import redis
    from django.conf import settings

    from console.services import reports

    try:
        link = redis.Redis.from_url(os.environ.get("REDIS_URL") or settings.REDIS_URL)
        was = link.info("cpu")
    except redis.RedisError:
        print("no Redis: its ring isn't measured")
        return
    began = time.process_time()
    for second in range(60):
        reports.record_second(_snapshot(instance, 1_790_000_000_000 + second * 1000, second))
    ours, now = time.process_time() - began, link.info("cpu")
    theirs = sum(now[key] - was[key] for key in ("used_cpu_user", "used_cpu_sys"))
    print(f"ring     {100 * ours / 60:5.2f} % here and {100 * theirs / 60:5.2f} % in Redis, of one core")


def _snapshot(instance: str, at_ms: int, turn: int) -> Snapshot:
    clients = [
        structs.replace(
            ONE, name=f"client-{number:04d}", lag_messages=turn + number + 1, lag_bytes=100 * number, lag_ms=3,
            outbox_bytes=100 * number, rate_out_messages=10.0,
        )
        for number in range(CLIENTS)
    ]  # fmt: skip
    pool = make_pool("instance", memory_used=1, memory_limit=2, disk_used=3, disk_limit=4)
    return make_snapshot(at_ms, *clients, instance=instance, transports=[make_transport("tcp")], pools=[pool])


def _spent(connection: Any) -> float:
    """Seconds of processor that this process and the database's backend have spent."""
    spent = time.process_time()
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_backend_pid()")
            fields = Path(f"/proc/{cursor.fetchone()[0]}/stat").read_text().rsplit(") ", 1)[1].split()
        spent += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return spent


if __name__ == "__main__":
    main()
