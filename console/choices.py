"""Closed lists of words with their labels and colours, in one place for models, API and pages."""

from __future__ import annotations

from django.db import models


class TransportKind(models.TextChoices):
    """What a transport speaks."""

    TCP = "tcp", "TCP"
    WEBSOCKET = "websocket", "WebSocket"


class RunKind(models.TextChoices):
    """What a run does."""

    ARCHIVE = "archive", "Archive journals"
    COMPRESS = "compress", "Compress journals"
    REMOVE = "remove", "Remove journals"
    PIPELINE = "pipeline", "Pipeline job"


class RunState(models.TextChoices):
    """Where a run stands. `lost`: its worker went away; the run may be asked for again."""

    WAITING = "waiting", "Waiting"
    RUNNING = "running", "Running"
    SUCCEEDED = "succeeded", "Succeeded"
    FAILED = "failed", "Failed"
    CANCELLED = "cancelled", "Cancelled"
    LOST = "lost", "Lost"


ACTIVE_RUN_STATES = (RunState.WAITING, RunState.RUNNING)
JOURNAL_ACTIONS = (RunKind.ARCHIVE, RunKind.COMPRESS, RunKind.REMOVE)


class ActorKind(models.TextChoices):
    """What kind of actor did something."""

    PERSON = "person", "Person"
    TOKEN = "token", "API token"
    SCHEDULE = "schedule", "Schedule"
    SYSTEM = "system", "System"


class AuditResult(models.TextChoices):
    """How an attempt ended."""

    DONE = "done", "Done"
    DENIED = "denied", "Denied"
    FAILED = "failed", "Failed"


RUN_STATE_COLOURS = {
    RunState.WAITING: "secondary",
    RunState.RUNNING: "azure",
    RunState.SUCCEEDED: "green",
    RunState.FAILED: "red",
    RunState.CANCELLED: "yellow",
    RunState.LOST: "orange",
}

# Client states come from the broker's snapshot; `replaying` is how the console shows a live client that catches up.
CLIENT_STATES = {
    "live": ("Live", "green"),
    "replaying": ("Replaying", "azure"),
    "offlined": ("Offlined", "red"),
    "draining": ("Draining", "yellow"),
}

WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")

# Jobs of `python -m pipeline NAME`, and the options that the API takes for each. Directories and Spark's master aren't
# among them: where a job reads and writes is the installation's matter.
PIPELINE_JOBS = {
    "lake": ("start", "end", "durable", "skip-gaps"),
    "client-history": ("all", "durable", "skip-gaps"),
}
