"""The group that the broker is a member of.

The broker as a whole: what it says of itself, what it publishes, and its end.

Links to other sites.

The policy in force, and what another one would do.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import msgspec
import structlog

from broker_core.config import PolicyDocument
from broker_core.config.rule_terms import EnforcementMode
from broker_core.control.status import StatusCollector
from broker_core.documents import replication as documents
from broker_core.documents import requests
from broker_core.documents.instance import (
    ClosedConnectionEntry,
    InstanceStatus,
    PolicyEffect,
    PolicyInForce,
    RunningRevision,
    Snapshot,
)
from broker_core.documents.journals import PublishBytesReply, PublishReply, ShutdownReply
from broker_core.documents.replication import GroupStatus
from broker_core.documents.stalls import Stalls
from broker_core.engine.engine import Engine
from broker_core.errors import OperatorError
from broker_core.group.member import GroupMember
from broker_core.names import LINK_PREFIX, OWN
from broker_core.protocols.names import check_topic
from broker_core.slow_clients.evaluate.wording import decision_entry
from broker_core.slow_clients.rules.effective import compare_policies
from broker_core.slow_clients.rules.rulebook import StagedRevision, parse_stage
from broker_core.sync_replication.sync_replication import SyncReplication

log = structlog.get_logger("sluice.group")


class GroupRequests:
    """Answers about the group; None is a broker by itself."""

    def __init__(self, member: GroupMember | None, confirmations: SyncReplication) -> None:
        self._member, self._confirmations = member, confirmations

    async def group(self, asked: requests.GetGroup) -> GroupStatus:
        """OperatorError no_group."""
        return self._there().status()

    async def downgrade_member(self, asked: requests.DowngradeMember) -> GroupStatus:
        """OperatorError no_group, unknown_member; JournalError not_kept."""
        member = self._there()
        await self._confirmations.downgrade(asked.name, asked.by)
        return member.status()

    async def upgrade_member(self, asked: requests.UpgradeMember) -> GroupStatus:
        """OperatorError no_group, unknown_member; JournalError not_kept."""
        member = self._there()
        await self._confirmations.upgrade(asked.name, asked.by)
        return member.status()

    async def forget_member(self, asked: requests.ForgetMember) -> GroupStatus:
        """Forget a removed member. Raises OperatorError no_group, unknown_member, member_in_use."""
        member = self._there()
        member.forget(asked.name)
        log.warning("member_forgotten", member=asked.name, by=asked.by)
        return member.status()

    def _there(self) -> GroupMember:
        if self._member is None:
            raise OperatorError(
                "no_group",
                "This broker isn't in a group.",
                "See docs/group.md for brokers that share a log. A sync destination is named link.NAME.",
            )
        return self._member


class InstanceRequests:
    """Answers about the broker. `end` gives what ends the process, None where nobody knows how."""

    def __init__(
        self, engine: Engine, statistics: StatusCollector, end: Callable[[], Callable[[], None] | None]
    ) -> None:
        self._dispatch = engine.dispatch
        self._statistics = statistics
        self._end = end

    async def status(self, asked: requests.GetStatus) -> InstanceStatus:
        return self._statistics.status()

    async def snapshot(self, asked: requests.GetSnapshot) -> Snapshot:
        return self._statistics.snapshot()

    async def stalls(self, asked: requests.GetStalls) -> Stalls:
        """Return the newest stalls of the event loop, with stacks."""
        return Stalls(stalls=list(self._statistics.stalls.entries))

    async def publish(self, asked: requests.PublishMessage) -> PublishReply:
        """Publish one JSON message. ClientError bad_topic, not_journaled; OperatorError not_stored."""
        topic = check_topic(asked.topic)
        await self._publish(topic, msgspec.json.encode(asked.data))
        return PublishReply(topic=topic)

    async def _publish(self, topic: str, body: bytes) -> None:
        """Publish a message, and wait until it is stored where its topic is journaled."""
        under_way = self._dispatch.publish_system_record(topic, [body])
        if not under_way:
            return
        await self._dispatch.barrier()
        if any(one.failed for one in under_way):
            raise OperatorError(
                "not_stored",
                f"The message to {topic} was not stored: the disk refused it.",
                "See the broker's log for what the disk said, then publish again.",
            )

    async def publish_bytes(self, asked: requests.PublishRawMessage) -> PublishBytesReply:
        """Publish one message of any bytes. ClientError bad_topic, not_journaled; OperatorError
        topic_refused, bad_request, not_stored."""
        topic = check_topic(asked.topic)
        if topic.startswith(OWN):
            raise OperatorError(
                "topic_refused", "Topics that start with $ are the broker's own.", "Publish on another."
            )
        try:
            body = base64.b64decode(asked.body, validate=True)
        except binascii.Error:
            raise OperatorError(
                "bad_request", "body must be base64.", "Send the message's bytes so.", field="body"
            ) from None
        await self._publish(topic, body)
        return PublishBytesReply(topic=topic, bytes=len(body))

    async def shut_down(self, asked: requests.ShutDown) -> ShutdownReply:
        """OperatorError not_here where nobody knows how."""
        end = self._end()
        if end is None:
            raise OperatorError(
                "not_here", "This broker can't end its process.", "Stop it where it was started."
            )
        end()
        return ShutdownReply(stopping=True)


class LinkSource(Protocol):
    """Who has them."""

    def list_entries(self) -> list[documents.LinkEntry]: ...


class LinkRequests:
    """Answers about them."""

    def __init__(self, links: LinkSource, confirmations: SyncReplication) -> None:
        self._links, self._confirmations = links, confirmations

    async def links(self, asked: requests.GetLinks) -> documents.LinkList:
        """How each stands."""
        return documents.LinkList(links=self._links.list_entries())

    async def downgrade_link(self, asked: requests.DowngradeLink) -> documents.LinkList:
        """OperatorError unknown_member; JournalError not_kept."""
        await self._confirmations.downgrade(f"{LINK_PREFIX}{asked.name}", asked.by)
        return documents.LinkList(links=self._links.list_entries())

    async def upgrade_link(self, asked: requests.UpgradeLink) -> documents.LinkList:
        """OperatorError unknown_member; JournalError not_kept."""
        await self._confirmations.upgrade(f"{LINK_PREFIX}{asked.name}", asked.by)
        return documents.LinkList(links=self._links.list_entries())


MAX_PREVIEWED = 500
"""Clients and decisions that a preview lists; it counts them all."""


class PolicyApplier(Protocol):
    """Puts an ordered policy in force; `decided`: an operator has preferred it to the one that is."""

    async def __call__(self, policy: PolicyDocument, stage: StagedRevision | None, *, decided: bool) -> None:
        """Raises OperatorError policy_set_back, and what makes it unusable."""


class PolicyRequests:
    """Answers about policies. A document that can't be used is refused with bad_policy and all that is wrong with it."""

    def __init__(
        self,
        engine: Engine,
        apply: PolicyApplier,
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
        subjects = guard.rule_subjects()
        first = [subject for subject in subjects if stage is not None and stage.covers(subject.client)]
        others = [subject for subject in subjects if stage is None or not stage.covers(subject.client)]
        touched = await asyncio.to_thread(compare_policies, guard.book, guard.compile_rules(policy), others)
        if stage is not None:
            touched += await asyncio.to_thread(
                compare_policies, guard.book, guard.compile_rules(stage.document), first
            )
        cut_off = self._engine.logons.close_unauthorized(self._engine.policy, policy)
        decisions = guard.preview(policy, self._engine.clock.now_ns(), stage, leaving=cut_off)
        clients = self._engine.roster.clients
        unrecorded = self._engine.losses(policy)
        return PolicyEffect(
            clients=sum(1 for subject in subjects if not subject.topic),
            touched=touched[:MAX_PREVIEWED],
            touched_in_all=len({one.client for one in touched}),
            acted_on=[decision_entry(decision, ahead=True) for decision in decisions[:MAX_PREVIEWED]],
            acted_on_in_all=len(decisions),
            enforced_in_all=sum(1 for one in decisions if one.mode is EnforcementMode.ENFORCE),
            held_in_all=sum(1 for one in decisions if one.held_at is not None),
            cut_off=[
                ClosedConnectionEntry(client=name, transport=clients[name].transport, code=code)
                for name, code in list(cut_off.items())[:MAX_PREVIEWED]
            ],
            cut_off_in_all=len(cut_off),
            unrecorded=unrecorded[:MAX_PREVIEWED],
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
