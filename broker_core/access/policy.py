"""The access part of a policy document, compiled and checked whole."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from broker_core.access.credential_hashes import hash_token, password_hash_problem, token_hash_problem
from broker_core.access.rights import EVERYTHING, CompiledEntitlement, Rights
from broker_core.config import EntitlementSettings, PolicyDocument, UserSettings
from broker_core.config.document_reader import bad_policy_error
from broker_core.errors import SluiceError
from broker_core.filters import Filter, compile_filter
from broker_core.names import BROKER_NAME, SITE_PREFIX
from broker_core.subscriptions.topics import TopicPattern


class AccessPolicy:
    """Who may log on and what they may do. Raises OperatorError bad_policy with every problem."""

    def __init__(self, policy: PolicyDocument) -> None:
        if problems := access_problems(policy):
            raise bad_policy_error(problems)
        self._transports = {transport.name: transport for transport in policy.transports}
        self._users = {user.name: user for user in policy.access.users}
        self._by_token = {user.token: user.name for user in policy.access.users if user.token}
        self._by_certificate = {
            user.certificate: user.name for user in policy.access.users if user.certificate
        }
        self._rights: dict[tuple[str, str], Rights] = {}
        self._entitlements = [(settings, _compiled(settings)) for settings in policy.access.entitlements]

    def authentication(self, transport: str) -> str | None:
        """What clients of a transport must show: none, token, password or certificate. None: there is no such transport."""
        if transport == BROKER_NAME:
            return "none"
        found = self._transports.get(transport)
        return found.authentication if found is not None else None

    def user_of_token(self, token: str) -> str | None:
        """Whose token this is."""
        return self._by_token.get(hash_token(token))

    def user_of_certificate(self, names: Iterable[str]) -> str | None:
        """Who the names in a certificate belong to; None too when they belong to several."""
        found = {self._by_certificate[name] for name in names if name in self._by_certificate}
        return found.pop() if len(found) == 1 else None

    def password_hash(self, user: str) -> str | None:
        """The hash that a user's password must match; None when there is no such user or no password."""
        found = self._users.get(user)
        return found.password if found is not None else None

    def may_use_client_name(self, user: str, client: str) -> bool:
        """Whether a user may log on as a client of that name."""
        found = self._users.get(user)
        return found is None or not found.clients or any(_fits(name, client) for name in found.clients)

    def may_connect_link(self, user: str, client: str) -> bool:
        """Whether a user may log on as another instance's link: only whose `clients` name it, or links as such, may."""
        found = self._users.get(user)
        return found is not None and any(
            name.startswith(SITE_PREFIX) and _fits(name, client) for name in found.clients
        )

    def is_user_allowed(self, user: str, client: str) -> bool:
        """Whether there is such a user, who may log on as a client of that name."""
        return user in self._users and self.may_use_client_name(user, client)

    def rights(self, transport: str, user: str) -> Rights:
        """What a user may do on a transport; "" is somebody whom nobody asked who they are."""
        made = self._rights.get((transport, user))
        if made is None:
            made = self._rights[transport, user] = self._make_rights(transport, user)
        return made

    def _make_rights(self, transport: str, user: str) -> Rights:
        if transport == BROKER_NAME:
            return EVERYTHING  # the broker's own way in, which is no address
        found = self._transports.get(transport)
        if found is None:
            return Rights(())
        known = self._users.get(user)
        if not found.restricted:
            return Rights(None, (found.authentication, known))
        mine = [
            (settings, entitled)
            for settings, entitled in self._entitlements
            if (not settings.transports or transport in settings.transports) and _means(settings, user, known)
        ]
        basis = (found.authentication, known, tuple(settings for settings, _ in mine))
        return Rights([entitled for _, entitled in mine], basis)


def _means(settings: EntitlementSettings, user: str, known: UserSettings | None) -> bool:
    for who in settings.who:
        if who == "*":
            return True
        if known is None:
            continue
        if who.removeprefix("group:") in known.groups if who.startswith("group:") else _fits(who, user):
            return True
    return False


def _fits(name: str, given: str) -> bool:
    return given.startswith(name[:-1]) if name.endswith("*") else given == name


def _compiled(settings: EntitlementSettings) -> CompiledEntitlement:
    return CompiledEntitlement(
        tuple(map(TopicPattern.parse, settings.publish)),
        tuple(map(TopicPattern.parse, settings.subscribe)),
        compile_filter(settings.filter) if settings.filter else None,
    )


def access_problems(policy: PolicyDocument) -> list[str]:
    """What is wrong with users, hashes, patterns, filters and names of transports; a sentence each."""
    problems = [problem for user in policy.access.users for problem in _user_problems(user)]
    names = {transport.name for transport in policy.transports}
    for number, settings in enumerate(policy.access.entitlements, 1):
        where = f"entitlement {number}"
        problems += [
            f"{where}: there is no transport {name!r}" for name in settings.transports if name not in names
        ]
        for pattern in (*settings.publish, *settings.subscribe):
            problems += _problem(where, TopicPattern.parse, pattern)
        if settings.filter:
            problems += _problem(where, compile_filter, settings.filter)
    return problems + _nobody(policy)


def _user_problems(user: UserSettings) -> Iterator[str]:
    for key, problem_of in (("password", password_hash_problem), ("token", token_hash_problem)):
        hashed = getattr(user, key)
        if hashed and (problem := problem_of(hashed)):
            yield f"user {user.name!r}: {key} can't be used: {problem}"


def _problem(where: str, parse: Callable[[str], TopicPattern | Filter], text: str) -> list[str]:
    try:
        parse(text)
    except SluiceError as error:
        return [f"{where}: {error.sentence.rstrip('.')}"]
    return []


def _nobody(policy: PolicyDocument) -> list[str]:
    """A transport that nobody could log on to is a mistake, and closing it is another setting."""
    return [
        f"transport {transport.name!r}: no user has a {transport.authentication} to log on with"
        for transport in policy.transports
        if transport.authentication != "none"
        and transport.enabled
        and not any(getattr(user, transport.authentication) for user in policy.access.users)
    ]
