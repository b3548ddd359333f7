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
    "folder", "Folder", help="One of the declared folders (SLUICE_ACTION_FOLDERS), or one below it"
)
_FILES = StepOption("pattern", "File names", compile_glob, "Like *.log; never journals, links or open files")
_NAME = StepOption("client", "Client name", check_text, "Like {{AMPS_CLIENT_NAME}}")
_JOURNALS = ("SLUICE_SEGMENTS", "SLUICE_BYTES")
_IN_LAKE = StepOption(
    "which",
    "Which",
    choices=(("all", "All that are old enough"), ("lake", "Only what the lake has")),
    default="all",
    required=False,
    help="The lake's files are compared by counts and checksums first",
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
                StepOption("reason", "Reason, sent to the client", default="an action of the operator's"),
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
                    "options", "Options", help="Like start=2026-11-01, one a line", required=False, long=True
                ),
            ),
            exclusive="pipeline",
        ),
        StepKind("event", "Raise a custom event", (StepOption("name", "Event", check_name),)),
        StepKind(
            "webhook",
            "Call a webhook",
            (
                StepOption("url", "URL", check_address, "Only declared hosts (SLUICE_WEBHOOK_HOSTS)"),
                StepOption(
                    "data",
                    "Body",
                    long=True,
                    raw=True,
                    required=False,
                    help="JSON or text; empty sends the run's variables",
                ),
            ),
            gives=("SLUICE_STATUS",),
        ),
        StepKind("shut_down", "Shut the broker down", destructive=True),
    )
}
