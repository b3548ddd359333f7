"""Requests about the instance: its group, the broker process, links to other sites, and policies."""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Awaitable, Callable
from dataclasses import replace
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
from broker_core.names import LINK_PREFIX, RESERVED_PREFIX
from broker_core.protocols.names import check_topic
from broker_core.slow_clients.evaluate.wording import decision_entry
from broker_core.slow_clients.rules.effective import compare_policies
from broker_core.slow_clients.rules.rulebook import StagedRevision, parse_stage
from broker_core.sync_replication.sync_replication import SyncReplication

log = structlog.get_logger("sluice.group")


class GroupRequests:
    """Handlers of requests about the group."""

    def __init__(self, member: GroupMember | None, confirmations: SyncReplication) -> None:
        """Create the handlers; `member` is None for a standalone broker."""
        self._member, self._confirmations = member, confirmations

    async def group(self, request: requests.GetGroup) -> GroupStatus:
        """Return the status of the group. Raises OperatorError no_group."""
        return self._get_member().status()

    async def downgrade_member(self, request: requests.DowngradeMember) -> GroupStatus:
        """Stop waiting for confirmations of a sync member until it is upgraded. Stored before the reply.

        Raises:
            OperatorError: no_group or unknown_member.
            JournalError: not_kept.
        """
        member = self._get_member()
        await self._confirmations.downgrade(request.name, request.by)
        return member.status()

    async def upgrade_member(self, request: requests.UpgradeMember) -> GroupStatus:
        """Wait for confirmations of a sync member again.

        Raises:
            OperatorError: no_group or unknown_member.
            JournalError: not_kept.
        """
        member = self._get_member()
        await self._confirmations.upgrade(request.name, request.by)
        return member.status()

    async def forget_member(self, request: requests.ForgetMember) -> GroupStatus:
        """Forget a removed member. Raises OperatorError no_group, unknown_member or member_in_use."""
        member = self._get_member()
        member.forget(request.name)
        log.warning("member_forgotten", member=request.name, by=request.by)
        return member.status()

    def _get_member(self) -> GroupMember:
        """Return this broker's group member. Raises OperatorError no_group."""
        if self._member is None:
            raise OperatorError(
                "no_group",
                "This broker isn't in a group.",
                "See docs/group.md for brokers that share a log. A sync destination is named link.NAME.",
            )
        return self._member


class InstanceRequests:
    """Handlers of requests about the broker process."""

    def __init__(
        self, engine: Engine, statistics: StatusCollector, end: Callable[[], Callable[[], None] | None]
    ) -> None:
        """Create the handlers.

        Args:
            engine: The instance.
            statistics: Its status collector.
            end: Returns a function that ends the process; None where there is none.
        """
        self._dispatch = engine.dispatch
        self._statistics = statistics
        self._end = end

    async def status(self, request: requests.GetStatus) -> InstanceStatus:
        """Return the status of the instance."""
        return self._statistics.collect_status()

    async def snapshot(self, request: requests.GetSnapshot) -> Snapshot:
        """Return status and clients at one moment."""
        return self._statistics.collect_snapshot()

    async def stalls(self, request: requests.GetStalls) -> Stalls:
        """Return the newest stalls of the event loop, with stacks."""
        return Stalls(stalls=list(self._statistics.stalls.entries))

    async def publish(self, request: requests.PublishMessage) -> PublishReply:
        """Publish one JSON message.

        Raises:
            ClientError: bad_topic or not_journaled.
            OperatorError: not_stored.
        """
        topic = check_topic(request.topic)
        await self._publish(topic, msgspec.json.encode(request.data))
        return PublishReply(topic=topic)

    async def _publish(self, topic: str, body: bytes) -> None:
        """Publish a message and, if its topic is journaled, wait until it is stored.

        Raises:
            OperatorError: not_stored.
        """
        pending = self._dispatch.publish_system_record(topic, [body])
        if not pending:
            return
        await self._dispatch.barrier()
        if any(one.failed for one in pending):
            raise OperatorError(
                "not_stored",
                f"The message to {topic} was not stored: the disk refused it.",
                "Read the disk's error in the broker's log, then publish again.",
            )

    async def publish_bytes(self, request: requests.PublishRawMessage) -> PublishBytesReply:
        """Publish one message with any bytes as body.

        Raises:
            ClientError: bad_topic or not_journaled.
            OperatorError: topic_refused, bad_request or not_stored.
        """
        topic = check_topic(request.topic)
        if topic.startswith(RESERVED_PREFIX):
            raise OperatorError(
                "topic_refused", "Topics that start with $ are the broker's own.", "Publish on another."
            )
        try:
            body = base64.b64decode(request.body, validate=True)
        except binascii.Error:
            raise OperatorError(
                "bad_request", "body must be base64.", "Send the message's bytes so.", field="body"
            ) from None
        await self._publish(topic, body)
        return PublishBytesReply(topic=topic, bytes=len(body))

    async def shut_down(self, request: requests.ShutDown) -> ShutdownReply:
        """Stop the broker process.

        Raises:
            OperatorError: not_here, where the process cannot be ended by the broker.
        """
        end = self._end()
        if end is None:
            raise OperatorError(
                "not_here", "This broker can't end its process.", "Stop it where it was started."
            )
        end()
        return ShutdownReply(stopping=True)


class LinkSource(Protocol):
    """Provider of the links to other sites."""

    def list_entries(self) -> list[documents.LinkEntry]: ...


class LinkRequests:
    """Handlers of requests about links."""

    def __init__(self, links: LinkSource, confirmations: SyncReplication) -> None:
        self._links, self._confirmations = links, confirmations

    async def links(self, request: requests.GetLinks) -> documents.LinkList:
        """Return all links with their status."""
        return documents.LinkList(links=self._links.list_entries())

    async def downgrade_link(self, request: requests.DowngradeLink) -> documents.LinkList:
        """Stop waiting for confirmations of a sync destination until it is upgraded. Stored before the reply.

        Raises:
            OperatorError: unknown_member.
            JournalError: not_kept.
        """
        await self._confirmations.downgrade(f"{LINK_PREFIX}{request.name}", request.by)
        return documents.LinkList(links=self._links.list_entries())

    async def upgrade_link(self, request: requests.UpgradeLink) -> documents.LinkList:
        """Wait for confirmations of a sync destination again.

        Raises:
            OperatorError: unknown_member.
            JournalError: not_kept.
        """
        await self._confirmations.upgrade(f"{LINK_PREFIX}{request.name}", request.by)
        return documents.LinkList(links=self._links.list_entries())


MAX_PREVIEWED = 500
"""Maximum clients and decisions that a preview lists. Its counts include all."""


class PolicyApplier(Protocol):
    """Function that puts a requested policy into force.

    `decided`: whether an operator has chosen it over the policy in force.
    """

    async def __call__(self, policy: PolicyDocument, stage: StagedRevision | None, *, decided: bool) -> None:
        """Put the policy into force. Raises OperatorError policy_set_back, or why the policy is unusable."""


class PolicyRequests:
    """Handlers of requests about policies.

    Raises:
        OperatorError: bad_policy, with all problems of an invalid policy document.
    """

    def __init__(
        self,
        engine: Engine,
        apply: PolicyApplier,
        check: Callable[[PolicyDocument], Awaitable[None]],
        member: str,
        is_set_back: Callable[[], bool],
    ) -> None:
        """Create the handlers.

        Args:
            engine: The instance.
            apply: Puts a policy into force.
            check: Checks that this broker can use a policy.
            member: Name of this member of a group.
            is_set_back: Returns whether the broker keeps a policy that the database lacks.
        """
        self._engine = engine
        self._is_set_back = is_set_back
        self._member = member
        self._apply = apply
        self._check = check

    async def apply(self, request: requests.ApplyPolicy) -> RunningRevision:
        """Put a policy into force, as a whole."""
        policy, stage = _policy(request.policy), _stage(request.staged, self._member)
        await self._apply(policy, stage, decided=request.decided)
        guard = self._engine.guard
        # A stage that has just used up its allowance is removed in the next iteration of the event loop.
        stage = guard.stage if not guard.withdrawn else None
        return RunningRevision(
            revision=stage.document.revision if stage is not None else policy.revision,
            withdrawn=guard.withdrawn,
        )

    async def check_spools(self, request: requests.CheckSpools) -> RunningRevision:
        """Check directories for spools. Raises OperatorError bad_spool_path or outside_roots."""
        policy = self._engine.policy
        for path in request.paths:
            await self._check(replace(policy, pool=replace(policy.pool, message_disk_path=path)))
        return RunningRevision(revision=policy.revision)

    async def in_force(self, _: requests.GetPolicy) -> PolicyInForce:
        """Return the policy in force, with password hashes, and whether the database lacks it."""
        stage = self._engine.guard.stage
        return PolicyInForce(
            policy=self._engine.policy.to_dict(),
            staged=stage.document.to_dict() if stage is not None else None,
            is_set_back=self._is_set_back(),
        )

    async def preview(self, request: requests.PreviewPolicy) -> PolicyEffect:
        """Return the effect of a policy, without any change.

        The effect lists clients whose settings would change, clients that would be disconnected, and
        decisions that would follow immediately. It also lists subscribers that would lose topics of the log.
        """
        policy, stage = _policy(request.policy), _stage(request.staged, self._member)
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
        decisions = guard.preview(policy, self._engine.clock.now_ns(), stage, closing=cut_off)
        clients = self._engine.roster.clients
        unrecorded = self._engine.find_losses(policy)
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
    """Parse a policy document. Raises OperatorError bad_policy."""
    return PolicyDocument.from_dict(msgspec.json.decode(document, type=dict[str, Any]))


def _stage(request: requests.StagedPolicy | None, member: str) -> StagedRevision | None:
    """Parse a staged policy. Raises OperatorError bad_policy."""
    if request is None:
        return None
    policy = msgspec.json.decode(request.policy, type=dict[str, Any])
    source = {
        "policy": policy,
        "client": request.client,
        "share": request.share,
        "allowances": request.allowances,
        "made": request.made,
    }
    return parse_stage(source, member)
