"""Result of an import: a fragment of a policy, actions, and the outcome for each leaf of the file.

A leaf is imported (into a setting), skipped (for a reason), or unrelated to policy. A leaf that an importer
doesn't mention counts as skipped, so that no setting is ignored silently.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any

from broker_core.config.document_reader import DocumentReader
from broker_core.errors import OperatorError
from console.services.policy_import.variables import (
    is_placeholder,
    unset_reason,
    variable_names,
    without_templates,
)
from console.services.policy_import.xml_leaves import XmlElement, XmlLeaf

UNKNOWN = "The importer doesn't support this setting, or the file has it twice."
NO_SUCH_SETTING = "Sluice has no equivalent setting."
MAX_NAMED_LEAVES = 20
"""Maximum skipped leaves that a refusal names. Leaves with a specific reason come first."""


@dataclass(frozen=True, slots=True)
class ImportedSetting:
    """Imported setting: position in the file, line (from 1), text, and the setting it was imported into."""

    where: str
    line: int
    what: str
    into: str


@dataclass(frozen=True, slots=True)
class SkippedSetting:
    """Setting that was skipped, with the reason."""

    where: str
    line: int
    what: str
    why: str


@dataclass(frozen=True, slots=True)
class UnrelatedSetting:
    """Setting that has nothing to do with policies."""

    where: str
    line: int
    what: str


@dataclass(frozen=True, slots=True)
class _LeafOutcome:
    """Outcome for a leaf: imported into `part`, skipped for `reason`, or unrelated if both are empty."""

    part: str = ""
    setting: str = ""
    reason: str = ""


class ImportReport:
    """Imported parts, and the outcome for each leaf of a file.

    `document` is a fragment of a policy document with only the file's settings; `actions` are definitions
    of actions.
    """

    def __init__(self, leaves: Iterable[XmlLeaf] = ()) -> None:
        self.document: dict[str, Any] = {}
        self.actions: list[dict[str, Any]] = []
        self._fates: dict[XmlLeaf, _LeafOutcome | None] = dict.fromkeys(leaves)

    def record_imported(self, leaf: XmlLeaf, part: str, setting: str) -> None:
        """Record that a leaf is imported into a setting of a part, such as "pool" or "transport tcp"."""
        self._fates[leaf] = _LeafOutcome(part, setting)

    def record_skipped(self, item: XmlLeaf | XmlElement, reason: str) -> None:
        """Record that a leaf is skipped; for an element, all its leaves without an outcome."""
        for leaf in (item,) if isinstance(item, XmlLeaf) else item.all_leaves():
            if leaf is item or self._fates[leaf] is None:
                self._fates[leaf] = _LeafOutcome(reason=reason)

    def leaves_without_outcome(self, element: XmlElement) -> list[XmlLeaf]:
        """Return the leaves of an element that are neither imported, skipped nor unrelated so far."""
        return [leaf for leaf in element.all_leaves() if self._fates[leaf] is None]

    def record_unrelated(self, item: XmlLeaf | XmlElement) -> None:
        """Record that a leaf is unrelated to policy; for an element, all its leaves.

        Earlier outcomes stay.
        """
        for leaf in (item,) if isinstance(item, XmlLeaf) else item.all_leaves():
            if self._fates[leaf] is None:
                self._fates[leaf] = _LeafOutcome()

    def has_outcome(self, leaf: XmlLeaf) -> bool:
        """Whether an outcome of the leaf is recorded."""
        return self._fates[leaf] is not None

    def undo_part(self, part: str, reason: str, setting: str = "") -> None:
        """Mark the leaves imported into a part, or into one of its settings, as skipped."""
        for leaf, fate in self._fates.items():
            if fate is not None and fate.part == part and fate.setting.endswith(setting):
                self._fates[leaf] = _LeafOutcome(reason=reason)

    def remark(self, part: str, remark: str) -> None:
        """Add a remark to the first leaf imported into a part."""
        for leaf, fate in self._fates.items():
            if fate is not None and fate.part == part:
                self._fates[leaf] = _LeafOutcome(part, f"{fate.setting}; {remark}")
                return

    def is_empty(self) -> bool:
        """Whether nothing was imported."""
        return not self.document and not self.actions

    @property
    def imported(self) -> list[ImportedSetting]:
        """Imported settings in the order of the file."""
        return [
            ImportedSetting(leaf.where, leaf.line, leaf.description, f"{fate.part}: {fate.setting}")
            for leaf, fate in self._settled()
            if fate.part
        ]

    @property
    def skipped(self) -> list[SkippedSetting]:
        """Skipped settings in the order of the file."""
        return [
            SkippedSetting(leaf.where, leaf.line, leaf.description, fate.reason)
            for leaf, fate in self._settled()
            if fate.reason
        ]

    @property
    def unrelated(self) -> list[UnrelatedSetting]:
        """Settings unrelated to policy, in the order of the file."""
        return [
            UnrelatedSetting(leaf.where, leaf.line, leaf.description)
            for leaf, fate in self._settled()
            if not (fate.part or fate.reason)
        ]

    @property
    def unset_variables(self) -> dict[str, list[int]]:
        """Variables in skipped settings, by name, with the lines that contain them. Secrets are left out."""
        found: dict[str, list[int]] = {}
        for leaf, fate in self._settled():
            if not fate.reason or leaf.is_secret:
                continue
            # Actions of AMPS contain {{NAME}} for values of the event.
            value = without_templates(leaf.value) if "/Action" in leaf.where else leaf.value
            for name in variable_names(value):
                lines = found.setdefault(name, [])
                if leaf.line not in lines:
                    lines.append(leaf.line)
        return found

    def variable_warning(self) -> str:
        """Return a sentence that asks for the values of unset variables, or ""."""
        unset = self.unset_variables
        if not unset:
            return ""
        named = [
            f"{name[:80]} (line {', '.join(map(str, lines[:5]))})"
            for name, lines in list(unset.items())[:MAX_NAMED_LEAVES]
        ]
        more = f" and {len(unset) - len(named)} more" if len(unset) > len(named) else ""
        return (
            f"Settings were left out, as variables of the file have no values: {', '.join(named)}{more}. "
            "Import again with their values (--set NAME=VALUE), or write the values into the file."
        )

    def nothing_imported_error(self, hint: str) -> OperatorError:
        """Return the error for a file without an imported setting.

        Its details name at most `MAX_NAMED_LEAVES` skipped settings.
        """
        skipped, others = self.skipped, len(self.unrelated)
        known = [one for one in skipped if one.why != UNKNOWN] or skipped
        return OperatorError(
            "nothing_imported",
            f"Nothing in this file was imported (skipped: {len(skipped)}, not about policy: {others}).",
            f"{hint} {self.variable_warning()}".strip(),
            left_out=[asdict(one) for one in known[:MAX_NAMED_LEAVES]],
            left_out_in_all=len(skipped),
            not_about_policy=others,
        )

    def _settled(self) -> Iterable[tuple[XmlLeaf, _LeafOutcome]]:
        """Return each leaf with its outcome. A leaf without one counts as skipped."""
        return ((leaf, fate or _LeafOutcome(reason=UNKNOWN)) for leaf, fate in self._fates.items())


def parse_int(text: str) -> int | None:
    """Return a whole number, or None if the text is something else."""
    return int(text) if re.fullmatch(r"[+-]?[0-9]{1,19}", text.strip()) else None


def parse_number(text: str) -> float | None:
    """Return a number, or None if the text is something else."""
    return float(text) if re.fullmatch(r"[+-]?[0-9]{1,19}(\.[0-9]{1,19})?", text.strip()) else None


def parse_bool(text: str) -> bool | None:
    """Return True or False for "true" or "false", or None for any other text."""
    return {"true": True, "false": False}.get(text.strip().lower())


def value_problem(leaf: XmlLeaf, value: object, read: Callable[[DocumentReader], object]) -> str:
    """Return why a leaf's value is invalid for a setting, or "".

    `read` validates the value as a policy would.
    """
    if is_placeholder(leaf.value):
        return unset_reason(leaf.value)
    if value is None:
        return "The value is invalid for this setting."
    reader = DocumentReader()
    read(reader)
    return "; ".join(f"{problem.partition(': ')[2] or problem}." for problem in reader.problems)
