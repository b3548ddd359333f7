"""What operators decide and what happened. Models hold data and invariants; services do the work."""

from __future__ import annotations

from console.models.access import ApiToken, Grant
from console.models.action import Action, RunLock
from console.models.alert import Alert, AlertMessage, AlertRule
from console.models.audit import AuditChainHead, AuditChainLink, AuditEvent
from console.models.client_table import ClientColumns, SavedClientView
from console.models.draft import PolicyDraft, StagedRollout
from console.models.handover import ShiftHandover
from console.models.history import (
    ClientHour,
    ClientMinute,
    ClientSample,
    Decision,
    ImportedLakeFile,
    ResourceSample,
)
from console.models.identity import ExternalIdentity
from console.models.instance import ClientPolicy, GroupMember, Instance, PoolPolicy, Transport
from console.models.ledger import LossRecord
from console.models.pending_change import PendingChange
from console.models.policy import BrokerUser, Entitlement, PolicyEntry
from console.models.preferences import UserPreferences
from console.models.replay import ManagedReplay
from console.models.revision import PolicyRevision, RevisionReport
from console.models.run import ActionRun
from console.models.write_probe import WriteProbe

__all__ = [
    "Action",
    "ActionRun",
    "Alert",
    "AlertMessage",
    "AlertRule",
    "ApiToken",
    "AuditEvent",
    "AuditChainHead",
    "AuditChainLink",
    "BrokerUser",
    "ClientColumns",
    "ClientHour",
    "ClientMinute",
    "ClientPolicy",
    "ClientSample",
    "SavedClientView",
    "Decision",
    "Entitlement",
    "Grant",
    "ShiftHandover",
    "ExternalIdentity",
    "Instance",
    "ImportedLakeFile",
    "LossRecord",
    "ManagedReplay",
    "GroupMember",
    "ResourceSample",
    "PolicyDraft",
    "PolicyEntry",
    "PolicyRevision",
    "StagedRollout",
    "PoolPolicy",
    "UserPreferences",
    "RevisionReport",
    "RunLock",
    "Transport",
    "PendingChange",
    "WriteProbe",
]
