"""Conditions ("if") between the steps of an action. A condition that isn't met ends the run as done. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

import orjson

from broker_core.filters import compile_filter
from broker_core.subscriptions.topics import TopicPattern
from console.services.actions.options import CLIENT, FILE_SYSTEM, TOPIC, StepKind, StepOption, number_check
from console.services.actions.patterns import compile_glob

KINDS: dict[str, StepKind] = {
    kind.name: kind
    for kind in (
        StepKind(
            "file_system",
            "The file system is fuller than",
            (
                FILE_SYSTEM,
                StepOption("above", "Percent", number_check(0, 100), default="85"),
            ),
        ),
        StepKind(
            "expression",
            "An expression over the variables is true",
            (
                StepOption(
                    "expression",
                    "Expression",
                    compile_filter,
                    "Such as /AMPS_CLIENT_NAME LIKE '^risk' or /DATA/price > 100; DATA is the message, if "
                    "it is JSON",
                    fixed=True,
                ),
            ),
        ),
        StepKind(
            "client",
            "The client's name matches",
            (replace(CLIENT, required=True, help="Pattern with * and ?, or ~ and a regular expression"),),
        ),
        StepKind("topic", "The topic matches", (replace(TOPIC),)),
    )
}


def is_condition_met(
    kind: str, options: Mapping[str, str], variables: Mapping[str, str], percent_used: Callable[[str], float]
) -> bool:
    """Whether a condition is met.

    Args:
        kind: Kind of the condition.
        options: Its options, with variables expanded.
        variables: Variables of the run.
        percent_used: Returns how full a file system is, by its place (`journal`, `archive` and so on).
    """
    match kind:
        case "file_system":
            return percent_used(options["place"]) > float(options["above"])
        case "expression":
            return compile_filter(options["expression"]).matches_object(variables_as_message(variables))
        case "client":
            return compile_glob(options["client"])(variables.get("AMPS_CLIENT_NAME", ""))
        case "topic":
            return TopicPattern.parse(options["topic"]).matches(variables.get("AMPS_TOPIC", ""))
    raise KeyError(kind)


def variables_as_message(variables: Mapping[str, str]) -> dict[str, Any]:
    """Return the variables as a message for filters. `DATA` is the message's body if that is JSON."""
    made: dict[str, Any] = dict(variables)
    with suppress(orjson.JSONDecodeError):
        made["DATA"] = orjson.loads(variables.get("AMPS_DATA", ""))
    return made
