"""What an action can do: the kinds of steps with their options. Pure; `steps` carries them out.

There is no step that runs a command of the system, and none is to come: what an action may touch is in this list.
"""

from __future__ import annotations

from dataclasses import replace

from console.choices import JOURNAL_FILES, PipelineJobs
from console.services.actions.options import AGE, Kind, Option, any_text, number_between, word
from console.services.actions.patterns import matcher
from console.services.actions.webhook_address import check_address

_FOLDER = Option(
    "folder", "Folder", help="One of the declared folders (SLUICE_ACTION_FOLDERS), or one below it"
)
_FILES = Option("pattern", "File names", matcher, "Like *.log; never journals, links or open files")
_NAME = Option("client", "Client name", any_text, "Like {{AMPS_CLIENT_NAME}}")
_JOURNALS = ("SLUICE_SEGMENTS", "SLUICE_BYTES")
_IN_LAKE = Option(
    "which", "Which", choices=(("all", "All that are old enough"), ("lake", "Only what the lake has")), default="all", required=False,
    help="The lake's files are compared by counts and checksums first",
)  # fmt: skip
_YES_NO = (("yes", "Enable"), ("no", "Disable"))

_PROCESSES = tuple((name, name) for name in ("all", "broker", "web", "worker", "chores", "beat", "redis"))
KINDS: dict[str, Kind] = {
    kind.name: kind
    for kind in (
        Kind("archive", "Archive journals", (AGE,), gives=_JOURNALS, exclusive=JOURNAL_FILES),
        Kind("compress", "Compress journals", (AGE,), gives=_JOURNALS, exclusive=JOURNAL_FILES),
        Kind("remove", "Remove journals", (AGE, _IN_LAKE), gives=_JOURNALS, exclusive=JOURNAL_FILES, destructive=True),
        Kind("delete_files", "Delete files", (_FOLDER, _FILES, AGE), gives=("SLUICE_FILES", "SLUICE_BYTES"),
             exclusive="files", destructive=True),
        Kind("compress_files", "Compress files", (_FOLDER, _FILES, AGE), gives=("SLUICE_FILES", "SLUICE_BYTES"), exclusive="files"),
        Kind("truncate", "Truncate statistics or decisions", (
            Option("what", "What", choices=(("statistics", "Statistics"), ("decisions", "Decisions"), ("both", "Both")), default="both"),
            replace(AGE, default="7d"),
        ), gives=("SLUICE_ROWS",), exclusive="truncate", destructive=True),
        Kind("rotate_log", "Rotate the log", (
            Option("process", "Process", choices=_PROCESSES, default="all"),
        )),
        Kind("publish", "Publish a message", (
            Option("topic", "Topic", any_text), Option("data", "Message", long=True, raw=True),
        )),
        Kind("transport", "Enable or disable a transport", (
            Option("name", "Transport", word), Option("enabled", "Do", choices=_YES_NO, default="no"),
        ), exclusive="policy", destructive=True),
        Kind("disconnect", "Disconnect a client", (
            _NAME, Option("reason", "Reason, told to the client", default="an action of the operator's"),
        ), destructive=True),
        Kind("offline", "Offline a client", (_NAME,), destructive=True),
        Kind("replay", "Pause or resume a managed replay", (
            Option("name", "Managed replay"),
            Option("change", "Do", choices=(("pause", "Pause"), ("resume", "Resume")), default="pause"),
        )),
        Kind("replication", "Downgrade or upgrade a member or a destination", (
            Option("member", "Member, or link.DESTINATION", word),
            Option("change", "Do", choices=(("downgrade", "Downgrade: wait for it no more"), ("upgrade", "Upgrade: wait for it again")), default="downgrade"),
        )),
        Kind("revision", "Apply a policy revision", (Option("number", "Revision", number_between(1, 10**9)),), exclusive="policy", destructive=True),
        Kind("pipeline", "Run a pipeline job", (
            Option("job", "Job", choices=PipelineJobs()),
            Option("options", "Options", help="Like start=2026-11-01, one a line", required=False, long=True),
        ), exclusive="pipeline"),
        Kind("event", "Raise a custom event", (Option("name", "Event", word),)),
        Kind("webhook", "Call a webhook", (
            Option("url", "URL", check_address, "Only declared hosts (SLUICE_WEBHOOK_HOSTS)"),
            Option("data", "Body", long=True, raw=True, required=False, help="JSON or text; empty sends the run's variables"),
        ), gives=("SLUICE_STATUS",)),
        Kind("shut_down", "Shut the broker down", destructive=True),
    )
}  # fmt: skip
