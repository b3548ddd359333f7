"""Members of a group share one allowance of a staged rollout: each carries out its part, and the sum is never
more.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from broker_core.config import PolicyDocument
from console.services.rollouts import share_out
from tests.support.brokers import ask, until
from tests.support.groups import group_policy, running_members
from tests.support.nats_servers import running_nats_servers
from tests.support.raw import RawClient
from tests.support.rules import rule
from tests.support.stalled import StalledSubscriber

NAMES = ("a", "b")
EACH = 3


def with_rule() -> PolicyDocument:
    document = group_policy().to_dict() | {
        "revision": 2,
        "rules": [{**rule("disconnect", 20), "mode": "enforce"}],
    }
    return PolicyDocument.from_dict(document)


async def test_no_more_than_the_allowance_is_carried_out_on_all_members_together(tmp_path: Path) -> None:
    async with (
        running_nats_servers(tmp_path, 1) as engines,
        running_members(tmp_path, engines.urls, *NAMES) as members,
    ):
        clients: list[Any] = []
        for member, name in zip(members, NAMES, strict=True):
            clients += [
                await StalledSubscriber.connect(member.broker, f"desk-{name}{n}", "t") for n in range(EACH)
            ]
        feed = await RawClient.connect(members[0].broker, "feed")
        for _ in range(15):
            await feed.publish("t", [b"x" * 1_000] * 20)
        for member in members:
            stalled = [one for one in member.broker.engine.roster if one.name.startswith("desk-")]
            await until(lambda stalled=stalled: all(one.account.waiting.messages > 20 for one in stalled))
        await asyncio.sleep(1.6)  # that a peer took nothing more is seen once a second
        base = members[0].broker.engine.policy
        staged = {
            "policy": with_rule().to_dict(),
            "client": "desk-*",
            "share": None,
            "allowances": share_out(3, NAMES),
            "made": None,
        }
        said = [await ask(one.broker, "preview", policy=base.to_dict(), staged=staged) for one in members]
        assert [(one["enforced_in_all"], one["held_in_all"]) for one in said] == [(2, 1), (1, 2)]
        for member in members:
            await ask(member.broker, "apply", policy=base.to_dict(), staged=staged)
        await asyncio.sleep(2.5)
        did = [
            one
            for member in members
            for one in member.broker.engine.decisions.recent
            if one.mode == "enforce"
        ]
        assert len(did) == 3 and {one.revision for one in did} == {2}
        assert [member.broker.engine.guard.withdrawn for member in members] == [2, 2]
        del clients
