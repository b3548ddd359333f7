"""Steps on files in declared folders, and on the logs of Sluice's processes."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from django.conf import settings

from broker_core.errors import OperatorError
from console.models import Instance
from console.services.actions import file_selection
from console.services.actions.step_context import Options, StepContext, StepHandler, StepPlan, StepResult
from console.units.ages import parse_age

FileOperation = Callable[[file_selection.FileSelection, Callable[[int], None]], tuple[int, int]]


def _choose(options: Options, packed: bool) -> file_selection.FileSelection:
    return file_selection.select_files(
        options["folder"], options["pattern"], parse_age(options["age"]), time.time_ns(), packed=packed
    )


def _plan(word: str, packed: bool, instance: Instance, options: Options) -> StepPlan:
    choice = _choose(options, packed)
    return StepPlan(
        f"{word} {len(choice.chosen)} file{'' if len(choice.chosen) == 1 else 's'} of {choice.folder}, "
        f"{choice.nbytes:,} bytes",
        [[found.name, found.nbytes, found.changed_ns] for found in choice.chosen],
        {
            "files": [found.name for found in choice.chosen[:200]],
            "skipped": [{"name": name, "why": reason} for name, reason in choice.skipped],
        },
    )


def _perform(operation: FileOperation, packed: bool, context: StepContext, options: Options) -> StepResult:
    choice = _choose(options, packed)
    for name, reason in choice.skipped:
        context.progress.log(f"left {name} alone: {reason}")

    def each(number: int) -> None:
        context.progress.set_fraction(number, len(choice.chosen))

    count, nbytes = operation(choice, each)
    context.progress.log(f"{count} files, {nbytes:,} bytes")
    return StepResult(
        {"folder": str(choice.folder), "files": count, "bytes": nbytes},
        {"SLUICE_FILES": str(count), "SLUICE_BYTES": str(nbytes)},
    )


def _rotate(context: StepContext, options: Options) -> StepResult:
    """Rename logs.

    The supervisor, which writes them, then creates new ones. The name's time avoids overwriting.
    """
    home, process = Path(settings.SLUICE_HOME) / "log", options["process"]
    stamp = f"{datetime.now(UTC):%Y%m%dT%H%M%S}"
    logs = [path for path in sorted(home.glob("*.log")) if process in ("all", path.stem)]
    if not logs:
        raise OperatorError(
            "no_log",
            f"{home} has no log of {process}.",
            "Only `make up` writes logs there; other supervisors rotate their own logs.",
        )
    made = []
    for path in logs:
        if path.stat().st_size:
            target = path.with_name(f"{path.stem}.{stamp}.log")
            path.rename(target)
            made.append(target.name)
    return StepResult({"rotated": made})


def _plan_rotation(instance: Instance, options: Options) -> StepPlan:
    return StepPlan(f"rotate the log of {options['process']}")


STEPS = {
    "delete_files": StepHandler(
        partial(_plan, "delete", False), partial(_perform, file_selection.delete_files, False)
    ),
    "compress_files": StepHandler(
        partial(_plan, "compress", True), partial(_perform, file_selection.compress_files, True)
    ),
    "rotate_log": StepHandler(_plan_rotation, _rotate),
}
