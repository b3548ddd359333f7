"""Step that deletes old rows: statistics (samples, minutes, hours, losses) and decisions."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from django.db.models import Model, QuerySet
from django.utils import timezone

from console.models import (
    ClientHour,
    ClientMinute,
    ClientSample,
    Decision,
    Instance,
    LossRecord,
    ResourceSample,
)
from console.services.actions.step_context import Options, StepContext, StepHandler, StepPlan, StepResult
from console.units.ages import format_age, parse_age

ROWS_AT_A_TIME = 5_000
"""Rows deleted per statement, so that a writer never waits long for a deletion."""


TABLES: dict[str, tuple[type[Model], ...]] = {
    "statistics": (ClientSample, ClientMinute, ClientHour, ResourceSample, LossRecord),
    "decisions": (Decision,),
}


def _old(instance: Instance, options: Options) -> Iterator[tuple[str, list[QuerySet[Any]]]]:
    """Yield name and querysets of each group of tables that the options choose, limited to old rows."""
    before = timezone.now() - timedelta(seconds=parse_age(options["age"]))
    for word, tables in TABLES.items():
        if options["what"] in (word, "both"):
            yield word, [model._default_manager.filter(instance=instance, at__lt=before) for model in tables]


def _plan(instance: Instance, options: Options) -> StepPlan:
    rows = {word: sum(rows.count() for rows in found) for word, found in _old(instance, options)}
    words = " and ".join(f"{count:,} rows of {word}" for word, count in rows.items())
    # The number of rows changes each second, so the hash only covers the tables and the age.
    return StepPlan(
        f"delete {words} older than {format_age(parse_age(options['age']))}",
        [options["what"], parse_age(options["age"])],
        {"rows": rows},
    )


def _perform(context: StepContext, options: Options) -> StepResult:
    deleted: dict[str, int] = {}
    for word, found in _old(context.instance, options):
        total, deleted[word] = sum(rows.count() for rows in found), 0
        for rows in found:
            while chosen := list(rows.order_by("at").values_list("pk", flat=True)[:ROWS_AT_A_TIME]):
                deleted[word] += rows.filter(pk__in=chosen).delete()[0]
                context.progress.set_fraction(deleted[word], total)
        context.progress.log(f"{deleted[word]:,} rows of {word} deleted")
    return StepResult({"rows": deleted}, {"SLUICE_ROWS": str(sum(deleted.values()))})


STEPS = {"truncate": StepHandler(_plan, _perform)}
