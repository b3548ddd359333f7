"""Forms of the instance's limits and journaled topics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from django import forms

from broker_core.config.instance import DOWNGRADE_AFTER_MS
from broker_core.config.preset_settings import AMPS, AMPS_CLIENT, AMPS_POOL
from broker_core.documents.instance import PoolEntry
from console.forms.draft_part import preset_field, setting_names
from console.forms.fields import FieldGroup, FieldRow, IntervalField, LinesField, PatternsField, SizeField
from console.forms.journaled_topics import JournaledTopicsField
from console.models.instance import check_journaled_topics, check_patterns
from console.units.format import size


class LimitsForm(forms.Form):
    """Form of pool and client limits, with AMPS's names and defaults.

    An empty field means the default or, for a transport, the instance's value.
    """

    WORDS = {
        **setting_names(AMPS),
        "journal_size": "JournalSize",
        "preallocated_files": "PreallocatedJournalFiles",
        "journal_directory": "JournalDirectory",
        "archive_directory": "JournalArchiveDirectory",
    }
    """Names of the settings in AMPS's configuration."""
    GROUPS: tuple[tuple[str, tuple[str, ...]], ...] = (
        ("Pool", tuple(AMPS_POOL)),
        ("Client policy", tuple(AMPS_CLIENT)),
    )
    """Headings and their fields, in display order."""

    message_memory_limit = SizeField(
        label="Memory limit", required=False, help_text=AMPS["message_memory_limit"].help_text
    )
    message_disk_limit = SizeField(
        label="Disk limit", required=False, help_text=AMPS["message_disk_limit"].help_text
    )
    message_disk_path = forms.CharField(
        label="Spool directory", required=False, help_text=AMPS["message_disk_path"].help_text
    )
    client_max_capacity = preset_field(AMPS["client_max_capacity"], "Maximum share of one client")
    client_message_age_limit_ms = IntervalField(
        label="Oldest message", required=False, help_text=AMPS["client_message_age_limit_ms"].help_text
    )
    partial = False
    """Whether only submitted fields are changed: a row of a table has only some fields."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for name, field in self.fields.items():
            kind = "form-check-input" if isinstance(field.widget, forms.CheckboxInput) else "form-control"
            field.widget.attrs.update({"class": kind, "autocomplete": "off"})
            if name in self.WORDS:
                field.widget.attrs["placeholder"] = "default"

    def show_now(self, pools: Sequence[PoolEntry]) -> None:
        """Show in empty fields the limits that the running broker derives from the default.

        `pools`: in a group, the pool of each member.
        """
        for name, limits in (
            ("message_memory_limit", {one.member: one.memory_limit for one in pools}),
            ("message_disk_limit", {one.member: one.disk_limit for one in pools}),
        ):
            if any(limits.values()):
                self.fields[name].widget.attrs["placeholder"] = f"now {describe_limits(limits)}"

    def groups(self) -> list[FieldGroup]:
        """Return the fields by heading, in display order."""
        return [
            FieldGroup(
                title,
                [FieldRow(self[name], self.WORDS.get(name, "")) for name in names if name in self.fields],
            )
            for title, names in self.GROUPS
        ]

    def changes(self) -> dict[str, Any]:
        """Return the changes for services: `pool` and `client_policy`."""
        clean = self.cleaned_data
        pool, client = (
            [name for name in group if not self.partial or name in self.data] for _, group in self.GROUPS[-2:]
        )
        return {
            "pool": {name: clean[name] or None for name in pool},
            "client_policy": {name: clean[name] for name in client},
        }


def describe_limits(limits: Mapping[str, int]) -> str:
    """Return the members' limits as text: "2.35 GiB each", or "a 2.35 GiB, b 1.00 GiB" if they differ.

    For a broker without a group the text is only the limit.
    """
    if len(set(limits.values())) == 1:
        return size(next(iter(limits.values()))) + (" each" if len(limits) > 1 else "")
    return ", ".join(f"{member} {size(limit)}" for member, limit in limits.items())


class LimitsRowForm(LimitsForm):
    """Form of one pool's limits as a row of a table."""

    partial = True
    COLUMNS = (
        "message_memory_limit",
        "message_disk_limit",
        "client_max_capacity",
        "client_message_age_limit_ms",
    )
    """Fields of the row, in display order."""

    def cells(self) -> list[forms.BoundField]:
        """Return the fields in the table's order."""
        return [self[name] for name in self.COLUMNS]


class InstanceLimitsForm(LimitsForm):
    """Form of the instance's limits, journaled topics, journal files and group settings."""

    GROUPS = (
        (
            "Journal",
            (
                "journaled_topics",
                "unjournaled_topics",
                "journal_size",
                "preallocated_files",
                "journal_directory",
                "archive_directory",
            ),
        ),
        ("Group", ("sync_members", "sync_topics", "downgrade_after_ms")),
        *LimitsForm.GROUPS,
    )

    journaled_topics = JournaledTopicsField(
        label="Journaled topics",
        required=False,
        validators=[check_journaled_topics],
        help_text="One per line: a pattern, optionally with a message type and a filter, such as "
        "fix.orders as fix where /35 = 'D'. Types: json, fix, nvfix, msgpack, binary. Default: "
        "> (every topic).",
    )
    unjournaled_topics = PatternsField(
        label="Excluded topics",
        required=False,
        validators=[check_patterns],
        help_text="Patterns, one per line. The broker doesn’t journal their messages. Default: scratch.>",
    )
    journal_size = SizeField(
        label="Segment size",
        help_text="Size of one journal file; at least 1 MiB. Default: 128 MiB. Applies to new segments.",
    )
    preallocated_files = forms.IntegerField(
        label="Preallocated segments", min_value=1, max_value=64, help_text="Default: 2."
    )
    journal_directory = forms.CharField(
        label="Journal directory",
        required=False,
        max_length=1024,
        empty_value=None,
        help_text=(
            "An absolute path. Applies at the broker’s next start; move the files there first. "
            "Default: the installation’s."
        ),
    )
    archive_directory = forms.CharField(
        label="Archive directory",
        required=False,
        max_length=1024,
        empty_value=None,
        help_text="Directory of archived segments. Applies at the broker’s next start. Default: the "
        "installation’s.",
    )
    sync_members = LinesField(
        label="Sync members",
        required=False,
        help_text="In a group: members that fully_durable waits for, one per line. Default: none.",
    )
    sync_topics = PatternsField(
        label="Sync topics",
        required=False,
        validators=[check_patterns],
        help_text=(
            "In a group: patterns, one per line. Their acknowledgements also wait for the sync "
            "members. Default: none."
        ),
    )
    downgrade_after_ms = IntervalField(
        label="Downgrade after",
        required=False,
        help_text=(
            "Acknowledgements stop waiting for a sync member or destination that doesn’t confirm "
            "within this time, until it has caught up. Default: 30s."
        ),
    )

    def clean_downgrade_after_ms(self) -> int:
        """Return the milliseconds; the default if empty."""
        return self.cleaned_data["downgrade_after_ms"] or DOWNGRADE_AFTER_MS

    def changes(self) -> dict[str, Any]:
        """Return the changes for services: also the settings of the instance."""
        return {
            **super().changes(),
            "instance": {name: self.cleaned_data[name] for _, names in self.GROUPS[:2] for name in names},
        }


class DraftLimitsForm(InstanceLimitsForm):
    """Form of the instance's limits and journaled topics in a draft."""

    expected_version = forms.IntegerField(widget=forms.HiddenInput)


def flatten_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return a policy's part as initial values of a form, with nested groups merged into one mapping."""
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        if isinstance(value, Mapping):
            flat.update(value)
        else:
            flat[key] = value
    return flat
