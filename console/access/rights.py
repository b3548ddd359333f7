"""Rights of an account as plain data, and the rule that decides whether they cover an action. Pure
functions.

A right without patterns covers everything on its instance, or on every instance if it names none. A right
with a pattern of client names or topics covers only matching clients or topics. Of subjects that are
neither (an instance's figures, policies, journals) it covers only viewing.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from broker_core.errors import ClientError
from broker_core.names import MAX_NAME, NAME_CHARACTERS, name_matches
from broker_core.subscriptions.topics import TopicPattern
from console.choices import Permission


class PublicAccess(Enum):
    """Declaration of addresses that need no permission."""

    EVERYONE = "everyone"  # no login: login page, health checks
    OWN_ACCOUNT = "own account"  # login only: the caller's own account


Need = Permission | PublicAccess
"""Declaration of a view: a permission, or public access."""


@dataclass(frozen=True, slots=True)
class GrantedRight:
    """Right of one grant. Empty texts mean no restriction."""

    permissions: frozenset[Permission]
    instance: str = ""
    clients: str = ""
    topics: str = ""

    def covers(self, permission: Permission, instance: str, client: str, topic: str) -> bool:
        """Return whether this right alone allows the action."""
        if permission not in self.permissions or (self.instance and self.instance != instance):
            return False
        if not (self.clients or self.topics):
            return True
        if not (client or topic):
            return permission == Permission.VIEW
        return (not client or name_matches(self.clients, client)) and (
            not topic or topic_within(self.topics, topic)
        )


@dataclass(frozen=True, slots=True)
class EffectiveAccess:
    """All rights of an account. `scope`: permissions of the token in use; None without a token."""

    rights: tuple[GrantedRight, ...] = ()
    scope: frozenset[Permission] | None = None

    def allows(
        self, permission: Permission, *, instance: str = "", client: str = "", topic: str = ""
    ) -> bool:
        """Return whether a right covers the action.

        Without `instance` the action concerns the whole installation.
        """
        if self.scope is not None and permission not in self.scope:
            return False
        return any(right.covers(permission, instance, client, topic) for right in self.rights)

    @property
    def permissions(self) -> frozenset[Permission]:
        """Permissions that the account has somewhere, for showing or hiding buttons.

        Never use them to authorise an action.
        """
        granted = frozenset(one for right in self.rights for one in right.permissions)
        return granted if self.scope is None else granted & self.scope

    def client_patterns(self, instance: str, permission: Permission = Permission.VIEW) -> list[str] | None:
        """Return name patterns of the clients that a permission covers on the instance.

        None means every client; an empty list means none.
        """
        rights = self._rights_to(permission, instance)
        return None if rights is None else sorted({one.clients for one in rights if one.clients})

    def topic_patterns(self, instance: str, permission: Permission) -> list[str] | None:
        """Return patterns of the topics that a permission covers on the instance.

        None means every topic; an empty list means none.
        """
        rights = self._rights_to(permission, instance)
        return None if rights is None else sorted({one.topics for one in rights if one.topics})

    def _rights_to(self, permission: Permission, instance: str) -> list[GrantedRight] | None:
        """Return the rights that give a permission within patterns; None if a right gives it without a
        pattern.
        """
        if self.scope is not None and permission not in self.scope:
            return []
        rights = [
            one for one in self.rights if permission in one.permissions and one.instance in ("", instance)
        ]
        return None if any(not (one.clients or one.topics) for one in rights) else rights


def is_name_pattern(text: str) -> bool:
    """Return whether a text is a valid pattern of client names."""
    return len(text) <= MAX_NAME and NAME_CHARACTERS.issuperset(text.replace("*", ""))


def topic_within(pattern: str, topic: str) -> bool:
    """Return whether every topic that `topic` (a topic or pattern) matches is also matched by `pattern`.

    "" matches nothing. For regular expressions only an equal text counts.
    """
    if not pattern:
        return False
    if pattern == topic:
        return True
    try:
        allowed, requested = TopicPattern.parse(pattern), TopicPattern.parse(topic)
    except ClientError:
        return False
    if requested.exact is not None:
        return allowed.matches(topic)
    if pattern.startswith("~") or topic.startswith("~"):
        return False  # inclusion of regular expressions is not decided: a grant must contain the same pattern
    return _levels_within(pattern.split("."), topic.split("."))


def _levels_within(outer: list[str], inner: list[str]) -> bool:
    """Return whether the levels of one topic pattern cover those of another.

    `*` and `>` do not cover `$` topics.
    """
    for number, level in enumerate(outer):
        if level == ">":
            return len(inner) > number and not (number == 0 and inner[0].startswith("$"))
        if number >= len(inner) or inner[number] == ">" or (level != "*" and level != inner[number]):
            return False
        if level == "*" and number == 0 and inner[0].startswith("$"):
            return False
    return len(outer) == len(inner)
