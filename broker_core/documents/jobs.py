"""Options of the pipeline's jobs and their bounds.

The command line, the console's forms, the API and actions use this list.

Directories and Spark's master are not options: the installation configures where a job reads and writes.
"""

from __future__ import annotations

from typing import Final, Literal

from broker_core.bookmark import MAX_SEQUENCE
from broker_core.documents.base import Document
from broker_core.errors import OperatorError

Kind = Literal["text", "whole", "number", "flag"]
MAX_TEXT: Final = 1_000
"""Maximum number of characters of a text option."""


class JobOption(Document, frozen=True, kw_only=True):
    """Option of a job. `least` and `most` bound a number, both inclusive."""

    name: str
    label: str
    """Label of the form field."""
    says: str
    """Help text."""
    kind: Kind = "text"
    least: int | float = 0
    most: int | float = MAX_SEQUENCE
    default: int | float | str | None = None
    """Default value. None: the empty text for a text, false for a flag, unset for a number."""
    required: bool = False
    like: str = ""
    """Example of a value."""

    @property
    def bounds(self) -> str:
        """Description of the permitted values, for operators."""
        if self.kind == "flag":
            return "yes or no"
        if self.kind == "text":
            return f"up to {MAX_TEXT:,} characters"
        upper_bound = "" if self.most == MAX_SEQUENCE else f" to {self.most:,}"
        return f"a {'whole ' * (self.kind == 'whole')}number, {self.least:,}{upper_bound or ' or more'}"

    def read(self, text: str) -> int | float | str | bool:
        """Return the value of an option's text.

        Raises:
            OperatorError: `bad_option`, with the permitted bounds.
        """
        if self.kind == "flag":
            known = {"yes": True, "true": True, "1": True, "no": False, "false": False, "0": False}
            if text.lower() in known:
                return known[text.lower()]
        elif self.kind == "text":
            if len(text) <= MAX_TEXT and "\0" not in text:
                return text
        elif self.least <= (number := _number(text, is_integer=self.kind == "whole")) <= self.most:
            return number
        raise OperatorError(
            "bad_option",
            f"{self.name} is {text[:40]!r}.",
            f"Give {self.bounds}.",
            option=self.name,
            **({"least": self.least, "most": self.most} if self.kind in ("whole", "number") else {}),
        )


def _number(text: str, *, is_integer: bool) -> int | float:
    """Return the number in a text, or NaN, which lies within no bounds, if there is none."""
    plain = len(text) <= 40 and text.isascii() and "_" not in text
    try:
        return (int(text) if is_integer else float(text)) if plain else float("nan")
    except ValueError:
        return float("nan")


def _flag(name: str, label: str, says: str) -> JobOption:
    return JobOption(name=name, label=label, says=says, kind="flag")


def _sequences(first: str = "the oldest record there is") -> tuple[JobOption, ...]:
    return (
        JobOption(
            name="start", label="From", says=f"first sequence (default: {first})", kind="whole", least=1
        ),
        JobOption(
            name="end",
            label="To",
            says="last sequence (default: the durable frontier)",
            kind="whole",
            least=1,
        ),
    )


_RANGE: Final = (
    JobOption(
        name="start",
        label="From",
        says="a bookmark, a sequence or a time (default: the oldest record)",
        like="2026-11-21T08:00:00Z",
    ),
    JobOption(
        name="end",
        label="To",
        says="a bookmark, a sequence or a time (default: the newest record)",
        like="2026-11-21T12:00:00Z",
    ),
)
_READING: Final = (
    JobOption(
        name="durable",
        label="Durable frontier",
        says="use this sequence as the durable frontier",
        kind="whole",
    ),
    _flag("skip-gaps", "Skip gaps", "skip damaged and missing records"),
)
_MEMORY: Final = JobOption(
    name="host-memory",
    label="Memory of the broker's host",
    says="bytes of memory of the broker's host (default: this machine's)",
    kind="whole",
    least=2**20,
    most=2**50,
)
_POLICY: Final = "a policy's file (manage.py policy export), or its name in the lake's directory policies"

JOB_OPTIONS: Final[dict[str, tuple[JobOption, ...]]] = {
    "lake": (
        *_sequences(),
        _flag(
            "typed",
            "Typed columns",
            "also write fields of JSON bodies as typed columns, in this and later runs",
        ),
        _flag("evolve", "New typed columns", "add columns for new fields; implies --typed"),
        _flag("compact", "Compact small files", "compact small files afterwards"),
        _flag("delta", "Delta table", "also maintain a Delta table of the records, in this and later runs"),
        *_READING,
    ),
    "lake-check": (
        *_sequences("the oldest record in the log"),
        _flag("quick", "Names and footers only", "check names and footers only, without reading records"),
    ),
    "client-history": (
        _flag("all", "Recompute all hours", "recompute all hours that the journal still has"),
        *_READING,
    ),
    "audit": (
        *_sequences("the oldest record in the log"),
        _flag("strict", "Fail on a finding", "fail if there are findings, so that a schedule reports them"),
    ),
    "state": (
        JobOption(
            name="at",
            label="As of",
            says="a bookmark, a sequence or a time (default: the newest record)",
            like="2026-11-21T12:00:00Z",
        ),
        JobOption(
            name="since",
            label="Changed since",
            says="an earlier time: report the changes from then to --at",
            like="2026-11-21T08:00:00Z",
        ),
        JobOption(
            name="topics",
            label="Topics",
            says="topic patterns, separated by commas (default: all)",
            like="orders.>",
        ),
        JobOption(
            name="key",
            label="Field of the key",
            says="a field of JSON bodies that is part of the key",
            like="/order/id",
        ),
        *_READING,
    ),
    "backtest": (
        JobOption(
            name="policy",
            label="Policy",
            says=f"{_POLICY}; separate several with commas",
            required=True,
            like="now.yaml",
        ),
        JobOption(
            name="grid",
            label="Grid of values",
            says="try every combination of these values in the first policy",
            like="client_policy.client_max_capacity=10,20,50",
        ),
        JobOption(
            name="save",
            label="Client to save",
            says="find the cheapest policy without disruptive actions on this client",
            like="board-jfk",
        ),
        *_RANGE,
        _MEMORY,
        *_READING,
    ),
    "capacity": (
        *_RANGE,
        JobOption(
            name="policy",
            label="Policy",
            says=f"policy with the limits: {_POLICY} (default: a new instance's)",
            like="now.yaml",
        ),
        _MEMORY,
        JobOption(
            name="retention-hours",
            label="Retention in hours",
            says="retention of journals in hours (default: from the broker's records of removals)",
            kind="number",
            least=0,
            most=1_000_000,
        ),
        *_READING,
    ),
    "anomalies": (
        JobOption(
            name="days",
            label="Days",
            says="days of history, including the judged hours",
            kind="whole",
            least=1,
            most=400,
            default=14,
        ),
        JobOption(
            name="recent",
            label="Judged hours",
            says="number of the newest hours to judge",
            kind="whole",
            least=1,
            most=9_599,
            default=24,
        ),
        JobOption(
            name="threshold",
            label="Threshold",
            says="anomaly score from which an hour counts as unusual",
            kind="number",
            least=0.1,
            most=1_000,
            default=8.0,
        ),
    ),
    "report": (
        JobOption(
            name="days",
            label="Days",
            says="number of days up to the newest hour",
            kind="whole",
            least=1,
            most=92,
            default=7,
        ),
    ),
}
"""Options of each job of `python -m pipeline NAME`, in the order in which jobs are displayed."""
