"""Triggers of actions: their kinds, and whether an event matches a trigger. Pure.

Kinds and variables have AMPS's names where AMPS has them (facts of its actions, On); Sluice's own variables
begin with SLUICE_.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from django.conf import settings

from broker_core.subscriptions.topics import TopicPattern
from console.services.actions import schedule
from console.services.actions.options import (
    CLIENT,
    FILE_SYSTEM,
    FILTER,
    TOPIC,
    StepKind,
    StepOption,
    check_name,
    check_names,
    number_check,
)
from console.services.actions.patterns import compile_glob

_CLIENT_VARIABLES = ("AMPS_CLIENT_NAME", "AMPS_CONNECTION_NAME", "AMPS_AUTHENTICATION_ID")
_SUBSCRIPTION = ("AMPS_TOPIC", "AMPS_FILTER", "AMPS_OPTIONS", *_CLIENT_VARIABLES[:2])
_MESSAGE = ("AMPS_TOPIC", "AMPS_DATA", "AMPS_DATA_LENGTH", "AMPS_BOOKMARK", "AMPS_CLIENT_NAME")
_FIXED_TOPIC, _FIXED_FILTER, _FIXED_CLIENT = (
    replace(option, fixed=True) for option in (TOPIC, FILTER, CLIENT)
)


def check_schedule(text: str) -> object:
    """Raise OperatorError `bad_schedule` for a text that isn't a schedule."""
    return schedule.parse_schedule(text, settings.SLUICE_LOCAL_ZONE)


KINDS: dict[str, StepKind] = {
    kind.name: kind
    for kind in (
        StepKind(
            "schedule",
            "On a schedule",
            (
                StepOption(
                    "every",
                    "When",
                    check_schedule,
                    "4h, 00:30, Saturday at 00:30, or cron; a time that ends in Z is UTC",
                    fixed=True,
                ),
            ),
        ),
        StepKind("startup", "After the broker starts"),
        StepKind("shutdown", "When the broker stops"),
        StepKind(
            "request",
            "On an API request",
            (
                StepOption("path", "Path", check_name, "POST /api/v1/actions/at/PATH", fixed=True),
                StepOption(
                    "parameters",
                    "Required parameters",
                    check_names,
                    "Names separated by commas, such as AGE",
                    required=False,
                    fixed=True,
                ),
            ),
        ),
        StepKind("connect", "When a client connects", (_FIXED_CLIENT,), gives=_CLIENT_VARIABLES[:2]),
        StepKind("logon", "When a client has logged on", (_FIXED_CLIENT,), gives=_CLIENT_VARIABLES),
        StepKind(
            "disconnect",
            "When a client disconnects",
            (_FIXED_CLIENT,),
            gives=(*_CLIENT_VARIABLES, "SLUICE_REASON"),
        ),
        StepKind("offline_start", "When a client is offlined", (_FIXED_CLIENT,), gives=_CLIENT_VARIABLES[:2]),
        StepKind(
            "offline_stop",
            "When a client returns to live delivery",
            (_FIXED_CLIENT,),
            gives=_CLIENT_VARIABLES[:2],
        ),
        StepKind("subscribe", "When a client subscribes", (_FIXED_TOPIC, _FIXED_CLIENT), gives=_SUBSCRIPTION),
        StepKind(
            "unsubscribe", "When a client unsubscribes", (_FIXED_TOPIC, _FIXED_CLIENT), gives=_SUBSCRIPTION
        ),
        StepKind(
            "publish",
            "When a message is published",
            (_FIXED_TOPIC, _FIXED_FILTER, _FIXED_CLIENT),
            gives=_MESSAGE,
        ),
        StepKind(
            "deliver",
            "When a message is delivered",
            (_FIXED_TOPIC, _FIXED_FILTER, _FIXED_CLIENT),
            gives=_MESSAGE,
        ),
        StepKind(
            "decision",
            "On a slow-client decision",
            (
                _FIXED_CLIENT,
                StepOption(
                    "action",
                    "Decision",
                    check_name,
                    "offline, disconnect, …; empty means all",
                    required=False,
                    fixed=True,
                ),
            ),
            gives=("AMPS_CLIENT_NAME", "SLUICE_ACTION", "SLUICE_REASON", "SLUICE_RULE", "SLUICE_SENTENCE"),
        ),
        StepKind("journal_roll", "When the journal starts a new segment", gives=("SLUICE_SEGMENT",)),
        StepKind(
            "file_system",
            "When a file system fills up",
            (
                FILE_SYSTEM,
                StepOption("above", "Above percent", number_check(1, 100), default="85", fixed=True),
            ),
            gives=("SLUICE_PLACE", "SLUICE_PERCENT"),
        ),
        StepKind(
            "event",
            "On a custom event",
            (StepOption("name", "Event", check_name, fixed=True),),
            gives=("SLUICE_EVENT",),
        ),
    )
}

IN_THE_BROKER = (
    "connect",
    "logon",
    "disconnect",
    "offline_start",
    "offline_stop",
    "subscribe",
    "unsubscribe",
    "decision",
)
"""Kinds that a broker notices itself when it knows that actions wait for them.

Messages it matches by their patterns.
"""

Trigger = Mapping[str, str]
"""A trigger as stored: {"on": kind, option: text}."""


@dataclass(frozen=True, slots=True)
class TriggerEvent:
    """Event of a broker, a step or an operator.

    `facts` are values for the trigger's match besides the variables, for example a message's topic pattern.
    """

    kind: str
    variables: Mapping[str, str] = field(default_factory=dict)
    facts: Mapping[str, str] = field(default_factory=dict)
    once: str = ""
    """Key by which an event that several brokers notice is recognised; "" if only one can."""


def matches_event(trigger: Trigger, event: TriggerEvent) -> bool:
    """Whether an event matches a trigger. Schedules and requests aren't events: they name their action."""
    if trigger["on"] != event.kind:
        return False
    if trigger.get("client"):
        named_client = event.facts.get("client")
        client = event.variables.get("AMPS_CLIENT_NAME", "") if named_client is None else named_client
        if not compile_glob(trigger["client"])(client):
            return False
    match event.kind:
        case "subscribe" | "unsubscribe":
            return TopicPattern.parse(trigger["topic"]).matches(event.variables.get("AMPS_TOPIC", ""))
        case "publish" | "deliver":
            # The broker has matched topic and filter already, and names the pattern and filter that matched.
            return (trigger["topic"], trigger.get("filter", "")) == (
                event.facts["topic"],
                event.facts["filter"],
            )
        case "decision":
            return trigger.get("action", "") in ("", event.variables.get("SLUICE_ACTION"))
        case "file_system":
            return (trigger["place"], trigger["above"]) == (event.facts["place"], event.facts["above"])
        case "event":
            return trigger["name"] == event.variables.get("SLUICE_EVENT")
    return True


def has_crossed(used: float, above: float, was_above: bool) -> tuple[bool, bool]:
    """Return whether a file system has just filled above a limit, and whether it counts as above from now on.

    It counts as above until it is a whole percent below again, so that a value that oscillates fires once.

    Args:
        used: Percent used now.
        above: The limit in percent.
        was_above: Second result of the previous call.
    """
    if used > above:
        return not was_above, True
    return False, was_above and used > above - 1
