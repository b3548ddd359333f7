"""Policies as files, for the command, the API and the page alike: YAML of our own, and other brokers' configurations."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml
from django.db import transaction

from broker_core.errors import OperatorError
from console.models import Action, Instance, PolicyDraft, PolicyRevision
from console.policy_secrets import redacted
from console.services import drafts, policies, policy_import
from console.services.actions import editing
from console.services.actors import Actor
from console.services.policy_import import LeftOut

YAML = "yaml"
SYSTEMS = (YAML, *policy_import.READERS)
MOST_BYTES = 4 * 1024 * 1024
"""Of a file of our own, which may name many users."""
MOST_SENT = policy_import.MAX_TEXT
"""Characters of a file that is pasted, uploaded or sent by the API."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """What a file makes: a whole policy document, definitions of actions, and what couldn't be taken over."""

    document: dict[str, Any]
    actions: list[dict[str, Any]] = field(default_factory=list)
    left_out: list[LeftOut] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Made:
    """What an import made: a draft, actions that are switched off, and what was left out."""

    draft: PolicyDraft
    actions: list[Action]
    left_out: list[LeftOut]


def load(instance: Instance, system: str, text: str) -> Loaded:
    """Read a file: YAML stands for itself, another system's is laid over the newest revision. Raises bad_import."""
    newest = policies.newest_of(instance).document
    if system == YAML:
        return Loaded({**read_yaml(text), "revision": newest["revision"]})
    imported = policy_import.read(system, text)
    given = dict(imported.document)
    if "transports" in given:
        given["transports"] = {transport["name"]: transport for transport in given["transports"]}
    return Loaded(drafts.overlay(newest, given), imported.actions, imported.left_out)


def make_draft(actor: Actor, instance: Instance, system: str, text: str, *, title: str = "") -> Made:
    """A draft of a file, and its actions switched off. Raises bad_import, and what making a draft raises."""
    loaded = load(instance, system, text)
    with transaction.atomic():
        draft = drafts.make(
            actor, title or f"Imported from {system}", document=loaded.document, instance_name=instance.name
        )
        actions, taken = make_actions(actor, instance, loaded.actions)
    return Made(draft, actions, [*loaded.left_out, *taken])


def make_actions(actor: Actor, instance: Instance, definitions: list[dict[str, Any]]) -> tuple[list[Action], list[LeftOut]]:
    """The actions of a file, switched off; one that can't be made is left out with why."""
    made, left = [], []
    for definition in definitions:
        try:
            made.append(editing.create(actor, instance, {**definition, "enabled": False}))
        except OperatorError as problem:
            left.append(LeftOut(f"Action {definition['name']}", "the action", problem.sentence))
    return made, left


def dump(revision: PolicyRevision, *, with_secrets: bool = False) -> str:
    """A revision as YAML. Hashes of passwords and tokens read "set", unless they are asked for."""
    document = revision.document if with_secrets else redacted(revision.document)
    kept = {key: value for key, value in document.items() if key != "revision"}
    title = f"# {revision.instance.name}, revision {revision.number}, by {revision.author}\n"
    return title + yaml.safe_dump(kept, sort_keys=False, allow_unicode=True)


def read_yaml(text: str) -> dict[str, Any]:
    """A document written by `dump`. Raises OperatorError bad_import."""
    if len(text) > MOST_BYTES:
        raise OperatorError("bad_import", f"The file is over {MOST_BYTES} characters.", "Import the part with the policy.")
    try:
        found = yaml.load(text, _Plain)  # a SafeLoader that is safer still
        document = json.loads(json.dumps(found, allow_nan=False))
    except yaml.YAMLError as problem:
        raise OperatorError("bad_import", f"The file isn't YAML: {problem}.", "Start from `policy export`.") from None
    except (TypeError, ValueError, RecursionError) as problem:
        raise OperatorError(
            "bad_import", f"The file holds what no policy has: {problem}.", "Start from `policy export`."
        ) from None
    if not isinstance(document, Mapping):
        raise OperatorError("bad_import", "The file holds no policy.", "Start from `policy export`.")
    return dict(document)


class _Plain(yaml.SafeLoader):
    """Without aliases: a few lines of them can stand for gigabytes."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        """PyYAML's, but for aliases."""
        if self.check_event(yaml.AliasEvent):
            event = self.peek_event()
            raise yaml.composer.ComposerError(None, None, "aliases aren't taken", event.start_mark)
        return super().compose_node(parent, index)
