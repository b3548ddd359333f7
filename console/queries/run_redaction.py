"""Redaction of runs, plans and journals for an account: message contents, and names of clients out of its
scope.

Message contents need `read_messages` for the message's topic. Names occur in free text (logs, sentences,
errors). An account that may see only some clients therefore gets none of that text, unless the run is about
a visible client.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from broker_core.documents.journals import SegmentEntry
from console.access.rights import EffectiveAccess
from console.choices import Permission, RunKind
from console.models import ActionRun

BODY = "AMPS_DATA"
"""Variable with the message's body."""
CLIENT = "AMPS_CLIENT_NAME"
"""Variable with the client's name."""
ABOUT_NOBODY = ("AMPS_INSTANCE_NAME", "AMPS_DATETIME", "AMPS_UNIX_TIMESTAMP")
"""Variables that never contain a client's name."""
ANSWERS = frozenset({"webhook"})
"""Steps whose results are answers of other systems, which may repeat the message."""
MESSAGES, CLIENTS = "messages", "clients"
"""Names of the redacted parts in `withheld`."""
CLIENT_HOLDERS = ("replay", "spool", "durable subscription ", "paused subscription ")
"""Beginnings of a segment's holder that ends with ` of ` and the client's name."""
OTHER_READERS = "other readers"
"""Holder of a segment that stands for all holders that the account may not see."""
NEEDED_BY = "needed by "
"""Beginning of a sentence that names the holders of a segment."""


def redact_run(run: ActionRun, access: EffectiveAccess) -> ActionRun:
    """Return a redacted copy of the run, which must not be saved.

    Its attribute `withheld` lists the redacted parts: MESSAGES, CLIENTS.
    """
    made = copy.copy(run)
    made.withheld = withheld_parts(run, access)  # type: ignore[attr-defined]
    if CLIENTS in made.withheld:  # type: ignore[attr-defined]
        _without_clients(made)
    if MESSAGES in made.withheld:  # type: ignore[attr-defined]
        _without_messages(made)
    return made


def withheld_parts(run: ActionRun, access: EffectiveAccess) -> list[str]:
    """Return the parts of a run that the account must not see."""
    instance, variables = run.instance.name, _variables(run)
    found = []
    if variables.get(BODY):
        topic = variables.get("AMPS_TOPIC", "")
        if not access.allows(Permission.READ_MESSAGES, instance=instance, topic=topic):
            found.append(MESSAGES)
    if access.client_patterns(instance) is not None:
        client = variables.get(CLIENT, "")
        if not (client and access.allows(Permission.VIEW, instance=instance, client=client)):
            found.append(CLIENTS)
    return found


def redact_plan(run: ActionRun, plan: Any, access: EffectiveAccess) -> Any:
    """Return the plan of a run's remaining steps, redacted."""
    made = copy.copy(run)
    made.plan = plan
    return redact_run(made, access).plan


def redact_segments(
    segments: Iterable[SegmentEntry], instance: str, access: EffectiveAccess
) -> list[SegmentEntry]:
    """Return segments with the holders that the account may see.

    All others together are one holder, OTHER_READERS, so that neither their names nor their number shows.
    """
    if access.client_patterns(instance) is None:
        return list(segments)

    def is_visible(owner: str) -> bool:
        kind, _, name = owner.rpartition(" of ")
        return kind.startswith(CLIENT_HOLDERS) and access.allows(
            Permission.VIEW, instance=instance, client=name
        )

    made = []
    for one in segments:
        holders = [owner for owner in one.pinned_by if is_visible(owner)]
        if len(holders) < len(one.pinned_by):
            holders.append(OTHER_READERS)
        made.append(msgspec.structs.replace(one, pinned_by=holders))
    return made


def _variables(run: ActionRun) -> Mapping[str, Any]:
    found = run.parameters.get("variables") if isinstance(run.parameters, dict) else None
    return found if isinstance(found, dict) else {}


def _without_clients(run: ActionRun) -> None:
    """Remove all text that may contain a client's name, in place. Types, states and segment names remain."""
    variables = {name: text for name, text in _variables(run).items() if name in ABOUT_NOBODY}
    if run.kind == RunKind.ACTION:
        run.parameters = {
            **{key: run.parameters[key] for key in ("action", "version") if key in run.parameters},
            "variables": variables,
        }
    run.log = run.step = ""
    run.error = _code(run.error)
    run.plan = _plan_without_names(run.plan)
    run.steps = [_bare(record) for record in run.steps]
    run.trigger = {key: run.trigger[key] for key in ("on", "depth") if key in run.trigger}
    run.causes = [one for one in run.causes if one.get("kind") != "client"]


def _plan_without_names(plan: Any) -> Any:
    if not isinstance(plan, dict):
        return plan
    if "steps" in plan:
        return {**plan, "steps": [_planned(entry) for entry in plan["steps"]]}
    skipped = [
        {
            **one,
            "why": "a reader needs it"
            if str(one.get("why", "")).startswith(NEEDED_BY)
            else one.get("why", ""),
        }
        for one in plan.get("skipped", ())
    ]
    return {**plan, "skipped": skipped}


def _planned(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return a step's plan without variables."""
    keys = ("step", "do", "if", "label", "destructive")
    return {**{key: entry[key] for key in keys if key in entry}, "sentence": str(entry.get("label", ""))}


def _without_messages(run: ActionRun) -> None:
    """Redact steps that use the message's body or contain answers of other systems, in place.

    Only the fact that such a step exists remains.
    """
    parts = run.parameters.get("steps", ())
    telling = {
        number
        for number, part in enumerate(parts)
        if part.get("do") in ANSWERS or any(BODY in str(text) for text in part.values())
    }
    run.parameters = {
        **run.parameters,
        "variables": {name: text for name, text in _variables(run).items() if name != BODY},
    }
    if isinstance(run.plan, dict) and "steps" in run.plan:
        run.plan = {
            **run.plan,
            "steps": [
                _planned(entry)
                if entry.get("step") in telling
                else {key: value for key, value in entry.items() if key != "data"}
                for entry in run.plan["steps"]
            ],
        }
    run.steps = [_bare(record) if number in telling else record for number, record in enumerate(run.steps)]
    if telling:
        run.log = ""
        run.error = _code(run.error)


def _bare(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the record of a step without its result."""
    fields = {key: record[key] for key in ("do", "if", "state", "took_ms") if key in record}
    return fields | ({"error": _code(record["error"])} if record.get("error") else {})


def _code(error: Any) -> Any:
    """Return an error with its code alone."""
    if not isinstance(error, dict):
        return error
    return {"code": error.get("code", ""), "message": str(error.get("code", "")), "fix": ""}
