"""Publisher sessions: which numbers of a publisher are in the log, and who may add to them.

A publisher's number counts within its *session*, an id that the client makes with its publish store. A
number alone says nothing: two clients of one name may both have a message 7. So the log keeps, for each
name, its newest sessions and the newest number of each.

* The session that published last *holds* the name. Its numbers ascend; a number up to its newest one is a
  repeat.
* Another session takes the name with the first numbered batch of a connection, its *claim*, if that starts
  above the holder's newest number. A session that was told an older number, or that lost the name, is
  superseded: nothing of its batch is stored.
* A session whose client has proven who it is takes the name from one that hasn't, whatever that one's
  number is.

Every decision follows from the records of the log before it. So each member of a group decides the same,
also after a restart.
"""

from __future__ import annotations

from enum import Enum

import msgspec

from broker_core.batch import PROVEN

MAX_PUBLISHERS = 131_072
"""Some 30 MB of memory, and 6 MB written when a segment is sealed."""
MAX_SESSIONS = 4
"""Sessions of one name that are remembered: clients that take a name from each other in turn still know
what of theirs is stored."""


class SessionNumber(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A publisher session (with the bit PROVEN) and its newest number in the log."""

    session: int
    number: int


Sessions = tuple[SessionNumber, ...]
"""The sessions of one name, the holder first."""


class Refusal(Enum):
    """Why nothing of a numbered batch is stored."""

    REPEATED = "everything in it is stored already"
    SUPERSEDED = "another session holds the name"


def number_of(sessions: Sessions, session: int) -> int:
    """Return the newest number of a session, 0 when nothing of it is known."""
    for one in sessions:
        if one.session == session:
            return one.number
    return 0


def newest_number(sessions: Sessions) -> int:
    """Return the number that another session has to start above; 0 when the name is unknown."""
    return sessions[0].number if sessions else 0


def may_ignore(sessions: Sessions, session: int) -> bool:
    """Whether a session doesn't have to start above the holder's number: it has proven to be its user, and
    the holder hasn't."""
    return bool(sessions) and session & PROVEN > sessions[0].session & PROVEN


def may_be_forgotten(sessions: Sessions, session: int) -> bool:
    """Whether a session that isn't among those of its name may have been: they are as many as are kept.

    A log can't tell such a session from a new one, or from one whose client has never reached it.
    """
    return len(sessions) == MAX_SESSIONS and all(one.session != session for one in sessions)


def judge(sessions: Sessions, session: int, first: int, last: int, *, claims: bool) -> int | Refusal:
    """Return the number above which the records of a batch are new, or why none is stored.

    `first` and `last` are the batch's publisher sequences; `claims`: it is the first numbered batch of its
    connection.
    """
    if sessions and sessions[0].session == session:  # almost always
        own = sessions[0].number
        return own if last > own else Refusal.REPEATED
    own = number_of(sessions, session)
    if last <= own:
        return Refusal.REPEATED
    if not sessions:
        return own
    if claims and (first > sessions[0].number or may_ignore(sessions, session)):
        return own
    return Refusal.SUPERSEDED


def with_number(sessions: Sessions, session: int, number: int) -> Sessions:
    """Return the sessions after `session` has published up to `number`, and so holds the name."""
    if sessions and sessions[0].session == session:
        return (SessionNumber(session, number), *sessions[1:])
    others = [one for one in sessions if one.session != session]
    return (SessionNumber(session, number), *others[: MAX_SESSIONS - 1])


class Publishers(dict[str, Sessions]):
    """The sessions of each publisher. The publisher that published last is at the end; beyond the limit the
    longest silent are forgotten."""

    def note(self, name: str, session: int, number: int) -> None:
        """Record that a session, which now holds the name, has published up to a number. A session's number
        never goes back."""
        sessions = self.pop(name, ())
        if not sessions or sessions[0].session != session:
            sessions = with_number(sessions, session, max(number, number_of(sessions, session)))
        elif number > sessions[0].number:
            sessions = (SessionNumber(session, number), *sessions[1:])
        self[name] = sessions
        if len(self) > MAX_PUBLISHERS:
            del self[next(iter(self))]

    def note_all(self, name: str, sessions: Sessions) -> None:
        """Record what was found of a name behind all that is known, for example in a later segment."""
        for one in reversed(sessions):
            self.note(name, one.session, one.number)

    def numbers(self) -> dict[str, int]:
        """Return the newest number of each publisher."""
        return {name: newest_number(sessions) for name, sessions in self.items()}
