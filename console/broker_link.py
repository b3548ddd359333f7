"""Requests to running brokers: the control protocol, JSON objects one per line, over a Unix socket or TLS.

Each call opens a connection. Calls are rare, and a restarted broker needs no special handling. After a
network failure the next attempt is delayed, so that callers do not wait for the same broker repeatedly.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import ssl
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar, cast

import msgspec
from django.conf import settings

from broker_core.control import exit_report
from broker_core.control.link_certificate import WARN_DAYS
from broker_core.documents.requests import PROTOCOL, Hello, Request, Welcome, answer_type, request_name
from broker_core.documents.stalls import CAUSES
from broker_core.errors import OperatorError, SluiceError
from broker_core.stored_stalls import find_lasting_stall
from console import group_answers
from console.broker_addresses import MAX_BROKERS, BrokerAddress

MAX_ANSWER_BYTES = 64 * 1024 * 1024
"""Maximum bytes of an answer.

10,000 clients with subscriptions need about 8 MB; more is not a broker's answer.
"""
MAX_TOKEN_FILE = 64 * 1024
"""Maximum bytes of the token file."""
DAY_S = 86_400
CONNECT_S = 2.0
"""Seconds to connect to another machine and verify its certificate and token."""
MIN_WAIT_S, MAX_WAIT_S = 0.5, 10.0
"""Minimum and maximum seconds between two attempts to reach a broker over the network. The delay doubles."""
MAX_PARALLEL_REQUESTS = 16
"""Maximum brokers asked in parallel."""
logger = logging.getLogger(__name__)
T = TypeVar("T")


class BrokerUnavailable(OperatorError):
    """Error of a broker that does not answer.

    `broker_away`: it is not running, or too busy. `broker_failed`: it ended during the request, or its
    answer is invalid; it may have carried out the request. Over the network also `broker_unproven`,
    `broker_other`, `control_refused` and `bad_control_link`.
    """


class BrokerUnreachable(BrokerUnavailable):
    """Error of a broker that did not receive the request, so another broker may be asked instead."""


class RequestChannel(Protocol):
    """Channel for requests to a broker, or to all brokers that carry an instance."""

    def call(self, request: Request[T], *, timeout_s: float | None = None) -> T:
        """Send a request and return the answer within `timeout_s`.

        Raises the broker's error, or BrokerUnavailable.
        """


class BrokerLink:
    """Channel to one broker."""

    def __init__(self, address: BrokerAddress | Path, timeout_s: float | None = None) -> None:
        self.address = BrokerAddress(address.stem, "", address) if isinstance(address, Path) else address
        self.timeout_s = settings.SLUICE_CONTROL_TIMEOUT_S if timeout_s is None else timeout_s

    def call(self, request: Request[T], *, timeout_s: float | None = None) -> T:
        """Send a request and return the broker's answer.

        `timeout_s` limits the whole call. Raises the broker's own error, or BrokerUnavailable.
        """
        allowed = timeout_s or self.timeout_s
        if self.address.path is not None:
            return self._request(request, allowed)
        _waits.check(self.address)
        try:
            answer = self._request(request, allowed)
        except BrokerUnavailable as away:
            _waits.record_failure(self.address, away)
            raise
        except SluiceError:
            _waits.record_success(self.address)
            raise
        _waits.record_success(self.address)
        return answer

    def _request(self, request: Request[T], allowed: float) -> T:
        """Send the request on a new connection and return the decoded answer."""
        line, deadline = msgspec.json.encode(request) + b"\n", time.monotonic() + allowed
        with contextlib.closing(self._proven(deadline)) as connection:
            try:
                lines = _LineSocket(connection, deadline)
                lines.send(line)
                answer = lines.read()
            except TimeoutError as late:
                late_by = f"did not answer `{request_name(request)}` within {allowed:g} s"
                raise self._stalled(late_by) or self._away(late_by) from late
            except OSError as problem:
                raise self._failed(
                    f"closed the connection during `{request_name(request)}`: {problem}"
                ) from problem
        made: T = self._result(answer, _RESULTS[type(request)])
        return made

    def _proven(self, deadline: float) -> socket.socket:
        """Return a connection to the broker, whose identity was verified. Raises BrokerUnreachable."""
        try:
            if self.address.path is None:
                return self._connect_tls(deadline)
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                connection.settimeout(_seconds_until(deadline))
                connection.connect(str(self.address.path))
            except BaseException:
                connection.close()
                raise
            return connection
        except TimeoutError as late:
            raise self._unreached(f"did not answer within {self._patience_s(deadline):g} s") from late
        except ssl.SSLCertVerificationError as unproven:
            raise self._unproven(unproven.verify_message) from unproven
        except ssl.SSLError as problem:
            raise self._unreached(f"doesn't speak TLS as it should: {problem.reason or problem}") from problem
        except OSError as problem:
            raise self._unreached(f"can't be reached: {problem.strerror or problem}") from problem

    def _patience_s(self, deadline: float) -> float:
        """Return the seconds for connecting."""
        return CONNECT_S if self.address.path is None else self.timeout_s

    def _connect_tls(self, deadline: float) -> socket.socket:
        """Return a TLS connection on which the broker accepted this console's token."""
        address, context, token = self.address, _context(), _token_for(self.address)
        until = min(deadline, time.monotonic() + CONNECT_S)
        connection = socket.create_connection((address.host, address.port), _seconds_until(until))
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.settimeout(_seconds_until(until))
            connection = wrapped = context.wrap_socket(connection, server_hostname=address.host)
            _note_end(address, wrapped)
            lines = _LineSocket(connection, until)
            lines.send(msgspec.json.encode(Hello(token=token)) + b"\n")
            self._check_identity(self._result(lines.read(), _WELCOMES))
        except BaseException:
            connection.close()
            raise
        return connection

    def _check_identity(self, welcome: Welcome) -> None:
        """Raise BrokerUnreachable `broker_other` for another release, or another broker than configured."""
        address = self.address
        if welcome.protocol != PROTOCOL:
            raise BrokerUnreachable(
                "broker_other",
                f"The broker {address.name} speaks release {welcome.protocol} of the link, "
                f"and this console {PROTOCOL}.",
                "Run the same release of Sluice on both machines.",
                instance=address.name,
            )
        if (welcome.instance, welcome.member) != (address.instance, address.member):
            named = BrokerAddress(welcome.instance, welcome.member).name
            raise BrokerUnreachable(
                "broker_other",
                f"The broker at {address.endpoint} is {named}, not {address.name}.",
                "Correct SLUICE_BROKERS here, or SLUICE_INSTANCE and SLUICE_GROUP_MEMBER there.",
                instance=address.name,
            )

    def _result(self, line: bytes, decoder: msgspec.json.Decoder[Any]) -> Any:
        """Return the result in an answer, or raise its error."""
        try:
            answer = _ANSWERS.decode(line)
            if answer.ok:
                return decoder.decode(answer.result)
            if answer.error is None:
                raise ValueError("neither a result nor an error")
        except (msgspec.DecodeError, ValueError) as problem:
            raise self._failed("sent an invalid reply; it may run another release") from problem
        error = answer.error
        if error.get("code") == "control_refused":
            raise BrokerUnreachable(
                "control_refused",
                f"The broker {self.address.name} doesn't know this console's token.",
                str(error.get("fix", "")),
                instance=self.address.name,
            )
        raise OperatorError.from_dict(
            str(error.get("code", "internal_error")),
            str(error.get("message", "The broker refused.")),
            str(error.get("fix", "")),
            error.get("details"),
        )

    def _unreached(self, problem: str) -> BrokerUnreachable:
        """Return the error for a broker that was not reached, with its exit report if there is one."""
        name, path = self.address.name, self.address.path
        words = exit_report.read_exit_report(path) if path is not None else None
        if words is not None:
            sentence = (
                f"The broker {name} {problem}. It stopped or couldn't start ({words.code}): {words.message}"
            )
            return BrokerUnreachable("broker_away", sentence, words.fix, instance=name, ended=words.code)
        return BrokerUnreachable(
            "broker_away", f"The broker {name} {problem}.", self._advice(), instance=name
        )

    def _stalled(self, problem: str) -> BrokerUnavailable | None:
        """Return the error for a local broker whose event loop is stalled, according to its stall file;
        else None.
        """
        stall = find_lasting_stall(self.address.path) if self.address.path is not None else None
        if stall is None:
            return None
        name, text = self.address.name, CAUSES[stall.cause]
        since = time.strftime("%H:%M:%S UTC", time.gmtime(stall.at / 1_000))
        sentence = (
            f"The broker {name} {problem}. Its event loop has been blocked since {since}: {text.meaning}"
        )
        return BrokerUnavailable("broker_away", sentence, text.fix, instance=name, cause=stall.cause)

    def _away(self, problem: str) -> BrokerUnavailable:
        """Return the error for a broker that did not answer in time."""
        name = self.address.name
        return BrokerUnavailable(
            "broker_away", f"The broker {name} {problem}.", self._advice(), instance=name
        )

    def _advice(self) -> str:
        """Return the advice for a broker that does not answer."""
        if self.address.path is not None:
            return "Check that the broker runs (`manage.py runbroker` or `make up`), and read its log."
        return (
            f"Check that the broker runs on its machine, listens at {self.address.endpoint} "
            "(SLUICE_CONTROL_LISTEN), and is reachable."
        )

    def _unproven(self, problem: str) -> BrokerUnreachable:
        """Return the error for a broker whose certificate is invalid."""
        return BrokerUnreachable(
            "broker_unproven",
            f"The server at {self.address.endpoint} can't prove that it is {self.address.name}: {problem}.",
            "Renew the certificate there. Replace the files of SLUICE_CONTROL_CERTIFICATE and "
            "SLUICE_CONTROL_KEY; the broker loads them automatically."
            if "expired" in problem
            else f"Use a certificate for {self.address.host} from an authority in "
            f"{settings.SLUICE_BROKERS_CA} (SLUICE_BROKERS_CA).",
            instance=self.address.name,
        )

    def _failed(self, problem: str) -> BrokerUnavailable:
        """Return the error for a broker that ended during a request or sent an invalid answer."""
        fix = "Read the broker's log, and check whether it executed the request."
        name = self.address.name
        return BrokerUnavailable("broker_failed", f"The broker {name} {problem}.", fix, instance=name)


@dataclass(frozen=True, slots=True)
class BrokerAnswer(Generic[T]):
    """Answer of one broker, or the error."""

    address: BrokerAddress
    answer: T | None = None
    error: SluiceError | None = None

    @property
    def member(self) -> str:
        """Member that answered; "" for a broker without a group."""
        return self.address.member


class GroupLink:
    """Channel to the members of a group.

    It asks them in parallel and merges the answers (`group_answers`).
    """

    def __init__(self, links: Sequence[BrokerLink]) -> None:
        self._links = links

    def call(self, request: Request[T], *, timeout_s: float | None = None) -> T:
        """Send a request to the members that it concerns; return the merged answer.

        Raises a member's error if none succeeded, but BrokerUnavailable if any member was unavailable.
        """
        if isinstance(request, group_answers.ANY_ONE):
            return self._first(cast("Request[T]", request), timeout_s)  # mypy narrows the type to a union
        addresses = [link.address for link in self._links]
        replies = ask_brokers(addresses, group_answers.request_for_member(request), timeout_s=timeout_s)
        answers = [one.answer for one in replies if one.answer is not None]
        if isinstance(request, group_answers.COMBINED):
            _note_unreached(replies)
        if not answers:
            errors = [one.error for one in replies if one.error is not None]
            raise next((one for one in errors if isinstance(one, BrokerUnavailable)), errors[0])
        made: T = group_answers.merge_answers(request, answers)
        return made

    def _first(self, request: Request[T], timeout_s: float | None) -> T:
        """Return the answer of the first reachable member.

        If a member may have carried out the request, its error is raised and no other member is asked.
        """
        away: BrokerUnreachable | None = None
        for link in self._links:
            try:
                return link.call(request, timeout_s=timeout_s)
            except BrokerUnreachable as problem:
                away = away or problem
        assert away is not None
        raise away


_unreached: ContextVar[dict[BrokerAddress, SluiceError] | None] = ContextVar("unreached", default=None)
"""Members that did not answer, collected for the current context."""


@contextmanager
def collect_unreachable() -> Iterator[dict[BrokerAddress, SluiceError]]:
    """Collect the members that did not answer requests to all members, with the errors.

    Enclosing blocks collect them too.
    """
    found: dict[BrokerAddress, SluiceError] = {}
    outer = _unreached.get()
    token = _unreached.set(found)
    try:
        yield found
    finally:
        _unreached.reset(token)
        if outer is not None:
            outer.update(found)


def _note_unreached(replies: Sequence[BrokerAnswer[Any]]) -> None:
    """Add the members that did not answer to those collected by `collect_unreachable`."""
    noted = _unreached.get()
    if noted is not None:
        noted.update({one.address: one.error for one in replies if one.error is not None})


def addresses_of(instance_name: str) -> tuple[BrokerAddress, ...]:
    """Return the brokers that carry an instance: from SLUICE_BROKERS, else the one on this machine."""
    listed = tuple(one for one in settings.SLUICE_BROKERS if one.instance == instance_name)
    return listed or (
        BrokerAddress(instance_name, "", settings.SLUICE_RUN_DIRECTORY / f"{instance_name}.sock"),
    )


def members_of(instance_name: str) -> tuple[str, ...]:
    """Return the names of an instance's members; ("",) for a broker without a group."""
    return tuple(one.member for one in addresses_of(instance_name))


def is_on_this_machine(instance_name: str, member: str = "") -> bool:
    """Return whether the broker (in a group `member`, or the first) and its files are on this machine."""
    found = addresses_of(instance_name)
    return next((one for one in found if one.member == member), found[0]).path is not None


def link_to(instance_name: str, member: str = "") -> RequestChannel:
    """Return a channel to an instance: in a group to all members, or to `member`.

    Raises OperatorError `unknown_member`.
    """
    found = addresses_of(instance_name)
    if member and member != _here(instance_name):
        found = tuple(one for one in found if one.member == member)
        if not found:
            raise OperatorError(
                "unknown_member",
                f"{instance_name} has no member {member[:80]!r} here.",
                "Members: "
                f"{', '.join(filter(None, members_of(instance_name))) or 'none, because it is standalone'} "
                "(SLUICE_BROKERS).",
            )
    elif member:
        matching = tuple(one for one in found if one.member == member)
        found = matching or found[:1]
    return BrokerLink(found[0]) if len(found) == 1 else GroupLink([BrokerLink(one) for one in found])


def ask_brokers(
    addresses: Sequence[BrokerAddress], request: Request[T], *, timeout_s: float | None = None
) -> list[BrokerAnswer[T]]:
    """Ask brokers in parallel; return their answers in the same order."""

    def one(address: BrokerAddress) -> BrokerAnswer[T]:
        try:
            return BrokerAnswer(address, BrokerLink(address).call(request, timeout_s=timeout_s))
        except SluiceError as problem:
            return BrokerAnswer(address, error=problem)

    return list(map(one, addresses) if len(addresses) == 1 else _askers().map(one, addresses))


def ask_all_brokers(
    instance_name: str, request: Request[T], *, timeout_s: float | None = None
) -> list[BrokerAnswer[T]]:
    """Ask all brokers of an instance in parallel; return their answers in the configured order."""
    return ask_brokers(addresses_of(instance_name), request, timeout_s=timeout_s)


def _here(instance_name: str) -> str:
    """Return the member that runs on this machine according to SLUICE_GROUP; "" if there is none."""
    group = settings.SLUICE_GROUP
    return group.member if group is not None and group.instance == instance_name else ""


class _RetryDelays:
    """Brokers that this process could not reach, with the error and the time of the next attempt.

    Thread-safe.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._away: dict[BrokerAddress, tuple[float, float, BrokerUnavailable]] = {}

    def check(self, address: BrokerAddress) -> None:
        """Raise the last error of a broker until its next attempt is due."""
        with self._lock:
            until, _, away = self._away.get(address, (0.0, 0.0, None))
        if away is not None and time.monotonic() < until:
            raise BrokerUnreachable.from_dict(away.code, away.sentence, away.fix, away.details)

    def record_failure(self, address: BrokerAddress, away: BrokerUnavailable) -> None:
        """Double the delay of a broker. Logs the first failure, and failures with another code."""
        with self._lock:
            known = self._away.get(address)
            wait = min(known[1] * 2, MAX_WAIT_S) if known is not None else MIN_WAIT_S
            self._away[address] = (time.monotonic() + wait, wait, away)
        if known is None or known[2].code != away.code:
            logger.warning("%s: %s %s", away.code, away.sentence, away.fix)

    def record_success(self, address: BrokerAddress) -> None:
        """Remove a broker's delay. Logs that it answers again."""
        with self._lock:
            known = self._away.pop(address, None)
        if known is not None:
            logger.info("The broker %s answers again.", address.name)

    def clear(self) -> None:
        """Remove all delays."""
        with self._lock:
            self._away.clear()


_waits = _RetryDelays()
"""Retry delays of this process."""


class _LineSocket:
    """Socket that sends bytes and reads lines. One deadline covers all calls, however slowly bytes arrive."""

    def __init__(self, connection: socket.socket, deadline: float) -> None:
        self._connection, self._deadline = connection, deadline
        self._buffer = bytearray()

    def send(self, data: bytes) -> None:
        self._connection.settimeout(_seconds_until(self._deadline))
        self._connection.sendall(data)

    def read(self) -> bytes:
        """Read one line.

        Raises TimeoutError at the deadline, ConnectionAbortedError for an answer that is too long.
        """
        looked = 0
        while (end := self._buffer.find(b"\n", looked)) < 0:
            looked = len(self._buffer)
            if looked > MAX_ANSWER_BYTES:
                raise ConnectionAbortedError("the answer is too long")
            self._connection.settimeout(_seconds_until(self._deadline))
            part = self._connection.recv(262_144)
            if not part:
                raise ConnectionResetError("the broker closed the connection before it answered")
            self._buffer += part
        line = bytes(self._buffer[: end + 1])
        del self._buffer[: end + 1]
        return line


def _seconds_until(deadline: float) -> float:
    """Return the seconds until a monotonic deadline. Raises TimeoutError when it has passed."""
    remaining_s = deadline - time.monotonic()
    if remaining_s <= 0:
        raise TimeoutError
    return remaining_s


@cache
def _askers() -> ThreadPoolExecutor:
    """Return the thread pool that asks several brokers in parallel."""
    return ThreadPoolExecutor(min(MAX_PARALLEL_REQUESTS, MAX_BROKERS), "ask-broker")


def _context() -> ssl.SSLContext:
    """Return a TLS context that trusts only SLUICE_BROKERS_CA.

    Raises BrokerUnreachable `bad_control_link`.
    """
    path = settings.SLUICE_BROKERS_CA
    try:
        return _tls_context(path, Path(path).stat().st_mtime_ns)
    except (OSError, ValueError) as problem:  # SSLError is a subclass of OSError
        raise BrokerUnreachable(
            "bad_control_link",
            f"The authority of the brokers, {path or 'SLUICE_BROKERS_CA'}, can't be used: {problem}.",
            "Set SLUICE_BROKERS_CA to a PEM file with the brokers' certificate authority, or with "
            "their certificates.",
        ) from None


@cache
def _tls_context(path: str, stamp: int) -> ssl.SSLContext:
    """Return the TLS context for a file.

    `stamp`, its modification time, makes the cache load a changed file.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_verify_locations(path)
    return context


_ends: dict[BrokerAddress, tuple[int, float]] = {}
"""Expiry of each broker's certificate as last seen (s UTC), and the time of the last warning in the log."""


def certificate_expiry(address: BrokerAddress) -> int | None:
    """Return the expiry of a broker's certificate in s UTC; None if this process has not seen one."""
    return _ends.get(address, (None, 0.0))[0]


def expires_soon(seconds: int, now: float) -> bool:
    """Return whether a certificate should be renewed: fewer than `WARN_DAYS` days remain."""
    return seconds - now < WARN_DAYS * DAY_S


def _note_end(address: BrokerAddress, connection: ssl.SSLSocket) -> None:
    """Remember the expiry of a broker's certificate. Logs a warning once a day if it expires soon."""
    shown = connection.getpeercert() or {}
    ends, now = int(ssl.cert_time_to_seconds(str(shown["notAfter"]))), time.time()
    _, warned_at = _ends.get(address, (0, 0.0))
    if expires_soon(ends, now) and now - warned_at >= DAY_S:
        warned_at = now
        logger.warning(
            "certificate_expires: the certificate of %s expires at %s. Replace its files "
            "(SLUICE_CONTROL_CERTIFICATE) on that machine; the broker loads them automatically.",
            address.name,
            time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(ends)),
        )
    _ends[address] = (ends, warned_at)


def _token_for(address: BrokerAddress) -> str:
    """Return a broker's token from the file SLUICE_BROKERS_TOKENS, which has lines of name and token.

    Raises BrokerUnreachable `bad_control_link` or `control_refused`.
    """
    path = Path(settings.SLUICE_BROKERS_TOKENS or "SLUICE_BROKERS_TOKENS")
    try:
        status = path.stat()
        if status.st_mode & 0o007 or status.st_size > MAX_TOKEN_FILE:
            raise ValueError("other users can read it, or it is too long")
        lines = [line.split() for line in path.read_text("utf-8").splitlines()]
    except (OSError, ValueError) as problem:
        raise BrokerUnreachable(
            "bad_control_link",
            f"The file of tokens {path} can't be used: {problem}.",
            "Set SLUICE_BROKERS_TOKENS to a file that only its owner can read, with `orders/a "
            "TOKEN` on each line.",
        ) from None
    for words in lines:
        if len(words) == 2 and words[0] == address.name:
            return words[1]
    raise BrokerUnreachable(
        "control_refused",
        f"{path} has no token for the broker {address.name}.",
        f"Create one with `manage.py controltoken`, and add the line `{address.name} TOKEN`.",
        instance=address.name,
    )


class _WireAnswer(msgspec.Struct, frozen=True):
    """Answer on the wire: a result, or an error in the form of `SluiceError.as_dict`."""

    ok: bool
    result: msgspec.Raw = msgspec.Raw(b"null")
    error: dict[str, Any] | None = None


# Created here, by the single thread that imports this module. While one thread inspects a type, msgspec
# exposes it unfinished to other threads, which crash.
_WELCOMES = msgspec.json.Decoder(Welcome)
_ANSWERS = msgspec.json.Decoder(_WireAnswer)
_RESULTS: dict[type[Request[Any]], msgspec.json.Decoder[Any]] = {
    one: msgspec.json.Decoder(answer_type(one)) for one in Request.__subclasses__()
}
