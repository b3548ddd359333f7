"""The policy in force, and what another one would do."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import msgspec

from broker_core.config import PolicyDocument
from broker_core.config.rule_terms import EnforcementMode
from broker_core.documents import requests
from broker_core.documents.instance import ClosedConnectionEntry, PolicyEffect, PolicyInForce, RunningRevision
from broker_core.engine.engine import Engine
from broker_core.slow_clients.evaluate.wording import decision_entry
from broker_core.slow_clients.rules.effective import compare_policies
from broker_core.slow_clients.rules.rulebook import StagedRevision, parse_stage

MOST_PREVIEWED = 500
"""Clients and decisions that a preview lists; it counts them all."""


class ApplyPolicy(Protocol):
    """Puts an ordered policy in force; `decided`: an operator has preferred it to the one that is."""

    async def __call__(self, policy: PolicyDocument, stage: StagedRevision | None, *, decided: bool) -> None:
        """Raises OperatorError policy_set_back, and what makes it unusable."""


class PolicyRequests:
    """Answers about policies. A document that can't be used is refused with bad_policy_error and all that is wrong with it."""

    def __init__(
        self,
        engine: Engine,
        apply: ApplyPolicy,
        check: Callable[[PolicyDocument], Awaitable[None]],
        member: str,
        is_set_back: Callable[[], bool],
    ) -> None:
        """`is_set_back` returns whether the broker keeps a policy that the database lacks."""
        self._engine = engine
        self._is_set_back = is_set_back
        self._member = member
        self._apply = apply
        self._check = check

    async def apply(self, asked: requests.ApplyPolicy) -> RunningRevision:
        """Put it in force, whole."""
        policy, stage = _policy(asked.policy), _stage(asked.staged, self._member)
        await self._apply(policy, stage, decided=asked.decided)
        stage = self._engine.guard.stage  # none when it has used up its allowance here
        return RunningRevision(revision=stage.document.revision if stage is not None else policy.revision)

    async def in_force(self, _: requests.GetPolicy) -> PolicyInForce:
        """Return the policy in force, with the hashes of passwords, and whether the database lacks it."""
        stage = self._engine.guard.stage
        return PolicyInForce(
            policy=self._engine.policy.to_dict(),
            staged=stage.document.to_dict() if stage is not None else None,
            is_set_back=self._is_set_back(),
        )

    async def preview(self, asked: requests.PreviewPolicy) -> PolicyEffect:
        """Whom it would touch, who would be acted on at once, and whom it would cut off; nothing changes."""
        policy, stage = _policy(asked.policy), _stage(asked.staged, self._member)
        guard = self._engine.guard
        await self._check(policy)
        subjects = guard.subjects()
        first = [subject for subject in subjects if stage is not None and stage.covers(subject.client)]
        others = [subject for subject in subjects if stage is None or not stage.covers(subject.client)]
        touched = await asyncio.to_thread(compare_policies, guard.book, guard.book_of(policy), others)
        if stage is not None:
            touched += await asyncio.to_thread(
                compare_policies, guard.book, guard.book_of(stage.document), first
            )
        cut_off = self._engine.logons.cut_off(self._engine.policy, policy)
        decisions = guard.preview(policy, self._engine.clock.now_ns(), stage, leaving=cut_off)
        clients = self._engine.roster.clients
        unrecorded = self._engine.losses(policy)
        return PolicyEffect(
            clients=sum(1 for subject in subjects if not subject.topic),
            touched=touched[:MOST_PREVIEWED],
            touched_in_all=len({one.client for one in touched}),
            acted_on=[decision_entry(decision, ahead=True) for decision in decisions[:MOST_PREVIEWED]],
            acted_on_in_all=len(decisions),
            enforced_in_all=sum(1 for one in decisions if one.mode is EnforcementMode.ENFORCE),
            held_in_all=sum(1 for one in decisions if one.held_at is not None),
            cut_off=[
                ClosedConnectionEntry(client=name, transport=clients[name].transport, code=code)
                for name, code in list(cut_off.items())[:MOST_PREVIEWED]
            ],
            cut_off_in_all=len(cut_off),
            unrecorded=unrecorded[:MOST_PREVIEWED],
            unrecorded_in_all=len(unrecorded),
        )


def _policy(document: msgspec.Raw) -> PolicyDocument:
    return PolicyDocument.from_dict(msgspec.json.decode(document, type=dict[str, Any]))


def _stage(asked: requests.StagedPolicy | None, member: str) -> StagedRevision | None:
    if asked is None:
        return None
    policy = msgspec.json.decode(asked.policy, type=dict[str, Any])
    source = {
        "policy": policy,
        "client": asked.client,
        "share": asked.share,
        "allowances": asked.allowances,
        "made": asked.made,
    }
    return parse_stage(source, member)
