"""What operators decide and what happened. Models hold data and invariants; services do the work."""

from __future__ import annotations

from console.models.access import ApiToken, Grant
from console.models.action import Action, RunHold
from console.models.alert import Alert, AlertMessage, AlertRule
from console.models.audit import AuditEvent, AuditHead, AuditLink
from console.models.client_table import ClientColumns, ClientView
from console.models.draft import PolicyDraft, PolicyRollout
from console.models.handover import Handover
from console.models.history import ClientHour, ClientMinute, ClientSample, Decision, LakeFile, PlaceSample
from console.models.identity import Identity
from console.models.instance import ClientPolicy, Instance, Member, PoolPolicy, Transport
from console.models.ledger import Loss
from console.models.policy import BrokerUser, Entitlement, PolicyEntry
from console.models.preferences import Preferences
from console.models.replay import ManagedReplay
from console.models.revision import PolicyRevision, RevisionReport
from console.models.run import ActionRun
from console.models.tray import TrayItem
from console.models.write_probe import WriteProbe

__all__ = [
    "Action",
    "ActionRun",
    "Alert",
    "AlertMessage",
    "AlertRule",
    "ApiToken",
    "AuditEvent",
    "AuditHead",
    "AuditLink",
    "BrokerUser",
    "ClientColumns",
    "ClientHour",
    "ClientMinute",
    "ClientPolicy",
    "ClientSample",
    "ClientView",
    "Decision",
    "Entitlement",
    "Grant",
    "Handover",
    "Identity",
    "Instance",
    "LakeFile",
    "Loss",
    "ManagedReplay",
    "Member",
    "PlaceSample",
    "PolicyDraft",
    "PolicyEntry",
    "PolicyRevision",
    "PolicyRollout",
    "PoolPolicy",
    "Preferences",
    "RevisionReport",
    "RunHold",
    "Transport",
    "TrayItem",
    "WriteProbe",
]
