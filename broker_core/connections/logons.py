"""Logons: authentication of clients, ownership of client names, and names that a policy bans for a while.

A transport without authentication accepts every client and gives it the rights of an unauthenticated one.
Other transports require a token, a password or the certificate of the TLS handshake. Passwords are checked in
threads, and failed attempts are answered with a delay. An error never says which part was wrong.

`NameBanList`: clients that were disconnected by a policy reconnect immediately, so their names are refused
for a while.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import structlog

from broker_core.access import (
    AccessPolicy,
    FailedLogonTracker,
    RefusedLogonLog,
    VerifiedPasswordCache,
    verify_password,
)
from broker_core.config import PolicyDocument
from broker_core.config.transports import transports_to_close
from broker_core.connections.admission import peer_address
from broker_core.connections.connection_view import ClientIdentity, ConnectionView
from broker_core.connections.name_owners import ClientNameOwners
from broker_core.connections.roster import ConnectionTable
from broker_core.delivery.ports import InstanceResources
from broker_core.errors import ClientError
from broker_core.names import BROKER_NAME, LINK_PREFIX, SITE_PREFIX
from broker_core.protocols import commands
from broker_core.slow_clients.evaluate.decision import Decision

log = structlog.get_logger("sluice.logons")
MAX_CHECKERS = 2
"""Number of passwords that are checked at the same time. Each check uses a core and 16 MiB."""
MAX_WAITING = 200
"""Maximum number of passwords that wait for a check. Further logons are refused with a retryable error."""
_NOBODY = f"scrypt$16384$8$1${'A' * 22}==${'A' * 86}=="
"""Hash that is checked for an unknown user. So the response time doesn't reveal whether the user exists."""


class LogonAuthenticator:
    """Authenticator of one instance's clients."""

    def __init__(
        self,
        facilities: InstanceResources,
        roster: ConnectionTable,
        policy: PolicyDocument,
        owners: ClientNameOwners,
    ) -> None:
        self.owners = owners
        self._clock = facilities.clock
        self._spawn = facilities.spawn
        self._roster = roster
        self._access = AccessPolicy(policy)
        self._attempts = FailedLogonTracker()
        self.refusals = RefusedLogonLog()
        """Refused logons for the audit. The control plane fetches and stores them."""
        self._verified = VerifiedPasswordCache()
        self._checkers = ThreadPoolExecutor(MAX_CHECKERS, "passwords")
        self._checker_slots = asyncio.Semaphore(MAX_CHECKERS)
        self._waiting = 0

    def apply(self, policy: PolicyDocument) -> None:
        """Put a policy revision in force. Clients whose rights change are closed and must log on again."""
        self._access = AccessPolicy(policy)
        for connection in self._changed(self._access):
            connection.close("access_changed", "Your permissions were changed.", "Log on again.")

    def _changed(self, access: AccessPolicy) -> Iterator[ConnectionView]:
        """Yield the connections that would have other rights.

        A removed transport closes its clients itself, so they are left out.
        """
        for connection in self._roster:
            identity, transport = connection.identity, connection.transport
            if identity is None or access.authentication(transport) is None:
                continue
            if access.rights(transport, identity.resume_key).basis != identity.rights.basis:
                yield connection

    def close_unauthorized(self, before: PolicyDocument, after: PolicyDocument) -> dict[str, str]:
        """Return the clients that a policy change would close, by name, with the close code.

        Raises:
            OperatorError: bad_policy, when the new access policy is invalid.
        """
        closed = transports_to_close(before.transports, after.transports)
        codes = {
            one.name: "transport_closed" for one in self._roster.clients.values() if one.transport in closed
        }
        codes |= {
            one.name: "access_changed"
            for one in self._changed(AccessPolicy(after))
            if one.name in self._roster.clients
        }
        return dict(sorted(codes.items()))

    def close(self) -> None:
        """Stop checking passwords."""
        self._checkers.shutdown(wait=False, cancel_futures=True)

    def identify(self, connection: ConnectionView, command: commands.Logon) -> ClientIdentity | None:
        """Return a client's identity; None if that takes a while.

        Then `connection.on_identified` or `connection.fail` is called later.

        Raises:
            ClientError: transport_closed, too_many_attempts or too_many_logons.
        """
        try:
            return self._identify(connection, command)
        except ClientError as error:
            self._record_refusal(connection, command, error)
            raise

    def _identify(self, connection: ConnectionView, command: commands.Logon) -> ClientIdentity | None:
        """Authenticate a client by the transport's method, without an entry in the log of refused logons."""
        proof = self._access.authentication(connection.transport)
        if proof is None:
            raise ClientError("transport_closed", f"The transport {connection.transport} is being closed.")
        self._roster.pending_connections.check_logon_rate(connection.sink.remote, self._clock.monotonic_ms())
        if proof == "none":
            return ClientIdentity(command.user or "", False, self._access.rights(connection.transport, ""))
        if proof != "password":
            # Before the lock-out check: failures of others at this address don't matter, and this look-up
            # costs nothing.
            user = self._user(connection, command, proof)
            if user is not None and command.user in (None, user):
                return self._accept(connection, command, user)
        wait = self._attempts.wait_ms(_address(connection), command.user or "", self._clock.monotonic_ms())
        if wait:
            raise ClientError(
                "too_many_attempts",
                "Too many logons from your address have failed.",
                "Wait, then use the right secret.",
                retry_after_ms=wait,
            )
        if proof == "password":
            if self._is_verified(command):
                return self._accept(connection, command, command.user or "")
            self._start_check(connection, command)
        else:
            self._spawn(self._refuse(connection, command, proof))
        return None

    def check_name(
        self, connection: ConnectionView, command: commands.Logon, identity: ClientIdentity
    ) -> None:
        """Check that a client may use a name, and claim the name for its user.

        An owned name is for that user alone.

        Raises:
            ClientError: bad_client_name, name_taken or link_in_use.
        """
        try:
            self._check_name(connection, command.name, identity)
        except ClientError as error:
            self._record_refusal(connection, command, error)
            raise

    def _check_name(self, connection: ConnectionView, name: str, identity: ClientIdentity) -> None:
        """Check a name and claim it, without an entry in the log of refused logons."""
        if not self._access.may_use_client_name(identity.resume_key, name):
            raise ClientError(
                "bad_client_name",
                f"The user {identity.user} may not log on as {name}.",
                "The user's `clients` in the access policy say which names it may use.",
            )
        before = self._roster.clients.get(name)
        if name.startswith(LINK_PREFIX) and connection.transport != BROKER_NAME:
            raise ClientError(
                "bad_client_name",
                f"Names that begin with {LINK_PREFIX} are the broker's own links'.",
                "Use another name.",
            )
        if name.startswith(SITE_PREFIX):
            self._check_link(name, identity, before)
        holder = before.identity if before is not None else None
        if holder is not None and holder.proven and holder.resume_key != identity.resume_key:
            raise ClientError(
                "name_taken", f"A client of another user is connected as {name}.", "Use a name of your own."
            )
        if self.owner_of(name) not in (None, identity.resume_key):
            raise ClientError("name_taken", f"{name} is another user's.", "Use a name of your own.")
        if identity.proven and not connection.has_generated_name:
            self.owners.claim(name, identity.resume_key)

    def owner_of(self, name: str) -> str | None:
        """Return the user who owns a client name; None when any user may use it."""
        owner = self.owners.owner_of(name)
        return owner if owner is not None and self._access.is_user_allowed(owner, name) else None

    def _check_link(self, name: str, identity: ClientIdentity, before: ConnectionView | None) -> None:
        """Check that a user may connect as another instance's link, and that the link isn't connected.

        A link's records count as the other instance's, so its user must be authenticated and entitled to it.
        """
        if not (identity.proven and self._access.may_connect_link(identity.resume_key, name)):
            raise ClientError(
                "bad_client_name",
                f"{name} is another instance's link, and this user may not be it.",
                f"The user's `clients` in the access policy must name {name}, on a transport with "
                "authentication.",
            )
        if before is not None:
            raise ClientError(
                "link_in_use",
                f"{name} is connected, from {before.sink.remote}.",
                "Only one link per instance can be connected. The next member of the group takes over "
                "after a disconnect.",
            )

    def _user(self, connection: ConnectionView, command: commands.Logon, proof: str) -> str | None:
        """Return the user of a token or of a certificate; None if there is none."""
        if proof == "token":
            return self._access.find_user_by_token(command.token) if command.token else None
        return self._access.find_user_by_certificate(connection.sink.peer_names)

    def _accept(self, connection: ConnectionView, command: commands.Logon, user: str) -> ClientIdentity:
        """Return the identity of an authenticated user, and reset the failure count."""
        self._attempts.record_success(_address(connection), command.user or "")
        return ClientIdentity(user, True, self._access.rights(connection.transport, user))

    def _start_check(self, connection: ConnectionView, command: commands.Logon) -> None:
        """Start a password check in a thread."""
        if self._waiting >= MAX_WAITING:
            raise ClientError(
                "too_many_logons",
                "Too many clients are logging on at present.",
                "Try again in a moment.",
                retry_after_ms=1_000,
            )
        self._waiting += 1
        # It is limited by MAX_WAITING from now on. As a pending connection, newcomers could displace it.
        self._roster.pending_connections.mark_authenticated(connection)
        self._spawn(self._check(connection, command))

    def _is_verified(self, command: commands.Logon) -> bool:
        """Return whether this password was verified before."""
        user = command.user or ""
        known = self._access.password_hash(user)
        return known is not None and self._verified.is_verified(user, command.password or "", known)

    async def _check(self, connection: ConnectionView, command: commands.Logon) -> None:
        """Check a password in a thread, then continue the logon or refuse it."""
        user, password = command.user or "", command.password or ""
        try:
            async with self._checker_slots:
                if connection.is_closed:
                    return
                known = self._access.password_hash(user)
                # another client of this user may have been checked meanwhile
                matches = self._is_verified(command) or await asyncio.get_running_loop().run_in_executor(
                    self._checkers, verify_password, password, known or _NOBODY
                )
        finally:
            self._waiting -= 1
        # Checked again, because a policy revision may have come meanwhile.
        if matches and known is not None and known == self._access.password_hash(user):
            self._verified.add(user, password, known)
            if not connection.is_closed:
                connection.on_identified(command, self._accept(connection, command, user))
            return
        if not connection.is_closed:
            self._roster.pending_connections.add_pending(connection)
        await self._refuse(connection, command, "password")

    async def _refuse(self, connection: ConnectionView, command: commands.Logon, proof: str) -> None:
        """Refuse a logon after a delay that grows with the failures."""
        delay = self._attempts.record_failure(
            _address(connection), command.user or "", self._clock.monotonic_ms()
        )
        log.warning(
            "logon_refused",
            transport=connection.transport,
            remote=connection.sink.remote,
            client=command.name,
            user=command.user,
            proof=proof,
        )
        error = ClientError(
            "bad_logon",
            f"This transport requires a {proof}, and yours was rejected.",
            "Request one from the operator.",
        )
        self._record_refusal(connection, command, error)
        await asyncio.sleep(delay / 1_000)
        connection.fail(commands.with_command(error, command))

    def _record_refusal(
        self, connection: ConnectionView, command: commands.Logon, error: ClientError
    ) -> None:
        """Add an entry to the log of refused logons."""
        minute = self._clock.now_ns() // 60_000_000_000
        self.refusals.add(
            minute,
            _address(connection),
            connection.transport,
            error.code,
            command.user or "",
            command.name or "",
        )


def _address(connection: ConnectionView) -> str:
    return peer_address(connection.sink.remote)


MAX_REFUSED: Final = 10_000
"""Maximum number of banned names. For one more the ban that ends first is lifted early."""


class NameBanList:
    """Client names that a policy banned for a while. Times are monotonic milliseconds."""

    def __init__(self) -> None:
        self._until: dict[str, tuple[int, str]] = {}

    def add(self, name: str, decision: Decision, now_ms: int) -> None:
        """Ban a name for the decision's `for_ms`."""
        self._until[name] = (now_ms + decision.for_ms, decision.reason.value)
        if len(self._until) > MAX_REFUSED:
            del self._until[min(self._until, key=lambda known: self._until[known][0])]

    def check(self, name: str, now_ms: int) -> None:
        """Check that a name isn't banned.

        Raises:
            ClientError: name_refused, with retry_after_ms.
        """
        until, reason = self._until.get(name, (0, ""))
        if until > now_ms:
            raise ClientError(
                "name_refused",
                f"{name} was disconnected ({reason}) and may reconnect in {until - now_ms} ms.",
                "Wait as long as retry_after_ms says.",
                retry_after_ms=until - now_ms,
                reason=reason,
            )
        self._until.pop(name, None)
