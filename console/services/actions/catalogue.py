"""Catalogue of the kinds of steps that an action can have, with their options. Pure; `steps` performs them.

No step runs a command of the operating system, and none must be added: this list bounds what actions can
touch.
"""

from __future__ import annotations

from dataclasses import replace

from console.choices import JOURNAL_FILES, PipelineJobs
from console.services.actions.options import AGE, StepKind, StepOption, check_name, check_text, number_check
from console.services.actions.patterns import compile_glob
from console.services.actions.webhook_address import check_address

_FOLDER = StepOption(
    "folder", "Folder", help="A declared directory (SLUICE_ACTION_FOLDERS), or one inside it"
)
_FILES = StepOption(
    "pattern", "File names", compile_glob, "Such as *.log. Journals, links and open files never match."
)
_NAME = StepOption("client", "Client name", check_text, "Such as {{AMPS_CLIENT_NAME}}")
_JOURNALS = ("SLUICE_SEGMENTS", "SLUICE_BYTES")
_IN_LAKE = StepOption(
    "which",
    "Which",
    choices=(("all", "All segments of that age"), ("lake", "Only segments that the lake has")),
    default="all",
    required=False,
    help="Sluice first compares the lake's files by counts and checksums",
)
_YES_NO = (("yes", "Enable"), ("no", "Disable"))

_PROCESSES = tuple((name, name) for name in ("all", "broker", "web", "worker", "chores", "beat", "redis"))
# "chores" is the worker for short periodic jobs.
KINDS: dict[str, StepKind] = {
    kind.name: kind
    for kind in (
        StepKind("archive", "Archive journals", (AGE,), gives=_JOURNALS, exclusive=JOURNAL_FILES),
        StepKind("compress", "Compress journals", (AGE,), gives=_JOURNALS, exclusive=JOURNAL_FILES),
        StepKind(
            "remove",
            "Remove journals",
            (AGE, _IN_LAKE),
            gives=_JOURNALS,
            exclusive=JOURNAL_FILES,
            destructive=True,
        ),
        StepKind(
            "delete_files",
            "Delete files",
            (_FOLDER, _FILES, AGE),
            gives=("SLUICE_FILES", "SLUICE_BYTES"),
            exclusive="files",
            destructive=True,
        ),
        StepKind(
            "compress_files",
            "Compress files",
            (_FOLDER, _FILES, AGE),
            gives=("SLUICE_FILES", "SLUICE_BYTES"),
            exclusive="files",
        ),
        StepKind(
            "truncate",
            "Truncate statistics or decisions",
            (
                StepOption(
                    "what",
                    "What",
                    choices=(("statistics", "Statistics"), ("decisions", "Decisions"), ("both", "Both")),
                    default="both",
                ),
                replace(AGE, default="7d"),
            ),
            gives=("SLUICE_ROWS",),
            exclusive="truncate",
            destructive=True,
        ),
        StepKind(
            "rotate_log",
            "Rotate the log",
            (StepOption("process", "Process", choices=_PROCESSES, default="all"),),
        ),
        StepKind(
            "publish",
            "Publish a message",
            (
                StepOption("topic", "Topic", check_text),
                StepOption("data", "Message", long=True, raw=True),
            ),
        ),
        StepKind(
            "transport",
            "Enable or disable a transport",
            (
                StepOption("name", "Transport", check_name),
                StepOption("enabled", "Do", choices=_YES_NO, default="no"),
            ),
            exclusive="policy",
            destructive=True,
        ),
        StepKind(
            "disconnect",
            "Disconnect a client",
            (
                _NAME,
                StepOption("reason", "Reason, sent to the client", default="an action of the operator"),
            ),
            destructive=True,
        ),
        StepKind("offline", "Offline a client", (_NAME,), destructive=True),
        StepKind(
            "replay",
            "Pause or resume a managed replay",
            (
                StepOption("name", "Managed replay"),
                StepOption(
                    "change", "Do", choices=(("pause", "Pause"), ("resume", "Resume")), default="pause"
                ),
            ),
        ),
        StepKind(
            "replication",
            "Downgrade or upgrade a member or a destination",
            (
                StepOption("member", "Member, or link.DESTINATION", check_name),
                StepOption(
                    "change",
                    "Do",
                    choices=(
                        ("downgrade", "Downgrade: stop waiting for it"),
                        ("upgrade", "Upgrade: wait for it again"),
                    ),
                    default="downgrade",
                ),
            ),
        ),
        StepKind(
            "revision",
            "Apply a policy revision",
            (StepOption("number", "Revision", number_check(1, 10**9)),),
            exclusive="policy",
            destructive=True,
        ),
        StepKind(
            "pipeline",
            "Run a pipeline job",
            (
                StepOption("job", "Job", choices=PipelineJobs()),
                StepOption(
                    "options",
                    "Options",
                    help="Such as start=2026-11-01, one per line",
                    required=False,
                    long=True,
                ),
            ),
            exclusive="pipeline",
        ),
        StepKind("event", "Raise a custom event", (StepOption("name", "Event", check_name),)),
        StepKind(
            "webhook",
            "Call a webhook",
            (
                StepOption("url", "URL", check_address, "A declared host (SLUICE_WEBHOOK_HOSTS)"),
                StepOption(
                    "data",
                    "Body",
                    long=True,
                    raw=True,
                    required=False,
                    help="JSON or text. If empty, the run's variables are sent.",
                ),
            ),
            gives=("SLUICE_STATUS",),
        ),
        StepKind("shut_down", "Shut the broker down", destructive=True),
    )
}
