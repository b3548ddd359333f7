"""How soon the rules of a policy act at the latest, as an operator is told it before the policy is published. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from broker_core.config import ActiveMqPolicy, PolicyDocument, QpidTopic, RuleSettings, XapPolicy
from broker_core.config.vocabulary import Action, Choice
from broker_core.slow_clients.rules.presets import activemq, custom, qpid, xap
from broker_core.slow_clients.rules.rule import PoolLimits, Rule
from broker_core.slow_clients.rules.scopes import Layer, Subject, by_specificity, effective, matches

_ANY_POOL = PoolLimits("", 1 << 40, 1 << 40, "")
"""How soon a rule acts doesn't depend on its pool's limits."""


class Act(NamedTuple):
    """One act of an entry, and the longest from crossing the limit to it; 0 is in the same turn of the broker's loop."""

    action: Action
    worst_case_ms: int


def of_rules(document: PolicyDocument) -> list[list[Act]]:
    """For each entry of `rules`, laid over those of its name that apply wherever it does: its ladder."""
    named = custom.own_rules(document)
    return [_acts(_compiled(rule, named[rule.name])) for rule in document.rules]


def of_xap(document: PolicyDocument) -> list[list[Act]]:
    """For each entry of `xap`."""
    layers = by_specificity(xap.layers(document))
    return [_acts(xap.rules(_merged(layers, entry, xap.DEFAULTS), 1)) for entry in document.xap]


def of_activemq(document: PolicyDocument) -> list[list[Act]]:
    """For each entry of `activemq`, of subscriptions that aren't durable."""
    layers = by_specificity(activemq.layers(document))
    found = [_merged(layers, entry, activemq.DEFAULTS) for entry in document.activemq]
    return [_acts(activemq.rules(one, 1, durable=False, prefetch=one["prefetch"] or 1)) for one in found]


def of_qpid(document: PolicyDocument) -> list[list[Act]]:
    """For each entry of `qpid`, of subscriptions that aren't durable."""
    layers = by_specificity(qpid.layers(document))
    return [
        _acts(qpid.rules(_merged(layers, entry, qpid.DEFAULTS), 1, durable=False)) for entry in document.qpid
    ]


def _compiled(entry: RuleSettings, own: custom.Own) -> list[Rule]:
    settings = custom.settings_within(own, entry.scope)
    rule = custom.rule(entry.name, settings, _ANY_POOL, 1, per_subscription=own.per_subscription)
    if rule is None:
        return []
    # As the rule book compiles those that choose the largest of a pool.
    return [replace(rule, choose=Choice.LARGEST_IN_POOL, at_tick=True) if own.pooled else rule]


def _merged(
    layers: Iterable[Layer], entry: XapPolicy | ActiveMqPolicy | QpidTopic, defaults: Mapping[str, Any]
) -> dict[str, Any]:
    subject = Subject(entry.transport, topic=getattr(entry, "topic", ""))
    matching = [layer for layer in layers if matches(layer.scope, subject)]
    return {field: value.value for field, value in effective(matching, defaults).items()}


def _acts(rules: Iterable[Rule]) -> list[Act]:
    """The slowest for each action: several limits of an entry may end in the same one."""
    found: dict[Action, int] = {}
    for rule in rules:
        for number, rung in enumerate(rule.ladder):
            found[rung.action] = max(found.get(rung.action, 0), rule.worst_case_ms(number))
    return [Act(action, worst) for action, worst in found.items()]
