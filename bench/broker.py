"""A broker as `manage.py runbroker` runs it, but without a database: `python -m bench.broker HOME`.

Prints its ports.

Further arguments: memory limit, journal size, instance name, and for a member of a group its name, the NATS
URLs and the sync members (separated by commas). With `--tls` before HOME it has a transport `tcps`, whose
authority is HOME/authority.pem.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from dataclasses import replace
from pathlib import Path

import structlog
import uvloop


async def main(
    home: Path,
    memory_limit: int,
    journal_size: int = 0,
    instance: str = "bench-1",
    name: str = "",
    engines: str = "",
    sync_members: str = "",
    *,
    tls: bool = False,
) -> None:
    from api.broker_websocket.listener import WebSocketListener
    from broker_core.broker import Broker, BrokerPaths
    from broker_core.config import PoolSettings, TransportSettings, default_policy
    from broker_core.config.preset_settings import QuotaSettings
    from broker_core.engine.maintenance import tune_interpreter
    from broker_core.group.member import create_member
    from broker_core.group.settings import read_settings

    secure = []
    if tls:
        from tests.support.certificates import Authority

        secure = [TransportSettings("tcps", "tcp", 0, tls=Authority(home).transport())]
    policy = default_policy(instance)
    policy = replace(
        policy,
        instance=replace(
            policy.instance,
            journal_size=journal_size or policy.instance.journal_size,
            sync_members=tuple(sync_members.split(",")) if sync_members else (),
        ),
        pool=PoolSettings(message_memory_limit=memory_limit),
        quotas=(QuotaSettings(client_topics=1_000_000),),  # a client with 100,000 topics must not be refused
        transports=tuple(
            [TransportSettings(kind, kind, 0) for kind in ("tcp", "websocket", "stomp", "stomp-ws")] + secure
        ),
    )
    paths = BrokerPaths.in_home(home, instance)
    member = create_member(read_settings(instance, name, engines.split(",") if engines else ()))
    known = await member.find_log_identity(paths.journal, paths.archive) if member is not None else None
    broker = Broker(policy, paths, WebSocketListener, known, member=member)
    await broker.start()
    tune_interpreter()
    print(json.dumps({t["name"]: t["port"] for t in broker.statistics.transports}), flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    # No process reads the output behind the ports, and a full pipe would block the broker. The product's
    # log has its own thread.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    loop = uvloop.new_event_loop()
    asyncio.set_event_loop(loop)
    from api.broker_websocket import reactor

    reactor.install(loop)
    words = sys.argv[1:]
    tls = words[:1] == ["--tls"]
    home, memory, *more = words[tls:]
    loop.run_until_complete(main(Path(home), int(memory), int(more[0]) if more else 0, *more[1:], tls=tls))
