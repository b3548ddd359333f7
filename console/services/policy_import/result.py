"""What an importer gives: a fragment of a policy, actions, and what became of each leaf of the file.

A leaf is in one of three lists: taken (and into what), left out (and why), or not about policy. One that an importer
says nothing about is left out, so that nothing is ignored in silence.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any

from broker_core.config.document_reader import DocumentReader
from broker_core.errors import OperatorError
from console.services.policy_import.xml_leaves import XmlElement, XmlLeaf

UNKNOWN = "The importer doesn't know this setting, or it stands here a second time."
NO_SUCH_SETTING = "Sluice has no setting that does this."
MAX_TOLD = 20
"""Leaves that a refusal names, with reasons of their own first."""


@dataclass(frozen=True, slots=True)
class ImportedSetting:
    """A setting that was taken over: where it stood, its line (from 1), what it was, and what it is now."""

    where: str
    line: int
    what: str
    into: str


@dataclass(frozen=True, slots=True)
class SkippedSetting:
    """A setting that wasn't taken over, and why not."""

    where: str
    line: int
    what: str
    why: str


@dataclass(frozen=True, slots=True)
class UnrelatedSetting:
    """A setting of something that no policy speaks of."""

    where: str
    line: int
    what: str


@dataclass(frozen=True, slots=True)
class _LeafOutcome:
    """What becomes of a leaf: it goes into a `part` of the result, or `why` not; neither: it isn't policy."""

    part: str = ""
    setting: str = ""
    why: str = ""


class ImportReport:
    """`document` is a fragment of a policy document: only what the file says. `actions` are their definitions."""

    def __init__(self, leaves: Iterable[XmlLeaf] = ()) -> None:
        self.document: dict[str, Any] = {}
        self.actions: list[dict[str, Any]] = []
        self._fates: dict[XmlLeaf, _LeafOutcome | None] = dict.fromkeys(leaves)

    def record_imported(self, leaf: XmlLeaf, part: str, setting: str) -> None:
        """A leaf goes into a setting of a part of the result, such as "pool" or "transport tcp"."""
        self._fates[leaf] = _LeafOutcome(part, setting)

    def record_skipped(self, what: XmlLeaf | XmlElement, why: str) -> None:
        """A leaf isn't taken over, or of an element all leaves, unless it is settled what becomes of them."""
        for leaf in (what,) if isinstance(what, XmlLeaf) else what.all_leaves():
            if leaf is what or self._fates[leaf] is None:
                self._fates[leaf] = _LeafOutcome(why=why)

    def record_unrelated(self, what: XmlLeaf | XmlElement) -> None:
        """A leaf isn't about policy, or of an element all leaves, unless it is settled what becomes of them."""
        for leaf in (what,) if isinstance(what, XmlLeaf) else what.all_leaves():
            if self._fates[leaf] is None:
                self._fates[leaf] = _LeafOutcome()

    def undo_part(self, part: str, why: str, setting: str = "") -> None:
        """Leave out what was taken into a part, or into one setting of it, because that can't be made after
        all."""
        for leaf, fate in self._fates.items():
            if fate is not None and fate.part == part and fate.setting.endswith(setting):
                self._fates[leaf] = _LeafOutcome(why=why)

    def remark(self, part: str, remark: str) -> None:
        """Add a remark to the first leaf that was taken into a part."""
        for leaf, fate in self._fates.items():
            if fate is not None and fate.part == part:
                self._fates[leaf] = _LeafOutcome(part, f"{fate.setting}; {remark}")
                return

    def is_empty(self) -> bool:
        """Whether nothing was taken over."""
        return not self.document and not self.actions

    @property
    def imported(self) -> list[ImportedSetting]:
        """What was taken over, in the order of the file."""
        return [
            ImportedSetting(leaf.where, leaf.line, leaf.description, f"{fate.part}: {fate.setting}")
            for leaf, fate in self._settled()
            if fate.part
        ]

    @property
    def skipped(self) -> list[SkippedSetting]:
        """What wasn't, in the order of the file."""
        return [
            SkippedSetting(leaf.where, leaf.line, leaf.description, fate.why)
            for leaf, fate in self._settled()
            if fate.why
        ]

    @property
    def unrelated(self) -> list[UnrelatedSetting]:
        """What no policy speaks of, in the order of the file."""
        return [
            UnrelatedSetting(leaf.where, leaf.line, leaf.description)
            for leaf, fate in self._settled()
            if not (fate.part or fate.why)
        ]

    def nothing_imported_error(self, hint: str) -> OperatorError:
        """The refusal of a file that nothing was taken of; details["left_out"] has reasons, 20 at most."""
        left, others = self.skipped, len(self.unrelated)
        known = [one for one in left if one.why != UNKNOWN] or left
        return OperatorError(
            "nothing_imported",
            f"Nothing in this file was taken over (left out: {len(left)}, not about policy: {others}).",
            hint,
            left_out=[asdict(one) for one in known[:MAX_TOLD]],
            left_out_in_all=len(left),
            not_about_policy=others,
        )

    def _settled(self) -> Iterable[tuple[XmlLeaf, _LeafOutcome]]:
        return ((leaf, fate or _LeafOutcome(why=UNKNOWN)) for leaf, fate in self._fates.items())


def parse_int(text: str) -> int | None:
    """A whole number, or None when it is something else."""
    return int(text) if re.fullmatch(r"[+-]?[0-9]{1,19}", text.strip()) else None


def parse_number(text: str) -> float | None:
    """A number, or None when it is something else."""
    return float(text) if re.fullmatch(r"[+-]?[0-9]{1,19}(\.[0-9]{1,19})?", text.strip()) else None


def parse_bool(text: str) -> bool | None:
    """true or false, or None when it is something else."""
    return {"true": True, "false": False}.get(text.strip().lower())


def is_placeholder(text: str) -> bool:
    """Whether a text holds a variable or a template's tag, so that its value isn't in the file."""
    return re.search(r"[$#%]\{|\$\(|\$\w|%\w+%|\{\{|<%|^@\w+@$", text) is not None


def value_problem(leaf: XmlLeaf, value: object, read: Callable[[DocumentReader], object]) -> str:
    """Why a leaf's value can't be a setting's; nothing when it can. `read` reads it as the policy would."""
    if value is None:
        return (
            "It isn't a value of this setting."
            if not is_placeholder(leaf.value)
            else ("It is a variable that only its own system can fill in: write its value into the file.")
        )
    reader = DocumentReader()
    read(reader)
    return "; ".join(f"{problem.partition(': ')[2] or problem}." for problem in reader.problems)
