"""Publisher sessions: each publisher's newest numbers in the log, and who may add to them. Pure.

A publisher's number counts within its *session*, an id that the client makes with its publish store. A number
alone identifies nothing: two clients of one name may both have a message 7. So the log stores, for each name,
its newest sessions and the newest number of each.

* The session that published last *holds* the name. Its numbers ascend; a number up to its newest one is a
  repeat.
* Another session takes over the name with the first numbered batch of a connection, its *claim*, if that
  starts above the holder's newest number. A session to which the broker reported an
  older number, or that has lost the name, is superseded: nothing of its batch is stored.
* A session whose client has proven its identity takes over the name from one that hasn't, whatever that one's
  number is.

Every decision follows from the records of the log before it. So each member of a group decides the same, also
after a restart.
"""

from __future__ import annotations

from enum import Enum

import msgspec

from broker_core.batch import PROVEN

MAX_PUBLISHERS = 131_072
"""Maximum number of remembered names: some 30 MB of memory, and 6 MB written when a segment is sealed."""
MAX_SESSIONS = 4
"""Maximum number of remembered sessions per name.

More than one, so that clients that take over a name from each other still know which of their records are
stored.
"""


class SessionNumber(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Publisher session (with the bit PROVEN) and its newest number in the log."""

    session: int
    number: int
    """Newest publisher sequence of the session in the log."""


Sessions = tuple[SessionNumber, ...]
"""Sessions of one name, the holder first."""


class Refusal(Enum):
    """Reasons why nothing of a numbered batch is stored."""

    REPEATED = "everything in it is stored already"
    SUPERSEDED = "another session holds the name"


def number_of(sessions: Sessions, session: int) -> int:
    """Return the newest number of a session; 0 for an unknown session."""
    for one in sessions:
        if one.session == session:
            return one.number
    return 0


def newest_number(sessions: Sessions) -> int:
    """Return the number above which another session has to start; 0 when the name is unknown."""
    return sessions[0].number if sessions else 0


def may_ignore(sessions: Sessions, session: int) -> bool:
    """Whether a session may start below the holder's number: only its own identity is proven."""
    return bool(sessions) and session & PROVEN > sessions[0].session & PROVEN


def may_be_forgotten(sessions: Sessions, session: int) -> bool:
    """Whether an unknown session may have been forgotten: the name already has MAX_SESSIONS sessions.

    The log can't distinguish such a session from a new one, or from one whose batches never arrived.
    """
    return len(sessions) == MAX_SESSIONS and all(one.session != session for one in sessions)


def judge(sessions: Sessions, session: int, first: int, last: int, *, claims: bool) -> int | Refusal:
    """Return the number above which the records of a batch are new, or the reason why none is stored.

    Args:
        sessions: Sessions of the publisher's name.
        session: Session of the batch.
        first: First publisher sequence of the batch.
        last: Last publisher sequence of the batch.
        claims: Whether it is the first numbered batch of its connection.
    """
    if sessions and sessions[0].session == session:  # the common case
        highest = sessions[0].number
        return highest if last > highest else Refusal.REPEATED
    highest = number_of(sessions, session)
    if last <= highest:
        return Refusal.REPEATED
    if not sessions:
        return highest
    if claims and (first > sessions[0].number or may_ignore(sessions, session)):
        return highest
    return Refusal.SUPERSEDED


def with_number(sessions: Sessions, session: int, number: int) -> Sessions:
    """Return the sessions after `session` has published up to `number`, and so holds the name."""
    if sessions and sessions[0].session == session:
        return (SessionNumber(session, number), *sessions[1:])
    others = [one for one in sessions if one.session != session]
    return (SessionNumber(session, number), *others[: MAX_SESSIONS - 1])


class Publishers(dict[str, Sessions]):
    """Sessions of each publisher, by name. The most recent publisher is last.

    Beyond MAX_PUBLISHERS names the one that has been silent longest is forgotten.
    """

    def note(self, name: str, session: int, number: int) -> None:
        """Record that a session has published up to `number`, and now holds the name.

        A number never decreases.
        """
        sessions = self.pop(name, ())
        if not sessions or sessions[0].session != session:
            sessions = with_number(sessions, session, max(number, number_of(sessions, session)))
        elif number > sessions[0].number:
            sessions = (SessionNumber(session, number), *sessions[1:])
        self[name] = sessions
        if len(self) > MAX_PUBLISHERS:
            del self[next(iter(self))]

    def merge_sessions(self, name: str, sessions: Sessions) -> None:
        """Record the sessions of a name that were found later in the log, for example in a later segment."""
        for one in reversed(sessions):
            self.note(name, one.session, one.number)

    def numbers(self) -> dict[str, int]:
        """Return the newest number of each publisher."""
        return {name: newest_number(sessions) for name, sessions in self.items()}
