"""The pages' forms: they read what an operator types and hand plain values to services, which decide.

Sizes are typed as AMPS operators write them ("512MiB", "2GB", a plain count of bytes) and intervals as "30s" or "1h".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from django import forms
from django.contrib.auth.forms import AuthenticationForm

from broker_core.errors import OperatorError
from console.ages import parse_age
from console.choices import JOURNAL_ACTIONS
from console.journal_fields import JournaledTopicsField
from console.templatetags.units import size

_UNITS = {
    "": 1, "b": 1,
    "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
    "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40,
    "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40,
}  # fmt: skip
_SPANS = {"ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}


def _split(text: str) -> tuple[float, str]:
    """A number and the unit after it. Raises ValueError."""
    bare = text.strip().replace(",", "").replace(" ", "")
    digits = bare.rstrip("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
    if not digits or not all(char.isdigit() or char == "." for char in digits):
        raise ValueError(text)
    return float(digits), bare[len(digits) :].lower()


class SizeField(forms.CharField):
    """Bytes; empty means the default."""

    def to_python(self, value: Any) -> Any:
        """ "1.5GiB" → 1610612736."""
        text = super().to_python(value)
        if not text:
            return None
        try:
            amount, unit = _split(text)
            return round(amount * _UNITS[unit])
        except (ValueError, KeyError) as problem:
            raise forms.ValidationError("Write a size such as 512MiB, 2GB or 1073741824.") from problem

    def prepare_value(self, value: Any) -> Any:
        """The shortest exact way to write a number of bytes."""
        if not isinstance(value, int):
            return value
        for unit in ("TiB", "GiB", "MiB", "KiB"):
            whole, rest = divmod(value, _UNITS[unit.lower()])
            if whole and not rest:
                return f"{whole}{unit}"
        return str(value)


class IntervalField(forms.CharField):
    """Milliseconds; empty means no limit."""

    def to_python(self, value: Any) -> Any:
        """ "30s" → 30000."""
        text = super().to_python(value)
        if not text:
            return None
        try:
            amount, unit = _split(text)
            return round(amount * _SPANS[unit])
        except (ValueError, KeyError) as problem:
            raise forms.ValidationError("Write an interval with its unit, such as 500ms, 30s, 10min or 1h.") from problem

    def prepare_value(self, value: Any) -> Any:
        """The largest unit that writes it exactly."""
        if not isinstance(value, int):
            return value
        for unit in ("d", "h", "min", "s"):
            whole, rest = divmod(value, _SPANS[unit])
            if whole and not rest:
                return f"{whole}{unit}"
        return f"{value}ms"


class PatternsField(forms.CharField):
    """Topic patterns, one a line."""

    widget = forms.Textarea(attrs={"rows": 3})

    def to_python(self, value: Any) -> Any:
        """Lines that aren't empty."""
        return [line.strip() for line in str(super().to_python(value) or "").splitlines() if line.strip()]

    def prepare_value(self, value: Any) -> Any:
        """A pattern a line."""
        return "\n".join(value) if isinstance(value, (list, tuple)) else value


class Row(NamedTuple):
    """A field as a page shows it: with the name that it has in AMPS's configuration."""

    field: forms.BoundField
    amps: str


class Group(NamedTuple):
    """Fields that belong together."""

    title: str
    fields: list[Row]


class PolicyForm(forms.Form):
    """The limits, with the names and defaults of AMPS. An empty field means: the default, or the instance's value."""

    AMPS = {
        "message_memory_limit": "MessageMemoryLimit",
        "message_disk_limit": "MessageDiskLimit",
        "message_disk_path": "MessageDiskPath",
        "client_max_capacity": "ClientMaxCapacity",
        "client_message_age_limit_ms": "ClientMessageAgeLimit",
        "journal_size": "JournalSize",
        "preallocated_files": "PreallocatedJournalFiles",
        "journal_directory": "JournalDirectory",
        "archive_directory": "JournalArchiveDirectory",
    }
    GROUPS: tuple[tuple[str, tuple[str, ...]], ...] = (
        ("Pool", ("message_memory_limit", "message_disk_limit", "message_disk_path")),
        ("Client policy", ("client_max_capacity", "client_message_age_limit_ms")),
    )

    message_memory_limit = SizeField(
        label="Memory limit", required=False,
        help_text="What clients’ messages may take in memory together. Over it, the client that uses most is offlined to "
        "disk. Default: the lower of 10 % of the host’s memory and 10 % of the process’s limit.",
    )
    message_disk_limit = SizeField(
        label="Disk limit", required=False,
        help_text="What offlined clients’ spools may take together. Over it, the client that uses most is disconnected. "
        "Default: 1 GB or the memory limit, whichever is higher.",
    )
    message_disk_path = forms.CharField(
        label="Spool directory", required=False,
        help_text="Where spools are written: an absolute path. Default: the instance’s own spool directory.",
    )
    client_max_capacity = forms.IntegerField(
        label="Share one client may use, %", required=False, min_value=1, max_value=100,
        help_text="Of the memory limit before it is offlined; of the disk limit after, where it is disconnected. Default: 50.",
    )
    client_message_age_limit_ms = IntervalField(
        label="Oldest message", required=False,
        help_text="A client whose oldest undelivered message is older is disconnected. Default: no limit.",
    )
    reason = forms.CharField(
        label="Reason for this change", max_length=500, help_text="Stands in the revision and the audit.",
    )
    expected_revision = forms.IntegerField(widget=forms.HiddenInput)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for name, field in self.fields.items():
            kind = "form-check-input" if isinstance(field.widget, forms.CheckboxInput) else "form-control"
            field.widget.attrs.update({"class": kind, "autocomplete": "off"})
            if name in self.AMPS:
                field.widget.attrs["placeholder"] = "default"

    def show_now(self, pool: Mapping[str, Any] | None) -> None:
        """Say in the empty fields what the running broker's pool makes of the default."""
        for name, key in (("message_memory_limit", "memory_limit"), ("message_disk_limit", "disk_limit")):
            if pool is not None and pool.get(key):
                attrs = self.fields[name].widget.attrs
                attrs["placeholder"] = f"{attrs['placeholder']}, now {size(pool[key])}"

    def groups(self) -> list[Group]:
        """Fields in the order and under the headings a page shows."""
        return [Group(title, [Row(self[name], self.AMPS.get(name, "")) for name in names]) for title, names in self.GROUPS]

    def changes(self) -> dict[str, Any]:
        """What services take: pool and client policy."""
        clean = self.cleaned_data
        pool = {name: clean[name] or None for name in self.GROUPS[-2][1]}
        client = {name: clean[name] for name in self.GROUPS[-1][1]}
        return {"pool": pool, "client_policy": client}


class InstancePolicyForm(PolicyForm):
    """The instance's limits and what it journals."""

    GROUPS = (
        (
            "Journal",
            (
                "journaled_topics", "unjournaled_topics", "journal_size", "preallocated_files", "journal_directory",
                "archive_directory",
            ),
        ),
        *PolicyForm.GROUPS,
    )

    journaled_topics = JournaledTopicsField(
        label="Journaled topics", required=False,
        help_text="One a line: a pattern, perhaps with a message type and a filter, such as "
        "fix.orders as fix where /35 = 'D'. Types: json, fix, nvfix, msgpack, binary. Default: > (every topic).")
    unjournaled_topics = PatternsField(
        label="Taken out of those", required=False,
        help_text="Patterns, one a line, whose messages are never written. Default: scratch.>")
    journal_size = SizeField(
        label="Segment size", help_text="Of one journal file; at least 1 MiB. Default: 128 MiB. Used from the next segment on.")
    preallocated_files = forms.IntegerField(
        label="Segments made in advance", min_value=1, max_value=64, help_text="Default: 2.")
    journal_directory = forms.CharField(
        label="Journal directory", required=False, max_length=1024, empty_value=None,
        help_text="An absolute path. Used from the broker’s next start; move the files there first. Default: the installation’s.")
    archive_directory = forms.CharField(
        label="Archive directory", required=False, max_length=1024, empty_value=None,
        help_text="Where archived segments go; likewise from the next start. Default: the installation’s.")

    def changes(self) -> dict[str, Any]:
        """Also what is journaled."""
        return {**super().changes(), "instance": {name: self.cleaned_data[name] for name in self.GROUPS[0][1]}}


class TransportPolicyForm(PolicyForm):
    """One transport: where it listens, and what differs from the instance."""

    GROUPS = (("Listener", ("enabled", "host", "port")), *PolicyForm.GROUPS)

    enabled = forms.BooleanField(
        label="Enabled", required=False, help_text="A disabled transport takes no new connections.")
    host = forms.CharField(label="Address", max_length=255)
    port = forms.IntegerField(label="Port", min_value=0, max_value=65_535, help_text="0 takes any free one.")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for name in (*PolicyForm.GROUPS[0][1], *PolicyForm.GROUPS[1][1]):
            self.fields[name].widget.attrs["placeholder"] = "as the instance"

    def changes(self) -> dict[str, Any]:
        """Also where it listens."""
        return {**super().changes(), **{name: self.cleaned_data[name] for name in self.GROUPS[0][1]}}


class LoginForm(AuthenticationForm):
    """Name and password."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for field in self.fields.values():
            field.widget.attrs["class"] = "form-control"


class DisconnectForm(forms.Form):
    """Why a client is disconnected."""

    reason = forms.CharField(
        label="Reason", max_length=500, help_text="For example: misbehaving release 2.3, owner is told.",
        widget=forms.TextInput(attrs={"class": "form-control", "autocomplete": "off", "required": True}),
    )


class JournalActionForm(forms.Form):
    """Which journal action, on segments older than what."""

    action = forms.ChoiceField(choices=[(str(kind), kind.label) for kind in JOURNAL_ACTIONS])
    age = forms.CharField(
        label="Segments whose newest record is older than", max_length=32, initial="7d",
        help_text="An interval with its unit: 30m, 12h, 7d, 4w. 0s means every sealed segment.",
        widget=forms.TextInput(attrs={"class": "form-control", "autocomplete": "off", "spellcheck": "false"}),
    )

    def clean_age(self) -> str:
        """An age that services read."""
        text = str(self.cleaned_data["age"]).strip()
        try:
            parse_age(text)
        except OperatorError as problem:
            raise forms.ValidationError(f"{problem.sentence} {problem.fix}") from problem
        return text


def flatten(settings: Mapping[str, Any]) -> dict[str, Any]:
    """A policy's part as initial values of a form: its groups' settings beside each other."""
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        if isinstance(value, Mapping):
            flat.update(value)
        else:
            flat[key] = value
    return flat
