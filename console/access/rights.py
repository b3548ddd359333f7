"""What somebody may do, as plain data: rights made of grants, and the one rule that says whether they cover an act.

A right without patterns covers everything of its instance (of every instance, when it names none). A right with a
client-name or topic pattern covers only the clients or topics that the pattern names; of what is about neither (the
instance's figures, policies, journals) it covers seeing alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from broker_core.errors import ClientError
from broker_core.names import MAX_NAME, NAME_CHARACTERS, name_matches
from broker_core.subscriptions.topics import TopicPattern
from console.choices import Permission


class PublicAccess(Enum):
    """What addresses declare that need no permission."""

    EVERYONE = "everyone"  # no login: logging in, health
    OWN_ACCOUNT = "own account"  # logged in: what concerns one's own account alone


Need = Permission | PublicAccess


@dataclass(frozen=True, slots=True)
class GrantedRight:
    """One grant as data. Empty texts mean "every one"."""

    permissions: frozenset[Permission]
    instance: str = ""
    clients: str = ""
    topics: str = ""

    def covers(self, permission: Permission, instance: str, client: str, topic: str) -> bool:
        """Whether this right alone allows the act."""
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
    """All rights of somebody; `scope` is what their token was limited to, None without one."""

    rights: tuple[GrantedRight, ...] = ()
    scope: frozenset[Permission] | None = None

    def allows(
        self, permission: Permission, *, instance: str = "", client: str = "", topic: str = ""
    ) -> bool:
        """Whether one of the rights covers it. Without an instance it concerns the whole installation."""
        if self.scope is not None and permission not in self.scope:
            return False
        return any(right.covers(permission, instance, client, topic) for right in self.rights)

    @property
    def permissions(self) -> frozenset[Permission]:
        """What they may do somewhere: for showing or hiding buttons, never for deciding."""
        held = frozenset(one for right in self.rights for one in right.permissions)
        return held if self.scope is None else held & self.scope

    def client_patterns(self, instance: str, permission: Permission = Permission.VIEW) -> list[str] | None:
        """Name patterns of the clients they may see; None is every client, an empty list is none."""
        mine = self._rights_to(permission, instance)
        return None if mine is None else sorted({one.clients for one in mine if one.clients})

    def topic_patterns(self, instance: str, permission: Permission) -> list[str] | None:
        """The same for topics."""
        mine = self._rights_to(permission, instance)
        return None if mine is None else sorted({one.topics for one in mine if one.topics})

    def _rights_to(self, permission: Permission, instance: str) -> list[GrantedRight] | None:
        """The rights to do it within patterns; None when one of them is without a pattern."""
        if self.scope is not None and permission not in self.scope:
            return []
        mine = [
            one for one in self.rights if permission in one.permissions and one.instance in ("", instance)
        ]
        return None if any(not (one.clients or one.topics) for one in mine) else mine


def is_name_pattern(text: str) -> bool:
    """Whether a text can be a pattern of client names."""
    return len(text) <= MAX_NAME and NAME_CHARACTERS.issuperset(text.replace("*", ""))


def topic_within(pattern: str, asked: str) -> bool:
    """Whether everything that `asked` (a topic or a topic pattern) names is named by `pattern` too. "" names nothing."""
    if not pattern:
        return False
    if pattern == asked:
        return True
    try:
        allowed, wanted = TopicPattern.parse(pattern), TopicPattern.parse(asked)
    except ClientError:
        return False
    if wanted.exact is not None:
        return allowed.matches(asked)
    if pattern.startswith("~") or asked.startswith("~"):
        return False  # whether one expression lies within another isn't decided here: give that very pattern
    return _levels_within(pattern.split("."), asked.split("."))


def _levels_within(outer: list[str], inner: list[str]) -> bool:
    for number, level in enumerate(outer):
        if level == ">":
            return len(inner) > number and not (number == 0 and inner[0].startswith("$"))
        if number >= len(inner) or inner[number] == ">" or (level != "*" and level != inner[number]):
            return False
        if level == "*" and number == 0 and inner[0].startswith("$"):
            return False
    return len(outer) == len(inner)
