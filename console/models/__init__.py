"""Models: the state that operators configure, and recorded history.

They hold data and invariants; services act on them.
"""

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
    "AuditChainHead",
    "AuditChainLink",
    "AuditEvent",
    "BrokerUser",
    "ClientColumns",
    "ClientHour",
    "ClientMinute",
    "ClientPolicy",
    "ClientSample",
    "Decision",
    "Entitlement",
    "ExternalIdentity",
    "Grant",
    "GroupMember",
    "ImportedLakeFile",
    "Instance",
    "LossRecord",
    "ManagedReplay",
    "PendingChange",
    "PolicyDraft",
    "PolicyEntry",
    "PolicyRevision",
    "PoolPolicy",
    "ResourceSample",
    "RevisionReport",
    "RunLock",
    "SavedClientView",
    "ShiftHandover",
    "StagedRollout",
    "Transport",
    "UserPreferences",
    "WriteProbe",
]
