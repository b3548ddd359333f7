"""Enumerations with labels and colours, shared by models, API and pages."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import overload

from django.conf import settings
from django.db import models

from broker_core.documents.jobs import JOB_OPTIONS


class TransportKind(models.TextChoices):
    """Protocol of a transport."""

    TCP = "tcp", "TCP"
    WEBSOCKET = "websocket", "WebSocket"
    STOMP = "stomp", "STOMP"
    STOMP_WS = "stomp-ws", "STOMP over WebSocket"


class PolicyEntryKind(models.TextChoices):
    """Lists of a policy document whose entries are stored as `PolicyEntry`."""

    XAP = "xap", "XAP"
    ACTIVEMQ = "activemq", "ActiveMQ"
    QPID = "qpid", "Qpid"
    RULE = "rules", "Rule"
    QUOTA = "quotas", "Quota"
    DESTINATION = "destinations", "Destination"


class ResumeFrom(models.TextChoices):
    """Position from which a STOMP client continues after a policy disconnected it."""

    NOW = "now", "New messages, with a notice of the gap"
    LAST_ACKED = "last-acked", "From the first unacknowledged message"


class Authentication(models.TextChoices):
    """Credentials that a transport requires at the logon."""

    NONE = "none", "Nothing"
    TOKEN = "token", "A token"
    PASSWORD = "password", "A password"
    CERTIFICATE = "certificate", "A TLS certificate"


class RolloutState(models.TextChoices):
    """State of a staged rollout."""

    RUNNING = "running", "Running"
    PUBLISHED = "published", "In force for all clients"
    RETURNED = "returned", "Withdrawn automatically"
    STOPPED = "stopped", "Stopped"


class RunKind(models.TextChoices):
    """Type of a run."""

    ARCHIVE = "archive", "Archive journals"
    COMPRESS = "compress", "Compress journals"
    REMOVE = "remove", "Remove journals"
    PIPELINE = "pipeline", "Pipeline job"
    ACTION = "action", "Action"


class RunState(models.TextChoices):
    """State of a run. `lost`: its worker disappeared; the run may be repeated."""

    APPROVAL = "approval", "Awaiting approval"
    WAITING = "waiting", "Waiting"
    RUNNING = "running", "Running"
    SUCCEEDED = "succeeded", "Succeeded"
    FAILED = "failed", "Failed"
    CANCELLED = "cancelled", "Cancelled"
    LOST = "lost", "Lost"


class MissedRunPolicy(models.TextChoices):
    """Handling of firings that were due while no scheduler ran."""

    SKIP = "skip", "Skip them"
    RUN_ONCE = "run_once", "Run once, for the newest"


ACTIVE_RUN_STATES = (RunState.WAITING, RunState.RUNNING)
"""States of runs that have not ended and need no approval."""
REPEATABLE_RUN_STATES = (RunState.LOST, RunState.FAILED, RunState.CANCELLED)
"""States of runs that ended without success."""
JOURNAL_ACTIONS = (RunKind.ARCHIVE, RunKind.COMPRESS, RunKind.REMOVE)
"""Runs that change journal files."""
LONG_STEPS = (RunKind.PIPELINE, "webhook")
"""Steps that wait for other hosts, or take hours."""
JOURNAL_FILES = "journal"
"""Lock that the journal actions share: one could move the files that another has planned with."""


class PendingChangeKind(models.TextChoices):
    """Type of a pending change."""

    POLICY = "policy", "Change the policy"
    DISCONNECT = "disconnect", "Disconnect"
    PAUSE = "pause", "Pause"
    RESUME = "resume", "Resume"
    OFFLINE = "offline", "Offline"
    PAUSE_ALL = "pause_all", "Pause all that match"
    RESUME_ALL = "resume_all", "Resume all that match"
    OFFLINE_ALL = "offline_all", "Offline all that match"
    DISCONNECT_ALL = "disconnect_all", "Disconnect all that match"
    DURABLE = "durable", "Delete durable subscription"
    REPLAY_PAUSE = "replay_pause", "Pause replay"
    REPLAY_CANCEL = "replay_cancel", "Cancel replay"
    ARCHIVE = "archive", "Archive"
    COMPRESS = "compress", "Compress"
    REMOVE = "remove", "Remove"
    PUBLISH = "publish", "Publish a message to"
    RUN_CANCEL = "run_cancel", "Cancel run"
    ACTION_DELETE = "action_delete", "Delete action"
    PROMOTE = "promote", "Promote the rollout"
    STOP = "stop", "Stop the rollout"
    DRAFT_DELETE = "draft_delete", "Delete draft"
    ALERT_DELETE = "alert_delete", "Delete alert"
    ACCOUNT_CLOSE = "account_close", "Close account"
    GRANT_REVOKE = "grant_revoke", "Revoke role"
    TOKEN_REVOKE = "token_revoke", "Revoke token"


class AlertSubject(models.TextChoices):
    """Subject of an alert rule."""

    STALLED = "stalled", "a client is stalled"
    NEEDS_ATTENTION = "asks", "a client is stalled, flapping or falling behind"
    LIMIT = "limit", "a client will reach a limit within five minutes"
    DECISION = "decision", "a policy acted on a client"
    SYSTEM_CONDITION = "standing", "a system condition is reported"


class MessageState(models.TextChoices):
    """State of an alert's message."""

    WAITING = "waiting", "Waiting"
    SENT = "sent", "Sent"
    FAILED = "failed", "Abandoned"


class ActorKind(models.TextChoices):
    """Type of an actor in the audit log."""

    PERSON = "person", "Person"
    TOKEN = "token", "API token"
    SCHEDULE = "schedule", "Schedule"
    ACTION = "action", "Action"
    SYSTEM = "system", "System"


class AuditResult(models.TextChoices):
    """Result of an attempt in the audit log."""

    DONE = "done", "Done"
    DENIED = "denied", "Denied"
    FAILED = "failed", "Failed"


class Theme(models.TextChoices):
    """Colour theme of the console."""

    AUTO = "auto", "System default"
    LIGHT = "light", "Light"
    DARK = "dark", "Dark"


class Clock(models.TextChoices):
    """Time zone in which moments are shown."""

    BROWSER = "browser", "The browser"
    UTC = "utc", "UTC"
    SITE = "site", "The site"


class Density(models.TextChoices):
    """Height of table rows."""

    COMPACT = "compact", "Compact"
    COMFORTABLE = "comfortable", "Comfortable"


class ScopeKind(models.TextChoices):
    """Subject of resource samples."""

    INSTANCE = "instance", "Instance"
    TRANSPORT = "transport", "Transport"
    POOL = "pool", "Pool"


class Permission(models.TextChoices):
    """Permission of an account.

    Every address of the API and the console declares one (console/services/access.py).
    """

    VIEW = "view", "See clients, decisions, policies, journals and runs"
    READ_MESSAGES = "read_messages", "Read the messages of topics"
    PUBLISH = "publish", "Publish messages"
    ACT_ON_CLIENTS = "act_on_clients", "Disconnect clients, pause and end replays"
    RUN_ACTIONS = "run_actions", "Run actions, journal maintenance and pipeline jobs"
    EDIT_POLICIES = "edit_policies", "Edit policies, actions and schedules"
    APPROVE = "approve", "Approve runs of other accounts"
    READ_AUDIT = "read_audit", "Read the audit"
    MANAGE_ACCESS = "manage_access", "Manage accounts, roles and tokens"


class Role(models.TextChoices):
    """Named set of permissions. A grant gives an account a role, everywhere or within a scope."""

    VIEWER = "viewer", "Viewer"
    OPERATOR = "operator", "Operator"
    POLICY_EDITOR = "policy_editor", "Policy editor"
    APPROVER = "approver", "Approver"
    ADMINISTRATOR = "administrator", "Administrator"


_P = Permission
ROLE_PERMISSIONS: dict[str, frozenset[Permission]] = {
    Role.VIEWER: frozenset({_P.VIEW}),
    Role.OPERATOR: frozenset(
        {_P.VIEW, _P.READ_MESSAGES, _P.PUBLISH, _P.ACT_ON_CLIENTS, _P.RUN_ACTIONS, _P.READ_AUDIT}
    ),
    Role.POLICY_EDITOR: frozenset({_P.VIEW, _P.EDIT_POLICIES, _P.READ_AUDIT}),
    Role.APPROVER: frozenset({_P.VIEW, _P.APPROVE, _P.READ_AUDIT}),
    Role.ADMINISTRATOR: frozenset(_P),
}
"""Permissions of each role."""

# Permissions that a token may have. Managing access needs a person with a password, so that a leaked token
# can't create accounts.
TOKEN_PERMISSIONS = tuple(one for one in Permission if one != Permission.MANAGE_ACCESS)

RUN_STATE_COLOURS = {
    RunState.APPROVAL: "purple",
    RunState.WAITING: "secondary",
    RunState.RUNNING: "azure",
    RunState.SUCCEEDED: "green",
    RunState.FAILED: "red",
    RunState.CANCELLED: "yellow",
    RunState.LOST: "orange",
}
"""Colour of each run state."""

WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")


class PipelineJobs(Sequence[tuple[str, str]]):
    """All pipeline jobs as choices: built-in ones, and custom ones.

    Custom jobs are modules in SLUICE_JOBS_DIRECTORY, listed at each use. Only a custom job itself knows its
    options.
    """

    def names(self) -> list[str]:
        """Return the names of the built-in jobs, then of the custom ones, sorted."""
        directory = Path(settings.SLUICE_JOBS_DIRECTORY)
        files = sorted(directory.glob("*.py")) if directory.is_dir() else []
        custom = [
            path.stem.replace("_", "-") for path in files if path.stem.isidentifier() and path.stem[0] != "_"
        ]
        return [*JOB_OPTIONS, *(name for name in custom if name not in JOB_OPTIONS and name.isascii())]

    @overload
    def __getitem__(self, index: int) -> tuple[str, str]: ...
    @overload
    def __getitem__(self, index: slice) -> list[tuple[str, str]]: ...
    def __getitem__(self, index: int | slice) -> tuple[str, str] | list[tuple[str, str]]:
        return [(name, name) for name in self.names()][index]

    def __len__(self) -> int:
        return len(self.names())
