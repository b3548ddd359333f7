"""Data that a console has by mid-morning: samples, decisions, revisions, and runs of every state."""

from __future__ import annotations

import math
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from django.conf import settings
from django.utils import timezone

from console.choices import ActorKind, RunKind, RunState, ScopeKind
from console.models import ActionRun, ClientSample, Decision, Instance, ResourceSample
from console.queries.pipeline_history import NUMBERS
from console.services import policies
from console.services.actors import Actor

OPERATOR = Actor(ActorKind.PERSON, "maria")


def seed_history(instance_name: str = "sluice-1") -> Instance:
    """Create all seed data below."""
    instance = policies.ensure_instance(instance_name)
    seed_revisions()
    seed_samples(instance)
    seed_healthy_clients(instance)
    seed_pool_samples(instance)
    seed_decisions(instance)
    seed_runs(instance)
    seed_hours(instance)
    return instance


def seed_revisions() -> None:
    """Create three policy revisions by a person; the broker applies them when it connects."""
    policies.change_instance_policy(
        OPERATOR,
        {"client_policy": {"client_message_age_limit_ms": 600_000}},
        reason="Ten minutes is long enough",
    )
    policies.change_transport(
        OPERATOR,
        "websocket",
        {"pool": {"message_memory_limit": 256 * 2**20, "message_disk_limit": 2**30}},
        reason="Browsers must not crowd out the desks",
    )
    policies.change_instance_policy(
        OPERATOR,
        {
            "client_policy": {"client_max_capacity": 40},
            "instance": {"unjournaled_topics": ["scratch.>", "heartbeat.>"]},
        },
        reason="",
    )


def seed_samples(instance: Instance, client: str = "board-jfk", hours: int = 6) -> None:
    """Create samples of a client that fell behind twice."""
    now = timezone.now().replace(microsecond=0)
    start = now - timedelta(hours=hours)
    rows = []
    for number in range(hours * 360):
        at = start + timedelta(seconds=10 * number)
        phase = number / (hours * 360)
        behind = max(0.0, math.sin(phase * 9.4 - 2.2)) * 150_000 if phase > 0.2 else 0
        lag = int(behind * (1 + 0.05 * math.sin(number / 5)))
        state = (
            "offlined"
            if lag > 60_000
            else "draining"
            if lag > 20_000 and math.cos(phase * 9.4 - 2.2) < 0
            else "live"
        )
        rows.append(
            ClientSample(
                instance=instance,
                client=client,
                at=at,
                state=state,
                lag_messages=lag,
                lag_bytes=lag * 412,
                lag_ms=lag * 3,
                rate_out_messages=0.0 if state == "offlined" else 5_200.0,
            )
        )
    ClientSample.objects.bulk_create(rows, ignore_conflicts=True)


def seed_healthy_clients(instance: Instance, hours: int = 3) -> None:
    """Create a sample a minute for the other clients.

    Most keep up, some lag by seconds, and one was offlined for a while.
    """
    now = timezone.now().replace(microsecond=0)
    names = [
        f"carrier-{of}"
        for of in ("aa", "as", "b6", "dl", "ev", "f9", "ha", "mq", "oo", "ua", "us", "vx", "wn", "yv")
    ]
    rows = []
    for place, client in enumerate((*names, "delay-mailer", "lake-loader", "feed-publisher")):
        for minute in range(1, 60 * hours):
            away = client == "delay-mailer" and 60 <= minute < 85
            odd = (minute * (place + 3) // 7 + minute % (place + 2)) % 29
            late = 9_000 if away else {3: 700, 11: 2_400}.get(odd, 20)
            rows.append(
                ClientSample(
                    instance=instance,
                    client=client,
                    at=now - timedelta(minutes=minute),
                    state="offlined" if away else "live",
                    lag_messages=late // 3,
                    lag_ms=late,
                    spool_bytes=2**22 if away else 0,
                    rate_out_messages=5_200.0,
                )
            )
    ClientSample.objects.bulk_create(rows, batch_size=500, ignore_conflicts=True)


def seed_pool_samples(instance: Instance, hours: int = 6) -> None:
    """Create samples of the instance and its pool, every ten seconds.

    The pool has been filling for half an hour, at a varying rate.
    """
    now = timezone.now().replace(microsecond=0)
    rows = []
    for number in range(6, hours * 360):
        at, wave = now - timedelta(seconds=10 * number), math.sin(number / 40)
        figures = {
            "at": at,
            "memory_used": int(
                (1_860 - 4.2 * min(number, 180) + 30 * math.sin(number / 5) - 30 * math.cos(number / 17))
                * 2**20
            ),
            "memory_limit": 2_458 * 2**20,
            "disk_used": 2**27,
            "disk_limit": 2_458 * 2**20,
        }
        rates = {
            "messages_in": 5_200 + 900 * wave,
            "messages_out": 61_000 + 9_000 * wave,
            "bytes_in": 2_142_000 + 370_000 * wave,
            "bytes_out": 25_100_000.0,
            "delay_p50_ms": 0.9 + 0.1 * math.sin(number / 3),
            "delay_p99_ms": 14 + 6 * math.sin(number / 9) + (60 if number % 200 < 4 else 0),
        }
        rows.append(
            ResourceSample(
                instance=instance,
                kind=ScopeKind.INSTANCE,
                name=instance.name,
                clients=18,
                offlined=1,
                **figures,
                **rates,
            )
        )
        rows.append(
            ResourceSample(
                instance=instance, kind=ScopeKind.POOL, name="instance", clients=18, offlined=1, **figures
            )
        )
        small = {
            "memory_used": int((12 + 3 * math.sin(number / 9)) * 2**20),
            "memory_limit": 256 * 2**20,
            "disk_limit": 2**30,
        }
        rows.append(
            ResourceSample(
                instance=instance, kind=ScopeKind.POOL, name="websocket", at=at, clients=5, **small
            )
        )
    ResourceSample.objects.bulk_create(rows, batch_size=500, ignore_conflicts=True)


def seed_decisions(instance: Instance) -> None:
    """Create one decision of each important type."""
    now = timezone.now()
    made: tuple[dict[str, Any], ...] = (
        {
            "minutes": 2,
            "client": "board-jfk",
            "action": "offline",
            "reason": "slow_client_memory_capacity",
            "rule": "amps.client_max_capacity",
            "signal": "outbound_bytes",
            "observed": 1_033_895_936,
            "limit": 1_030_792_151,
            "unit": "bytes",
            "kept": 184_220,
            "lost": 0,
            "chosen_over": None,
            "resume_bookmark": "sluice-1|1152557|",
            "sentence": "Client board-jfk was offlined: its outbox holds 986.0 MiB, "
            "over ClientMaxCapacity (983.0 MiB). 184,220 messages are kept in its spool and will be sent "
            "in order when it reads again.",
        },
        {
            "minutes": 31,
            "client": "delay-mailer",
            "action": "offline",
            "reason": "slow_client_pool_memory",
            "rule": "amps.message_memory_limit",
            "signal": "pool_memory",
            "observed": 2_577_661_952,
            "limit": 2_577_136_025,
            "unit": "bytes",
            "kept": 20_411,
            "lost": 0,
            "chosen_over": {"client": "carrier-ua", "used": 1_048_576},
            "resume_bookmark": "sluice-1|990120|",
            "sentence": "Client delay-mailer was offlined: the clients of pool instance hold 2.4 GiB, "
            "over MessageMemoryLimit (2.4 GiB), and it holds 812.4 MiB, more than any other client; next "
            "is carrier-ua with 1.0 MiB. "
            "20,411 messages are kept in its spool and will be sent in order when it reads again.",
        },
        {
            "minutes": 190,
            "client": "old-dashboard",
            "action": "disconnect",
            "reason": "slow_client_age",
            "rule": "amps.client_message_age_limit",
            "signal": "oldest_age",
            "observed": 600_412,
            "limit": 600_000,
            "unit": "ms",
            "kept": 41_002,
            "lost": 17,
            "chosen_over": None,
            "resume_bookmark": "sluice-1|701220|",
            "sentence": "Client old-dashboard was disconnected: its oldest message has been waiting for "
            "600.4 s, "
            "over ClientMessageAgeLimit (600.0 s). 41,002 messages are in the journal and can be replayed "
            "from "
            "sluice-1|701220|; 17 messages are lost, being of topics that aren't journaled.",
        },
    )
    for facts in made:
        at = now - timedelta(minutes=facts.pop("minutes"))
        samples = [
            [int(at.timestamp() * 1000) - (60 - n) * 1000, int(facts["observed"] * n / 60), 0, n * 450]
            for n in range(60)
        ]
        extra = {key: facts.pop(key) for key in ("kept", "lost", "chosen_over", "resume_bookmark")}
        Decision.objects.create(
            instance=instance,
            at=at,
            transport="tcp",
            pool="instance",
            revision=2,
            mode="enforce",
            details={**facts, **extra, "samples": samples},
            **facts,
        )


def seed_hours(instance: Instance, client: str = "board-jfk", hours: int = 60) -> None:
    """Create rows of the client-history job for a client: most hours, some of them offlined."""
    now = timezone.now().replace(minute=0, second=0, microsecond=0)
    days: dict[str, list[dict[str, Any]]] = {}
    for number in range(hours):
        at = now - timedelta(hours=hours - number)
        lag = int(max(0.0, math.sin(number / 5)) * 160_000)
        if number % 9 == 4:
            continue
        days.setdefault(f"day={at.date().isoformat()}", []).append(
            {
                "client": client,
                "hour": at,
                "samples": 360,
                "lag_messages_max": lag,
                "lag_messages_mean": lag / 2,
                "lag_bytes_max": lag * 412,
                "lag_ms_max": int(lag * 2.7),
                "offline_episodes": int(lag > 120_000),
                "offline_ms": 1_000_000 if lag > 120_000 else 0,
                "connects": 0,
                "disconnects": 0,
            }
        )
        row = days[f"day={at.date().isoformat()}"][-1]
        row |= {"transport": "tcp", **{name: 0 for name in NUMBERS if name not in row}}
    for day, rows in days.items():
        folder = Path(settings.SLUICE_LAKE_DIRECTORY) / "client_history" / day
        folder.mkdir(parents=True, exist_ok=True)
        table = pa.Table.from_pylist(rows)
        hour = table.column("hour").cast(pa.timestamp("us", "UTC"))
        pq.write_table(table.set_column(1, "hour", hour), folder / f"{instance.name}.parquet")


def seed_runs(instance: Instance) -> None:
    """Create three runs: running, succeeded and failed."""
    now = timezone.now()
    ActionRun.objects.create(
        instance=instance,
        kind=RunKind.COMPRESS,
        state=RunState.RUNNING,
        progress=62.5,
        actor="maria",
        actor_kind="person",
        parameters={"age": "1d", "age_s": 86_400},
        step="compress sluice-1.00000000000000560001.journal",
        started_at=now - timedelta(seconds=12),
        heard_at=now,
        plan={
            "chosen": [{"name": "sluice-1.00000000000000560001.journal"}],
            "skipped": [],
            "bytes": 134_217_728,
        },
    )
    ActionRun.objects.create(
        instance=instance,
        kind=RunKind.ARCHIVE,
        state=RunState.SUCCEEDED,
        progress=100,
        actor="weekly archive",
        actor_kind="schedule",
        parameters={"age": "7d", "age_s": 604_800},
        started_at=now - timedelta(hours=9),
        ended_at=now - timedelta(hours=9, seconds=-41),
        result={"segments": [{"name": "sluice-1.00000000000000000001.journal"}], "bytes": 134_217_728},
        plan={
            "chosen": [{"name": "sluice-1.00000000000000000001.journal"}],
            "bytes": 134_217_728,
            "skipped": [
                {"name": "sluice-1.00000000000001120001.journal", "why": "it is the current segment"}
            ],
        },
        log="06:30:01 archive of segments older than 7d: 1 chosen\n"
        "06:30:42 sluice-1.00000000000000000001.journal: swapped in, 134,217,728 bytes\n",
    )
    ActionRun.objects.create(
        instance=instance,
        kind=RunKind.PIPELINE,
        state=RunState.FAILED,
        actor="maria",
        actor_kind="person",
        parameters={"job": "client-history", "options": {}},
        started_at=now - timedelta(hours=20),
        ended_at=now - timedelta(hours=20, seconds=-3),
        error={
            "code": "pipeline_failed",
            "message": "The job ended with code 2: Java 17 isn't installed.",
            "fix": "Install a Java 17 runtime.",
        },
        log="pipeline client-history starts\nJava 17 isn't installed.\n",
    )
