"""Pending changes to every client that a filter matched: one change, with its effect on all of them.

See `kinds`.

A change covers the clients that matched when it was added. Later matches are left alone; the preview counts
clients that have disconnected since.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from broker_core.documents import requests
from broker_core.documents.clients import ClientEntry, DeliveryState, Health
from broker_core.errors import OperatorError, SluiceError
from console.choices import PendingChangeKind, Permission
from console.models import PendingChange
from console.queries import clients as client_queries
from console.queries import policy_effect
from console.queries.policies import instance_named
from console.services import access, clients
from console.services.actors import Actor
from console.services.pending_changes.base import ChangeKind, ChangePreview, effect_line
from console.units.format import number_exact, size

MAX_MATCHING: Final = 500
"""Maximum clients of one change."""
MAX_NAMES: Final = 12
"""Maximum clients that the effect names. It counts the others."""
MAX_REFUSALS: Final = 3
"""Maximum refusals that the result quotes."""


def matching_clients(
    actor: Actor, patterns: Sequence[str] | None, *, search: str = "", delivery: str = "", health: str = ""
) -> tuple[str, dict[str, Any]]:
    """Return target and parameters of a change to all clients that match a filter now.

    Clients for which the actor lacks the permission are left out.

    Args:
        actor: The operator.
        patterns: Name patterns of the clients that the operator may see; None for all.
        search: Part of a client's name.
        delivery: Delivery state, or "".
        health: Health, or "".

    Raises:
        OperatorError: `nobody_matches` or `too_many_matching`.
        BrokerUnavailable: no broker answers.
    """
    found = client_queries.ClientSequence(search=search, delivery=delivery, health=health, patterns=patterns)
    if len(found) > MAX_MATCHING:
        raise OperatorError(
            "too_many_matching",
            f"{number_exact(len(found))} clients match, and at most {MAX_MATCHING} can be acted on in one "
            "change.",
            "Narrow the filter.",
        )
    instance = instance_named().name
    names = [
        one.name
        for one in found[0:MAX_MATCHING]
        if access.is_allowed(actor, Permission.ACT_ON_CLIENTS, instance=instance, client=one.name)
    ]
    if not names:
        raise OperatorError("nobody_matches", "No client that you may act on matches.", "Widen the filter.")
    words = [f"“{search}”"] if search else []
    words += [Health(health).value] if health else []
    words += [DeliveryState(delivery).value] if delivery else []
    return ", ".join(words) or "any filter", {"names": names, "search": search}


def _connected_clients(item: PendingChange) -> list[ClientEntry]:
    """Return the change's clients that are still connected, in the original order."""
    found = client_queries.ClientSequence(search=item.parameters.get("search", ""))
    known = {one.name: one for one in found[0 : requests.MAX_CLIENTS]}
    return [known[name] for name in item.parameters.get("names", []) if name in known]


def _preview_function(kind: PendingChangeKind) -> Callable[[PendingChange, list[str] | None], ChangePreview]:
    """Return the preview function of one kind of change."""
    one_word, done, says, applies, severe = _WORDS[kind]

    def preview(item: PendingChange, _: list[str] | None) -> ChangePreview:
        chosen, there = len(item.parameters.get("names", [])), _connected_clients(item)
        # The preview says for how many clients the change does nothing, and how many have disconnected.
        acted = [one for one in there if applies(one)]
        number = len(acted)
        title = (
            f"{one_word} {number_exact(chosen)} client{'' if chosen == 1 else 's'} that matched {item.target}"
        )
        waiting = (
            f"{number_exact(sum(one.waiting_messages for one in acted))} messages "
            f"({size(sum(one.waiting_bytes for one in acted))}) wait for them"
        )
        lines = (
            [
                policy_effect.EffectLine(
                    "act", f"{says}; {waiting}.", [one.name for one in acted[:MAX_NAMES]], number
                )
            ]
            if acted
            else []
        )
        if kind is PendingChangeKind.DISCONNECT_ALL and acted:
            lines.append(
                effect_line(
                    "Journaled messages can be replayed from their bookmarks; other waiting "
                    "messages are lost."
                )
            )
        if chosen > len(there):
            lines.append(
                effect_line(f"{number_exact(chosen - len(there))} have disconnected in the meantime.")
            )
        if len(there) > number:
            lines.append(
                effect_line(f"{number_exact(len(there) - number)} are already {done}, and don’t change.")
            )
        headline = f"{number_exact(number)} client{'' if number == 1 else 's'} {done}"
        blocked = [] if acted else [f"No client that could be {done} remains."]
        warnings = [f"{headline[:1].upper()}{headline[1:]}."] if severe and acted else []
        return ChangePreview(title, headline, lines, warnings, blocked, severe=severe)

    return preview


def _apply_function(kind: PendingChangeKind) -> Callable[[Actor, PendingChange, str], str]:
    """Return the function that applies one kind of change."""

    def do(actor: Actor, item: PendingChange, reason: str) -> str:
        """Apply the change to each client, with an audit event each.

        A refused client doesn't stop the others.

        Raises:
            OperatorError: `nobody_matches` if no client was changed.
        """
        acted, refused = 0, []
        for one in _connected_clients(item):
            if not _WORDS[kind][3](one):
                continue
            try:
                access.require_permission(
                    actor, Permission.ACT_ON_CLIENTS, instance=item.instance.name, client=one.name
                )
                _APPLY_TO_CLIENT[kind](actor, one.name, reason)
                acted += 1
            except SluiceError as problem:
                refused.append(f"{one.name}: {problem.sentence}")
        if not acted:
            refusal = refused[0] if refused else "None of the clients remains."
            raise OperatorError("nobody_matches", refusal, "Check the list again.")
        outcome = f"{number_exact(acted)} client{'' if acted == 1 else 's'} {_WORDS[kind][1]}."
        if not refused:
            return outcome
        return f"{outcome} {len(refused)} not: {' '.join(refused[:MAX_REFUSALS])}"

    return do


def _pauses(one: ClientEntry) -> bool:
    return any(not subscription.paused for subscription in one.subscriptions)


def _resumes(one: ClientEntry) -> bool:
    return any(subscription.paused for subscription in one.subscriptions)


def _goes_offline(one: ClientEntry) -> bool:
    return one.delivery not in (DeliveryState.OFFLINED, DeliveryState.DRAINING)


_WORDS: Final[Mapping[PendingChangeKind, tuple[str, str, str, Callable[[ClientEntry], bool], bool]]] = {
    PendingChangeKind.PAUSE_ALL: ("Pause", "paused", "get nothing until they are resumed", _pauses, True),
    PendingChangeKind.RESUME_ALL: ("Resume", "resumed", "go on", _resumes, False),
    PendingChangeKind.OFFLINE_ALL: (
        "Offline",
        "offlined",
        "get their spooled backlog when they read",
        _goes_offline,
        False,
    ),
    PendingChangeKind.DISCONNECT_ALL: (
        "Disconnect",
        "cut off",
        "are disconnected with the reason",
        lambda _: True,
        True,
    ),
}
"""For each kind: verb, participle, effect in a sentence, test whether it can apply to a client, severity."""
_APPLY_TO_CLIENT: Final[Mapping[PendingChangeKind, Callable[[Actor, str, str], object]]] = {
    PendingChangeKind.PAUSE_ALL: lambda actor, name, reason: clients.control_client(
        actor, requests.PauseClient(name=name), reason
    ),
    PendingChangeKind.RESUME_ALL: lambda actor, name, reason: clients.control_client(
        actor, requests.ResumeClient(name=name), reason
    ),
    PendingChangeKind.OFFLINE_ALL: lambda actor, name, reason: clients.control_client(
        actor, requests.OfflineClient(name=name), reason
    ),
    PendingChangeKind.DISCONNECT_ALL: lambda actor, name, reason: clients.disconnect(actor, name, reason),
}
MATCHING_CHANGE_KINDS: Final[Mapping[PendingChangeKind, ChangeKind]] = {
    kind: ChangeKind(Permission.ACT_ON_CLIENTS, _preview_function(kind), _apply_function(kind))
    for kind in _WORDS
}
