"""The roll: who is connected and subscribed, in which pool, under which rules. The guard judges by it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

from broker_core.config import PolicyDocument
from broker_core.slow_clients.accounts import Account
from broker_core.slow_clients.evaluate import MODES
from broker_core.slow_clients.pools import Pool, build_pools, nowhere
from broker_core.slow_clients.rulebook import RuleBook
from broker_core.slow_clients.rules import INSTANCE, UNLIMITED, Mode, Rule, Signal, client_limits
from broker_core.slow_clients.scopes import Effective, Subject
from broker_core.slow_clients.signals import Backlog, SubscriptionSignals
from broker_core.slow_clients.staging import Stage
from broker_core.slow_clients.ticking import Ticking


class Roll:
    """Accounts of all clients of an instance, its pools, and the rules in force."""

    def __init__(
        self, document: PolicyDocument, host_memory: int, ulimit: int | None, default_disk_path: str
    ) -> None:
        self._accounts: dict[str, Account] = {}
        self._written_off = nowhere()
        self._connected = count(1)
        self._ticking = Ticking()
        self.apply_policy(document, host_memory, ulimit, default_disk_path)

    # ------------------------------------------------------------------------------------------ policies

    def apply_policy(
        self, document: PolicyDocument, host_memory: int, ulimit: int | None, default_disk_path: str,
        stage: Stage | None = None,
    ) -> None:
        """Put a revision in force, whole. The next tick finds who is over its limits: call it at once.

        With a stage the clients it covers are judged by that revision's limits and rules; pools stay the instance's.
        """
        self._host = (host_memory, ulimit, default_disk_path)
        self._pools = build_pools(document, *self._host)
        self.revision = document.revision
        self.book = RuleBook(document, {name: pool.limits for name, pool in self._pools.items()})
        self._pool_rules = {(rule.scope, rule.signal): rule for rule in self.book.pool_rules if rule.at_enqueue}
        """AMPS's, by pool and what it is short of: always enforced, and nobody is protected from them."""
        self._slow_pool_rules = [rule for rule in self.book.pool_rules if not rule.at_enqueue]
        self.stage = stage
        self._staged_book = self.book_of(stage.document) if stage is not None else None
        shadow = self.book.has_shadow or (self._staged_book is not None and self._staged_book.has_shadow)
        self._modes = MODES if shadow else (Mode.ENFORCE,)
        for account in self._accounts.values():
            self._give_rules(account)
            if not account.closing:
                self.pool_of(account.transport).open(account)

    def pool_of(self, transport: str) -> Pool:
        """The pool that a transport's clients draw on."""
        return self._pools.get(transport) or self._pools[INSTANCE]

    def pools(self) -> dict[str, tuple[Pool, list[str]]]:
        """Every pool by name, with the transports that share it."""
        listed: dict[str, tuple[Pool, list[str]]] = {}
        for transport, pool in self._pools.items():
            transports = listed.setdefault(pool.name, (pool, []))[1]
            if transport != INSTANCE:
                transports.append(transport)
        return listed

    def effective(self, name: str) -> dict[str, Effective]:
        """Every setting in force for a client with where it comes from; {} when it isn't registered."""
        account = self._accounts.get(name)
        return self._book_for(account).effective(_subject(account)) if account is not None else {}

    def prefetch_of(self, account: Account, topic: str) -> int | None:
        """The prefetch that policy sets for a client's subscription to a topic; None: what it asks for."""
        return self._book_for(account).prefetch_of(_subject(account)._replace(topic=topic))

    def book_of(self, document: PolicyDocument) -> RuleBook:
        """The rules that another policy would make here."""
        pools = build_pools(document, *self._host)
        return RuleBook(document, {name: pool.limits for name, pool in pools.items()})

    def subjects(self) -> list[Subject]:
        """Every client, each followed by its subscriptions."""
        found = []
        for account in self._accounts.values():
            subject = _subject(account)
            found.append(subject)
            found += [
                subject._replace(topic=one.topic, subscription=one.id, name=one.name)
                for one in account.subscriptions
            ]
        return found

    # ------------------------------------------------------------------------------------------ clients

    def register(self, name: str, transport: str, backlog: Backlog, user: str = "") -> Account:
        """Open an account. Raises ValueError when the name has one: unregister a replaced client first."""
        if name in self._accounts:
            raise ValueError(f"client {name} is registered")
        pool = self.pool_of(transport)
        account = Account(name, transport, user, backlog, pool, next(self._connected))
        self._give_rules(account)
        pool.open(account)
        self._accounts[name] = account
        self._ticking.add(account)
        return account

    def unregister(self, account: Account) -> None:
        """Close an account and give back all it uses. May be called twice."""
        if self._accounts.get(account.name) is account:
            del self._accounts[account.name]
            self._ticking.remove(account)
            if not account.closing:
                self._write_off(account)

    def account(self, name: str) -> Account | None:
        """The account of that client."""
        return self._accounts.get(name)

    def returned(self, account: Account) -> None:
        """The client's spool is empty and it is live again. Raises ValueError while its spool takes disk."""
        if account.disk:
            raise ValueError(f"client {account.name} can't be live with {account.disk} bytes in its spool")
        if account.offlined:
            account.pool.close(account)
            account.offlined = False
            account.offlined_at = 0
            account.pool.open(account)

    def subscribe(self, account: Account, subscription: SubscriptionSignals) -> None:
        """A subscription begins. The caller keeps the object and writes its figures in place."""
        account.subscriptions = (*account.subscriptions, subscription)
        self._give_subscription_rules(account)

    def unsubscribe(self, account: Account, subscription_id: str) -> None:
        """A subscription has ended; what rules remember of it is forgotten."""
        account.subscriptions = tuple(one for one in account.subscriptions if one.id != subscription_id)
        account.holds = {key: hold for key, hold in account.holds.items() if key[1] != subscription_id}
        self._give_subscription_rules(account)

    def _give_rules(self, account: Account) -> None:
        account.rules = self._book_for(account).of_client(_subject(account))
        account.limits = client_limits(account.rules)
        self._give_subscription_rules(account)
        known = {(rule.name, "") for rule in account.rules}
        known |= {(rule.name, one.id) for one, rules in account.narrow for rule in rules}
        account.holds = {key: hold for key, hold in account.holds.items() if key in known}
        account.freshen()

    def _give_subscription_rules(self, account: Account) -> None:
        narrow = []
        for one in account.subscriptions:
            subject = _subject(account)._replace(topic=one.topic, subscription=one.id, name=one.name)
            rules = self._book_for(account).of_subscription(subject, durable=one.durable, prefetch=one.prefetch)
            one.judged = bool(rules)
            one.alarm_bytes = _alarm(rules, Signal.BACKLOG_BYTES)
            one.alarm_messages = _alarm(rules, Signal.BACKLOG_MESSAGES)
            if rules:
                narrow.append((one, rules))
        account.narrow = tuple(narrow)

    def _book_for(self, account: Account) -> RuleBook:
        staged = self._staged_book
        return staged if staged is not None and self.stage is not None and self.stage.covers(account.name) else self.book

    def revision_of(self, name: str) -> int:
        """The revision that a client is judged by."""
        return self.stage.document.revision if self.stage is not None and self.stage.covers(name) else self.revision

    def _write_off(self, account: Account) -> None:
        account.pool.close(account)
        account.pool = self._written_off
        account.closing = True


def _subject(account: Account) -> Subject:
    return Subject(account.transport, account.user, account.name)


def _alarm(rules: Sequence[Rule], signal: Signal) -> int:
    return min((rule.limit for rule in rules if rule.signal is signal and rule.at_enqueue), default=UNLIMITED)
