"""Rule books: all rules of a policy revision, resolved for each client and subscription.

The most specific setting wins, field by field. A rule book is immutable except for a cache: clients and
subscriptions with the same settings share their rules. `StagedRevision` is a revision that is in force for
some clients first. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple
from zlib import crc32

from broker_core.config import PolicyDocument
from broker_core.config.rule_terms import EnforcementMode, SignalSubject
from broker_core.config.scopes import glob_matches
from broker_core.errors import OperatorError
from broker_core.slow_clients.rules import presets
from broker_core.slow_clients.rules.presets import preset_layers
from broker_core.slow_clients.rules.rule import INSTANCE, PoolLimits, Rule
from broker_core.slow_clients.rules.scopes import EffectiveValue, LayeredSettings, RuleSubject

MAX_KNOWN: Final = 20_000
"""Maximum subscriptions whose rules are cached. The cache is then cleared, because topics come and go."""


class RuleBook:
    """Rules of a policy document, given its pools (`presets.resolve_pools`)."""

    def __init__(self, document: PolicyDocument, pools: Mapping[str, PoolLimits]) -> None:
        self.revision = document.revision
        self.pools = pools
        self._document = document
        self._xap, self._activemq, self._qpid = (
            preset_layers(document, name) for name in ("xap", "activemq", "qpid")
        )
        self._quotas = preset_layers(document, "quotas")
        custom_rules = presets.custom_rules(document).values()
        self._client_custom_rules = [one for one in custom_rules if one.measured is SignalSubject.CLIENT]
        self._subscription_custom_rules = [
            one for one in custom_rules if one.measured is SignalSubject.SUBSCRIPTION
        ]
        self._pool_custom_rules = [one for one in custom_rules if one.measured is SignalSubject.POOL]
        self.pool_rules = _without_off(self._pool_rules())
        """Rules that choose the largest user of a pool; `scope` is the pool's name."""
        self._compiled: dict[tuple[object, ...], tuple[Rule, ...]] = {}
        """Compiled rules by the layers that apply. Subjects with the same settings share their rules."""
        self._compiled_by_properties: dict[tuple[object, ...], tuple[Rule, ...]] = {}
        """Compiled rules by all properties of a subscription that a scope of this policy refers to."""
        groups = (self._activemq, self._qpid, *(one.layers for one in self._subscription_custom_rules))
        self._subscription_layers = LayeredSettings(layer for group in groups for layer in group)
        scoped = [layer.scope for layer in self._subscription_layers]
        self._by_user, self._by_client, self._by_subscription = (
            any(getattr(scope, field) for scope in scoped) for field in ("user", "client", "subscription")
        )

    @property
    def has_shadow(self) -> bool:
        """Whether any rule may be in shadow mode."""
        document = self._document
        modes = [entry.mode or EnforcementMode.SHADOW for entry in document.rules]
        for entries in (document.xap, document.activemq, document.qpid):
            modes += [entry.mode or EnforcementMode.ENFORCE for entry in entries]
        return EnforcementMode.SHADOW in modes

    def client_rules_for(self, subject: RuleSubject) -> tuple[Rule, ...]:
        """Return the rules about a client itself, in the order of judging."""
        groups = (self._xap, self._quotas, *(one.layers for one in self._client_custom_rules))
        key = ("client", subject.transport, *_matching(groups, subject))
        if key not in self._compiled:
            self._compiled[key] = _without_off(self._client_rules(subject))
        return self._compiled[key]

    def subscription_rules_for(
        self, subject: RuleSubject, *, durable: bool = False, prefetch: int = 0
    ) -> tuple[Rule, ...]:
        """Return the rules about one subscription. `prefetch` is its ack window in messages; 0 for none."""
        if not self._subscription_layers:
            return ()
        properties = (
            subject.transport,
            subject.topic,
            durable,
            prefetch,
            subject.user if self._by_user else "",
            subject.client if self._by_client else "",
            subject[4:] if self._by_subscription else (),
        )
        known = self._compiled_by_properties.get(properties)
        if known is None:
            if len(self._compiled_by_properties) >= MAX_KNOWN:
                self._compiled_by_properties.clear()
            key = (subject.transport, durable, prefetch, *_matching((self._subscription_layers,), subject))
            if key not in self._compiled:
                self._compiled[key] = _without_off(self._subscription_rules(subject, durable, prefetch))
            known = self._compiled_by_properties[properties] = self._compiled[key]
        return known

    def prefetch_for(self, subject: RuleSubject) -> int | None:
        """Return the prefetch that policy sets for a subscription; None to use the one requested."""
        prefetch: int | None = self._activemq.values(subject)["prefetch"]
        return prefetch

    def pool_for(self, subject: RuleSubject) -> PoolLimits:
        """Return the pool limits of the subject's transport, or of the instance."""
        return self.pools.get(subject.transport) or self.pools[INSTANCE]

    def effective(self, subject: RuleSubject) -> dict[str, EffectiveValue]:
        """Return every setting in force for a client, or with a topic for its subscription.

        Each has its value and origin, by preset or rule and field.
        """
        settings = presets.amps_settings(self._document, subject.transport)
        settings_in_force = {f"amps.{key}": value for key, value in settings.items()}
        groups = [("xap", self._xap), ("quotas", self._quotas)]
        if subject.topic:
            groups += [("activemq", self._activemq), ("qpid", self._qpid)]
        for name, group in (
            *groups,
            *(
                (one.name, one.layers)
                for one in (*self._client_custom_rules, *self._subscription_custom_rules)
            ),
        ):
            if group is self._quotas or group.layers_for(subject):
                settings_in_force |= {
                    f"{name}.{key}": value for key, value in group.effective(subject).items()
                }
        return settings_in_force

    # ------------------------------------------------------------------------------------------ compiling

    def _client_rules(self, subject: RuleSubject) -> Iterator[Rule]:
        """Yield the rules about a client: AMPS, XAP, quotas, custom rules."""
        pool_name = subject.transport if subject.transport in self.pools else INSTANCE
        yield from presets.client_rules(self._document, pool_name, self.pools[pool_name])
        yield from presets.xap_rules(self._xap.values(subject), self.revision)
        yield from presets.quota_rules(self._quotas.values(subject), self.revision)
        yield from self._compile_custom_rules(self._client_custom_rules, subject, self.pools[pool_name])

    def _subscription_rules(self, subject: RuleSubject, durable: bool, prefetch: int) -> Iterator[Rule]:
        """Yield the rules about a subscription: ActiveMQ, Qpid, custom rules."""
        settings = self._activemq.values(subject)
        yield from presets.activemq_rules(settings, self.revision, durable=durable, prefetch=prefetch)
        yield from presets.qpid_rules(self._qpid.values(subject), self.revision, durable=durable)
        yield from self._compile_custom_rules(
            self._subscription_custom_rules, subject, self.pool_for(subject)
        )

    def _pool_rules(self) -> Iterator[Rule]:
        """Yield the AMPS rules of all pools, then the custom rules of each pool.

        A pool gets the settings of the instance, or of the transport that has the pool to itself.
        """
        pools = {limits.name: limits for limits in self.pools.values()}.values()
        for limits in pools:
            yield from presets.pool_rules(limits, self.revision)
        for limits in pools:
            yield from self._compile_custom_rules(
                self._pool_custom_rules, RuleSubject(presets.transport_for_pool(limits.name)), limits
            )

    def _compile_custom_rules(
        self, rules: Iterable[presets.CustomRule], subject: RuleSubject, pool: PoolLimits
    ) -> Iterator[Rule]:
        """Yield the custom rules that are complete for a subject."""
        for one in rules:
            if rule := one.compile(one.layers.values(subject), pool, self.revision):
                yield rule


def _without_off(rules: Iterable[Rule]) -> tuple[Rule, ...]:
    """Return the rules that are not switched off."""
    return tuple(rule for rule in rules if rule.mode is not EnforcementMode.OFF)


def _matching(groups: Iterable[LayeredSettings], subject: RuleSubject) -> tuple[int, ...]:
    """Return the identities of the layers that apply: the cache key. Layers live as long as the book."""
    return tuple(id(layer) for group in groups for layer in group.layers_for(subject))


class StagedRevision(NamedTuple):
    """Staged revision, the clients it covers, and its allowance on this broker.

    It covers the clients that match a name pattern, or a share of all clients in percent.
    """

    document: PolicyDocument
    client: str = ""
    share: int = 0
    allowed: int | None = None
    """Maximum decisions that the revision may execute on this broker; None for any number."""
    made: int = 0
    """Decisions of the revision that, as the control plane knows, this broker has executed."""

    def covers(self, name: str) -> bool:
        """Return whether the staged revision applies to a client.

        A share selects clients by a hash of their names, so the same clients each time.
        """
        if self.client:
            return glob_matches(self.client, name)
        return crc32(name.encode()) % 100 < self.share


def parse_stage(source: Mapping[str, Any] | None, member: str = "") -> StagedRevision | None:
    """Return the stage of an apply request; None when nothing is staged.

    Args:
        source: The request's stage: `policy`, and `client` (a name pattern) or `share` (percent).
            `allowances` and `made` hold one figure for each member of a group. A member that `allowances`
            does not name may execute nothing, so that all members together stay within the operator's
            allowance.
        member: Name of this member of the group.

    Raises:
        OperatorError: bad_policy.
    """
    if source is None:
        return None
    client, share = source.get("client") or "", source.get("share") or 0
    if (
        not isinstance(client, str)
        or isinstance(share, bool)
        or not isinstance(share, int)
        or bool(client) == bool(share)
    ):
        raise OperatorError(
            "bad_policy", "A stage requires a pattern of client names, or a share.", "Set one of them."
        )
    allowances, made = source.get("allowances"), source.get("made") or {}
    allowed = None if allowances is None else allowances.get(member, 0)
    document = PolicyDocument.from_dict(source.get("policy") or {})
    return StagedRevision(document, client, share, allowed, made.get(member, 0))
