"""Access policy: the access settings of a policy document, compiled and validated."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from broker_core.access.credential_hashes import hash_token, password_hash_problem, token_hash_problem
from broker_core.access.rights import ALL_RIGHTS, CompiledEntitlement, Rights
from broker_core.config import EntitlementSettings, PolicyDocument, UserSettings
from broker_core.config.document_reader import bad_policy_error
from broker_core.errors import SluiceError
from broker_core.filters import Filter, compile_filter
from broker_core.names import BROKER_NAME, SITE_PREFIX
from broker_core.subscriptions.topics import TopicPattern


class AccessPolicy:
    """Compiled users and entitlements of a policy: authentication and permissions."""

    def __init__(self, policy: PolicyDocument) -> None:
        """Compile the access settings of a policy.

        Raises:
            OperatorError: `bad_policy`, with every problem.
        """
        if problems := access_problems(policy):
            raise bad_policy_error(problems)
        self._transports = {transport.name: transport for transport in policy.transports}
        self._users = {user.name: user for user in policy.access.users}
        self._by_token = {user.token: user.name for user in policy.access.users if user.token}
        self._by_certificate = {
            user.certificate: user.name for user in policy.access.users if user.certificate
        }
        self._rights: dict[tuple[str, str], Rights] = {}
        self._entitlements = [
            (settings, _compile_entitlement(settings)) for settings in policy.access.entitlements
        ]

    def authentication(self, transport: str) -> str | None:
        """Return the authentication method of a transport: none, token, password or certificate.

        Returns None if the transport does not exist.
        """
        if transport == BROKER_NAME:
            return "none"
        found = self._transports.get(transport)
        return found.authentication if found is not None else None

    def find_user_by_token(self, token: str) -> str | None:
        """Return the user that owns a token, or None."""
        return self._by_token.get(hash_token(token))

    def find_user_by_certificate(self, names: Iterable[str]) -> str | None:
        """Return the user to whom the names in a certificate belong. None if there is none or several."""
        found = {self._by_certificate[name] for name in names if name in self._by_certificate}
        return found.pop() if len(found) == 1 else None

    def password_hash(self, user: str) -> str | None:
        """Return the hash of a user's password. None if the user does not exist or has no password."""
        found = self._users.get(user)
        return found.password if found is not None else None

    def may_use_client_name(self, user: str, client: str) -> bool:
        """Return whether a user may log on with a client name."""
        found = self._users.get(user)
        return (
            found is None or not found.clients or any(_name_matches(name, client) for name in found.clients)
        )

    def may_connect_link(self, user: str, client: str) -> bool:
        """Return whether a user may log on as another instance's link.

        Only users whose `clients` name links explicitly may do so.
        """
        found = self._users.get(user)
        return found is not None and any(
            name.startswith(SITE_PREFIX) and _name_matches(name, client) for name in found.clients
        )

    def is_user_allowed(self, user: str, client: str) -> bool:
        """Return whether a user exists and may log on with a client name."""
        return user in self._users and self.may_use_client_name(user, client)

    def rights(self, transport: str, user: str) -> Rights:
        """Return the permissions of a user on a transport. "" is a client without authentication."""
        rights = self._rights.get((transport, user))
        if rights is None:
            rights = self._rights[transport, user] = self._make_rights(transport, user)
        return rights

    def _make_rights(self, transport: str, user: str) -> Rights:
        if transport == BROKER_NAME:
            return ALL_RIGHTS  # the broker's internal connection, which is not reachable from outside
        transport_settings = self._transports.get(transport)
        if transport_settings is None:
            return Rights(())
        account = self._users.get(user)
        if not transport_settings.restricted:
            return Rights(None, (transport_settings.authentication, account))
        applicable = [
            (settings, entitled)
            for settings, entitled in self._entitlements
            if (not settings.transports or transport in settings.transports)
            and _applies_to(settings, user, account)
        ]
        basis = (transport_settings.authentication, account, tuple(settings for settings, _ in applicable))
        return Rights([entitled for _, entitled in applicable], basis)


def _applies_to(settings: EntitlementSettings, user: str, account: UserSettings | None) -> bool:
    """Return whether an entitlement applies to a user."""
    for subject in settings.who:
        if subject == "*":
            return True
        if account is None:
            continue
        if (
            subject.removeprefix("group:") in account.groups
            if subject.startswith("group:")
            else _name_matches(subject, user)
        ):
            return True
    return False


def _name_matches(name: str, candidate: str) -> bool:
    """Return whether a name matches a setting, in which a trailing `*` stands for any characters."""
    return candidate.startswith(name[:-1]) if name.endswith("*") else candidate == name


def _compile_entitlement(settings: EntitlementSettings) -> CompiledEntitlement:
    return CompiledEntitlement(
        tuple(map(TopicPattern.parse, settings.publish)),
        tuple(map(TopicPattern.parse, settings.subscribe)),
        compile_filter(settings.filter) if settings.filter else None,
    )


def access_problems(policy: PolicyDocument) -> list[str]:
    """Return one sentence for each problem of users, hashes, patterns, filters and transport names."""
    problems = [problem for user in policy.access.users for problem in _user_problems(user)]
    names = {transport.name for transport in policy.transports}
    for number, settings in enumerate(policy.access.entitlements, 1):
        where = f"entitlement {number}"
        problems += [
            f"{where}: there is no transport {name!r}" for name in settings.transports if name not in names
        ]
        for pattern in (*settings.publish, *settings.subscribe):
            problems += _parse_problems(where, TopicPattern.parse, pattern)
        if settings.filter:
            problems += _parse_problems(where, compile_filter, settings.filter)
    return problems + _unusable_transports(policy)


def _user_problems(user: UserSettings) -> Iterator[str]:
    for key, check_hash in (("password", password_hash_problem), ("token", token_hash_problem)):
        hashed = getattr(user, key)
        if hashed and (problem := check_hash(hashed)):
            yield f"user {user.name!r}: {key} can't be used: {problem}"


def _parse_problems(where: str, parse: Callable[[str], TopicPattern | Filter], text: str) -> list[str]:
    """Return the error of a parser as a list of one sentence, or an empty list."""
    try:
        parse(text)
    except SluiceError as error:
        return [f"{where}: {error.sentence.rstrip('.')}"]
    return []


def _unusable_transports(policy: PolicyDocument) -> list[str]:
    """Return one sentence for each enabled transport to which no user can log on.

    This is a mistake: to close a transport, an operator disables it.
    """
    return [
        f"transport {transport.name!r}: no user has a {transport.authentication} to log on with"
        for transport in policy.transports
        if transport.authentication != "none"
        and transport.enabled
        and not any(getattr(user, transport.authentication) for user in policy.access.users)
    ]
