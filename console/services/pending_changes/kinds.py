"""Kinds of pending changes: the permission each needs, its preview, and its execution."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from typing import Any, Final

import orjson

from broker_core.documents import requests
from broker_core.documents.clients import ClientEntry, DeliveryState
from broker_core.errors import OperatorError
from console.choices import PendingChangeKind, Permission
from console.models import PendingChange
from console.queries import clients as client_queries
from console.queries import ledger, policy_effect
from console.queries import messages as message_queries
from console.queries import replays as replay_queries
from console.queries.document_diff import ABSENT, DocumentChange, group_list_changes
from console.services import clients, drafts, journals, messages, policies, replays
from console.services.actions import planner
from console.services.actors import Actor
from console.services.pending_changes.access import ACCESS_CHANGE_KINDS
from console.services.pending_changes.base import ChangeKind, ChangePreview, effect_line
from console.services.pending_changes.bulk import MATCHING_CHANGE_KINDS
from console.services.pending_changes.control import CONTROL_CHANGE_KINDS, rollout_plan
from console.services.policy_effects import effect_of_publishing
from console.units import labels
from console.units.format import number_exact, size

MAX_LINES: Final = 12
"""Maximum lines of one sort in a preview."""


# ------------------------------------------------------------------------------------------- clients


def _waiting(client: ClientEntry) -> str:
    return f"{number_exact(client.waiting_messages)} messages ({size(client.waiting_bytes)}) wait for it"


def _disconnect(item: PendingChange, _: list[str] | None) -> ChangePreview:
    client = client_queries.client(item.target)
    lines = [effect_line(f"{_waiting(client)}, {number_exact(client.in_flight_messages)} are in flight.")]
    lines.append(
        effect_line("Journaled messages can be replayed from its bookmark; other waiting messages are lost.")
    )
    lines.append(
        effect_line(
            "The broker sends it the reason. A client that reconnects automatically may be back immediately."
        )
    )
    return ChangePreview(f"Disconnect {item.target}", "1 client cut off", lines, severe=True)


def _pause(item: PendingChange, _: list[str] | None) -> ChangePreview:
    client = client_queries.client(item.target)
    running = [one for one in client.subscriptions if not one.paused]
    sentence = (
        f"{len(running)} of its {len(client.subscriptions)} subscriptions receive no messages "
        f"until they are resumed; {_waiting(client)} now."
    )
    lines = [effect_line(sentence)]
    if client.forecast is not None and client.forecast.mode == "enforce":
        lines.append(
            effect_line(
                f"New messages wait, up to the client’s limits: {client.forecast.rule} is at "
                f"{client.forecast.percent:.0f} %."
            )
        )
    blocked = [] if running else [f"{item.target} has no active subscription."]
    return ChangePreview(f"Pause {item.target}", "1 client paused", lines, blocked=blocked, severe=True)


def _resume(item: PendingChange, _: list[str] | None) -> ChangePreview:
    client = client_queries.client(item.target)
    paused = sum(one.paused for one in client.subscriptions)
    blocked = [] if paused else [f"No subscription of {item.target} is paused."]
    return ChangePreview(
        f"Resume {item.target}",
        "1 client resumed",
        [effect_line(f"{paused} paused subscriptions resume; {_waiting(client)}.")],
        blocked=blocked,
    )


def _offline(item: PendingChange, _: list[str] | None) -> ChangePreview:
    client = client_queries.client(item.target)
    blocked = []
    if client.delivery in (DeliveryState.OFFLINED, DeliveryState.DRAINING):
        blocked = [f"{item.target} is already offlined."]
    sentence = (
        f"{number_exact(client.outbox_messages)} messages ({size(client.outbox_bytes)}) "
        "move from memory to its spool, and are sent in order when it reads."
    )
    return ChangePreview(
        f"Offline {item.target}", "1 client offlined", [effect_line(sentence)], blocked=blocked
    )


def _do_disconnect(actor: Actor, item: PendingChange, reason: str) -> str:
    clients.disconnect(actor, item.target, reason)
    return f"{item.target} was disconnected with the reason."


def _doing(
    ask: Callable[[str], clients.ControlRequest], done: str
) -> Callable[[Actor, PendingChange, str], str]:
    """Return a function that sends the request `ask(name)` for a client, and returns the sentence `done`."""

    def do(actor: Actor, item: PendingChange, reason: str) -> str:
        clients.control_client(actor, ask(item.target), reason)
        return done.format(item.target)

    return do


def _durable(item: PendingChange, _: list[str] | None) -> ChangePreview:
    client, _slash, name = item.target.partition("/")
    found = next((one for one in ledger.durables() if (one.client, one.name) == (client, name)), None)
    title = f"Delete the durable subscription {name} of {client}"
    if found is None:
        return ChangePreview(title, blocked=[f"{client} has no durable subscription {name}."])
    sentence = (
        f"{number_exact(found.behind)} records that it hasn’t read lose their pin. The log may "
        f"then be removed past {found.bookmark}."
    )
    return ChangePreview(title, "1 durable subscription deleted", [effect_line(sentence)], severe=True)


def _do_durable(actor: Actor, item: PendingChange, _: str) -> str:
    client, _slash, name = item.target.partition("/")
    undelivered = clients.delete_durable(actor, client, name).undelivered
    sentence = f"The durable subscription {name} of {client} was deleted."
    if not undelivered:
        return sentence
    stays = "1 message stays" if undelivered == 1 else f"{number_exact(undelivered)} messages stay"
    return f"{sentence} {stays} in the log undelivered, without its pin."


# ------------------------------------------------------------------------------------------- replays


def _replay(word: str) -> Callable[[PendingChange, list[str] | None], ChangePreview]:
    """Return the preview function for a managed replay: "pause" or "cancel"."""

    def preview(item: PendingChange, _: list[str] | None) -> ChangePreview:
        client, _slash, name = item.target.partition("/")
        found = replay_queries.replay(name)
        ended = found.state in ("completed", "cancelled")
        remaining = f"{number_exact(found.behind)} records of the log remain, after {found.position}."
        if word == "cancel":
            sentence = f"{remaining} The replay can’t continue, and no longer pins the log."
        else:
            sentence = f"{remaining} The replay continues when it is resumed, and pins the log until then."
        blocked = [f"The replay {name} has ended."] if ended else []
        headline = f"1 replay {'cancelled' if word == 'cancel' else 'paused'}"
        return ChangePreview(
            f"{word.capitalize()} the replay {name} of {client}",
            headline,
            [effect_line(sentence)],
            blocked=blocked,
            severe=word == "cancel",
        )

    return preview


def _do_replay(word: str) -> Callable[[Actor, PendingChange, str], str]:
    """Return the function that applies "pause" or "cancel" to a managed replay."""

    def do(actor: Actor, item: PendingChange, _: str) -> str:
        name = item.target.partition("/")[2]
        replays.control_replay(actor, replays.STEER[word](name=name))
        return f"The replay {name} was {'cancelled' if word == 'cancel' else 'paused'}."

    return do


# ------------------------------------------------------------------------------------------ messages


def _publish(item: PendingChange, patterns: list[str] | None) -> ChangePreview:
    """Return the preview of a publish, with the clients that would get the message."""
    topic, size_of = item.target, len(_body(item))
    title = f"Publish {size(size_of)} to {topic}"
    problem = messages.publish_problem(topic, size_of)
    if problem is not None:
        return ChangePreview(title, blocked=[f"{problem.sentence} {problem.fix}"])
    getting = message_queries.subscribers(topic, patterns)
    if not getting:
        lines = [
            effect_line(
                "No client subscribes to it now. If its topic is journaled, the message can be replayed."
            )
        ]
    else:
        lines = [
            policy_effect.EffectLine(
                "act",
                "receive it, if it matches their filters.",
                getting[:MAX_LINES],
                max(0, len(getting) - MAX_LINES),
            )
        ]
    return ChangePreview(title, "1 message published", lines)


def _body(item: PendingChange) -> bytes:
    if "base64" in item.parameters:
        return base64.b64decode(item.parameters["base64"])
    return orjson.dumps(item.parameters.get("data"))


def _do_publish(actor: Actor, item: PendingChange, reason: str) -> str:
    if "base64" in item.parameters:
        messages.publish_bytes(actor, item.target, _body(item), reason)
    else:
        messages.publish(actor, item.target, item.parameters.get("data"), reason)
    return f"The message was published to {item.target}."


# ------------------------------------------------------------------------------------------ journals


def _journal(item: PendingChange, _: list[str] | None) -> ChangePreview:
    """Return the preview of a journal action: its plan now. Only exactly this plan may be applied."""
    in_lake = bool(item.parameters.get("in_lake"))
    member = str(item.parameters.get("member", ""))
    plan = journals.plan(item.kind, item.parameters.get("age", ""), in_lake=in_lake, member=member)
    chosen, records = plan["chosen"], sum(one["records"] for one in plan.get("segments", []))
    word, which = PendingChangeKind(item.kind).label, "that the lake has" if in_lake else ""
    of_member = f" of {member}" if member else ""
    title = f"{word} segments{of_member} whose newest record is older than {plan['age']}{which}"
    count = f"{len(chosen)} segment{'' if len(chosen) == 1 else 's'}, {size(plan['bytes'])}"
    lines = [
        policy_effect.EffectLine(
            "act",
            _JOURNAL_SENTENCES[PendingChangeKind(item.kind)].format(
                count=count, records=number_exact(records)
            ),
            [],
            0,
        )
    ]
    by_reason: dict[str, int] = {}
    for one in plan["skipped"]:
        by_reason[one["why"]] = by_reason.get(one["why"], 0) + 1
    lines += [
        effect_line(f"{count} skipped: {reason}") for reason, count in list(by_reason.items())[:MAX_LINES]
    ]
    blocked = [] if chosen else [f"No segment is older than {plan['age']} and available to {item.kind}."]
    is_removal = item.kind == PendingChangeKind.REMOVE
    warnings = [f"{size(plan['bytes'])} can never be replayed again."] if is_removal and chosen else []
    headline = (
        f"{size(plan['bytes'])} can no longer be replayed"
        if is_removal
        else f"{size(plan['bytes'])} {_JOURNAL_DONE[PendingChangeKind(item.kind)]}"
    )
    return ChangePreview(
        title, headline if chosen else "", lines, warnings, blocked, severe=is_removal, fixed=True
    )


_JOURNAL_SENTENCES: Mapping[PendingChangeKind, str] = {
    PendingChangeKind.ARCHIVE: "{count} move to the archive directory. They remain part of the log.",
    PendingChangeKind.COMPRESS: "{count} become gzip files in place. They stay readable and replayable.",
    PendingChangeKind.REMOVE: (
        "{count} are deleted: {records} records. A client that resumes "
        "from a bookmark in them gets a gap notice."
    ),
}
_JOURNAL_DONE: Mapping[PendingChangeKind, str] = {
    PendingChangeKind.ARCHIVE: "archived",
    PendingChangeKind.COMPRESS: "compressed",
}


def _do_journal(actor: Actor, item: PendingChange, _: str) -> str:
    in_lake = bool(item.parameters.get("in_lake"))
    member = str(item.parameters.get("member", ""))
    age = item.parameters.get("age", "")
    # The digest of the pending changes bound them to the effect shown; from here on this plan binds the run.
    plan = planner.journal_plan(item.kind, age, in_lake=in_lake, member=member)
    run = journals.request(actor, item.kind, age, plan_hash=plan["hash"], in_lake=in_lake, member=member)
    return f"{run.get_kind_display()}: started."


# -------------------------------------------------------------------------------------------- policy


def _policy(item: PendingChange, patterns: list[str] | None) -> ChangePreview:
    """Return the preview of the operator's draft as a policy, computed by the running brokers."""
    draft = item.draft
    if draft is None:
        return ChangePreview("Change the policy", blocked=["The draft was removed."])
    first = rollout_plan(item.parameters)
    found = drafts.restrict_preview(drafts.preview(draft, first), patterns)
    newest = policies.newest_revision(draft.instance)
    blocked = list(found.problems)
    if draft.base != newest.number:
        blocked.append(
            f"Revision {newest.number} was published since this draft began with revision "
            f"{draft.base}: create the draft again."
        )
    if not found.differences:
        blocked.append("The draft equals the newest revision.")
    effect = effect_of_publishing(found, draft.document)
    settings_changed = f"{len(found.differences)} setting{'' if len(found.differences) == 1 else 's'}"
    headline = settings_changed
    if found.effect is not None:
        headline = effect.headline or f"{settings_changed}, no client disconnected or acted on"
    suffix = "" if first is None else f", for {first.client or f'{first.share} % of the clients'} first"
    return ChangePreview(
        draft.title + suffix,
        headline,
        [*effect.lines, *effect.changes[:MAX_LINES]],
        effect.warnings,
        blocked,
        effect.severe,
        fixed=False,
        address=str(draft.pk),
        differences=_differences(found, newest.document, draft.document),
    )


def _differences(
    found: drafts.DraftPreview, newest: Mapping[str, Any], document: Mapping[str, Any]
) -> list[DocumentChange]:
    """Return the changed settings. The operators' own rules are compared as sentences."""
    before, after = newest.get("rules") or [], document.get("rules") or []
    changes = [
        one
        for one in group_list_changes(found.differences)
        if one.path.partition(" ")[0].partition(".")[0] != "rules"
    ]
    changes += [
        DocumentChange("rule", labels.rule_sentence(rule), ABSENT) for rule in before if rule not in after
    ]
    return changes + [
        DocumentChange("rule", ABSENT, labels.rule_sentence(rule)) for rule in after if rule not in before
    ]


def _do_policy(actor: Actor, item: PendingChange, reason: str) -> str:
    """Publish the draft at the version that was shown.

    Publishing deletes the draft, and with it the row of this change, in the same transaction.
    """
    if item.draft is None:
        raise OperatorError("unknown_draft", "The draft was removed.", "Make the change again.")
    change = drafts.publish(
        actor,
        item.draft.pk,
        reason=reason,
        expected_version=item.draft.version,
        rollout=rollout_plan(item.parameters),
    )
    number = change.revision.number
    if change.withdrawn:
        return (
            f"Revision {number} was published for the first clients, and withdrawn at once. "
            f"{change.withdrawn} {change.problem}"
        ).strip()
    if change.applied and rollout_plan(item.parameters) is not None:
        return f"Revision {number} is published for the first clients."
    if change.applied:
        return f"Revision {number} is published and in force."
    return f"Revision {number} is published, but is not in force everywhere: {change.problem}"


CHANGE_KINDS: Mapping[PendingChangeKind, ChangeKind] = {
    PendingChangeKind.POLICY: ChangeKind(Permission.EDIT_POLICIES, _policy, _do_policy),
    PendingChangeKind.DISCONNECT: ChangeKind(
        Permission.ACT_ON_CLIENTS, _disconnect, _do_disconnect, about_a_client=True
    ),
    PendingChangeKind.PAUSE: ChangeKind(
        Permission.ACT_ON_CLIENTS,
        _pause,
        _doing(lambda name: requests.PauseClient(name=name), "The subscriptions of {} are paused."),
        about_a_client=True,
    ),
    PendingChangeKind.RESUME: ChangeKind(
        Permission.ACT_ON_CLIENTS,
        _resume,
        _doing(lambda name: requests.ResumeClient(name=name), "The subscriptions of {} are resumed."),
        about_a_client=True,
    ),
    PendingChangeKind.OFFLINE: ChangeKind(
        Permission.ACT_ON_CLIENTS,
        _offline,
        _doing(lambda name: requests.OfflineClient(name=name), "{} was offlined."),
        about_a_client=True,
    ),
    PendingChangeKind.DURABLE: ChangeKind(
        Permission.ACT_ON_CLIENTS, _durable, _do_durable, about_a_client=True
    ),
    PendingChangeKind.REPLAY_PAUSE: ChangeKind(
        Permission.ACT_ON_CLIENTS, _replay("pause"), _do_replay("pause"), about_a_client=True
    ),
    PendingChangeKind.REPLAY_CANCEL: ChangeKind(
        Permission.ACT_ON_CLIENTS, _replay("cancel"), _do_replay("cancel"), about_a_client=True
    ),
    PendingChangeKind.PUBLISH: ChangeKind(Permission.PUBLISH, _publish, _do_publish, about_a_topic=True),
    PendingChangeKind.ARCHIVE: ChangeKind(Permission.RUN_ACTIONS, _journal, _do_journal),
    PendingChangeKind.COMPRESS: ChangeKind(Permission.RUN_ACTIONS, _journal, _do_journal),
    PendingChangeKind.REMOVE: ChangeKind(Permission.RUN_ACTIONS, _journal, _do_journal),
    **MATCHING_CHANGE_KINDS,
    **CONTROL_CHANGE_KINDS,
    **ACCESS_CHANGE_KINDS,
}
"""Permission, preview and execution by kind of change."""
