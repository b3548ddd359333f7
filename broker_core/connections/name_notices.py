"""Uniqueness of client names in a group: members notify each other of logons, and the newest logon stays.

Notices aren't entries of the group's log. They travel as the members' statuses do, many in one message, and
may get lost. Each member sends those of all its clients again whenever it has found the log. During a
partition a name may have a client on either side; only the side that reaches the log's quorum gets anything
stored. Publisher sequences are safe in any case: see `journal.publishers`.

The time of a logon is the member's time, moved ahead of every logon time it knows. So a client that logs on
after its member has received another's notice is newer, whatever the clocks show. A client that moves faster
than its notice may log on with an earlier time at a member whose clock is behind. So a member closes its
client only for a notice that answers this client's: the other member knows of it, and still has the newer
client. A name that belongs to a user stays that user's: the member that knows the owner objects, and the
other one closes its client.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

import msgspec

from broker_core.connections.connection_view import ConnectionView
from broker_core.connections.logons import LogonAuthenticator
from broker_core.connections.roster import ConnectionTable
from broker_core.names import LINK_PREFIX, SITE_PREFIX

MAX_NOTICES: Final = 1_000
"""Maximum number of notices in one message: some 60 KB."""


class LogonNotice(msgspec.Struct, frozen=True, array_like=True):
    """Notice that a client has logged on at a time (ns). `user`: its authenticated user, or "".

    With `objects` it says that the name belongs to `user`. `answers` is the time in the notice of an older
    client that it answers; 0: none.
    """

    name: str
    user: str
    at: int
    objects: bool = False
    answers: int = 0


class NoticeMessage(msgspec.Struct, frozen=True, array_like=True):
    """Message with notices of one member's process."""

    run: str
    notices: list[LogonNotice]


class NameNotices:
    """Name notices of one member: those to be sent, and the reactions to others'.

    `run` identifies its process.
    """

    def __init__(
        self, roster: ConnectionTable, logons: LogonAuthenticator, now_ns: Callable[[], int], run: str
    ) -> None:
        self._roster, self._logons, self._now_ns, self._run = roster, logons, now_ns, run
        self._latest = 0
        """Latest logon time that this member knows, ns."""
        self._unsent: deque[LogonNotice] = deque()
        self.send_requested = asyncio.Event()
        """Set while there are notices to send."""
        roster.on_logged_on = self.on_logged_on

    # Notices that this member sends.

    def on_logged_on(self, connection: ConnectionView, name: str) -> None:
        """Assign the logon time of a client that has logged on, and send a notice."""
        self._latest = max(self._now_ns(), self._latest + 1)
        connection.logged_on_at = self._latest
        self._send_for(name, connection)

    def send_all(self) -> None:
        """Send the notices of all clients again, because some may have been lost."""
        self._unsent.clear()
        for name, connection in self._roster.clients.items():
            self._send_for(name, connection)

    def next_message(self) -> bytes | None:
        """Return the next message; None when all notices were sent.

        Notices of connections that have ended meanwhile are left out: their clients may be at another member.
        """
        notices: list[LogonNotice] = []
        while self._unsent and len(notices) < MAX_NOTICES:
            notice = self._unsent.popleft()
            client = self._roster.clients.get(notice.name)
            if notice.objects or (client is not None and client.logged_on_at == notice.at):
                notices.append(notice)
        if not notices:
            self.send_requested.clear()
            return None
        return msgspec.json.encode(NoticeMessage(self._run, notices))

    def _send_for(self, name: str, connection: ConnectionView, answers: int = 0) -> None:
        if not connection.has_generated_name and _is_shared(name):
            user, at = _proven_user(connection), connection.logged_on_at
            self._send(LogonNotice(name, user, at, answers=answers))

    def _send(self, notice: LogonNotice) -> None:
        self._unsent.append(notice)
        self.send_requested.set()

    # Notices that other members send.

    def receive(self, content: bytes) -> None:
        """Process a message of any member."""
        try:
            message = msgspec.json.decode(content, type=NoticeMessage)
        except msgspec.DecodeError:
            return  # not a member's message; ignored
        if message.run == self._run:
            return
        for notice in message.notices:
            self._latest = max(self._latest, notice.at)
            if _is_shared(notice.name):
                self._process_notice(notice, newer_when_equal=message.run > self._run)

    def _process_notice(self, notice: LogonNotice, *, newer_when_equal: bool) -> None:
        """React to a notice.

        Object, claim the name, close the own client if it is older for certain, or answer with its logon.
        """
        client, owner = self._roster.clients.get(notice.name), self._logons.owner_of(notice.name)
        if not notice.objects and owner not in (None, notice.user):
            self._send(LogonNotice(notice.name, owner or "", self._latest, objects=True))
            return
        if notice.user:
            self._logons.owners.claim(notice.name, notice.user)
        if client is None or client.has_generated_name:
            return
        if notice.objects:
            if _proven_user(client) != notice.user:
                client.close("name_taken", f"{notice.name} is another user's.", "Use a name of your own.")
            return
        is_older = (notice.at, newer_when_equal) > (client.logged_on_at, not newer_when_equal)
        if is_older and notice.answers == client.logged_on_at:
            client.close(
                "client_replaced",
                f"Another client logged on as {notice.name}, through another member of the group.",
            )
        else:
            self._send_for(notice.name, client, answers=0 if is_older else notice.at)


def _proven_user(connection: ConnectionView) -> str:
    return connection.identity.resume_key if connection.identity is not None else ""


def _is_shared(name: str) -> bool:
    """Return whether a name must be unique in the group. Links are exempt: each member has its own.

    Links' sequences are safe with several connections.
    """
    return not name.startswith((LINK_PREFIX, SITE_PREFIX))
