"""The port to a running broker: its control socket, one JSON object a line each way.

A link opens a connection for each call: calls are few, and a broker that was restarted is then met without a word.
"""

from __future__ import annotations

import contextlib
import socket
import time
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from django.conf import settings

from broker_core.control import last_words
from broker_core.documents.requests import Request, answer_of, name_of
from broker_core.errors import OperatorError

MAX_ANSWER_BYTES = 64 * 1024 * 1024
"""10,000 clients with subscriptions come to some 8 MB; more than this is not an answer of ours."""


T = TypeVar("T")


class BrokerAway(OperatorError):
    """The broker doesn't answer: broker_away, it isn't running or is too busy; broker_failed, it ended while it was
    asked, or its answer can't be read, and it may have done what it was asked."""


class BrokerLink:
    """Calls one broker. Each call raises the broker's own error, or BrokerAway."""

    def __init__(self, path: Path, timeout_s: float | None = None) -> None:
        self.path = path
        self.timeout_s = settings.SLUICE_CONTROL_TIMEOUT_S if timeout_s is None else timeout_s

    def call(self, request: Request[T], *, timeout_s: float | None = None) -> T:
        """Ask the broker for something; returns its answer. `timeout_s` bounds the whole call."""
        allowed = timeout_s or self.timeout_s
        line = msgspec.json.encode(request) + b"\n"
        try:
            with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as connection:
                answer = _exchange(connection, str(self.path), line, time.monotonic() + allowed)
        except TimeoutError as late:
            raise self._away(f"did not answer `{name_of(request)}` within {allowed:g} s") from late
        except (ConnectionResetError, ConnectionAbortedError, BrokenPipeError) as broken:
            raise self._failed(
                f"ended the connection while it was asked to `{name_of(request)}`: {broken}"
            ) from broken
        except OSError as problem:
            raise self._away(f"can't be reached: {problem.strerror or problem}", ended=True) from problem
        made: T = self._result(answer, _decoder_of(type(request)))
        return made

    def _result(self, line: bytes, decoder: msgspec.json.Decoder[Any]) -> Any:
        try:
            answer = msgspec.json.decode(line, type=_Answer)
            if answer.ok:
                return decoder.decode(answer.result)
            if answer.error is None:
                raise ValueError("neither a result nor an error")
        except (msgspec.DecodeError, ValueError) as problem:
            raise self._failed("gave an answer that can't be read, as of another release") from problem
        error = answer.error
        raise OperatorError.received(
            str(error.get("code", "internal_error")),
            str(error.get("message", "The broker refused.")),
            str(error.get("fix", "")),
            error.get("details"),
        )

    def _away(self, why: str, *, ended: bool = False) -> BrokerAway:
        name = self.path.stem
        words = last_words.read(self.path) if ended else None
        if words is not None:
            said = f"The broker {name} {why}. It ended, or couldn't start ({words.code}): {words.message}"
            return BrokerAway("broker_away", said, words.fix, instance=name, ended=words.code)
        fix = "See whether it runs (`manage.py runbroker`, or `make up`) and look at its log."
        return BrokerAway("broker_away", f"The broker {name} {why}.", fix, instance=name)

    def _failed(self, why: str) -> BrokerAway:
        fix = "Look at its log, and whether what was asked for was done."
        return BrokerAway(
            "broker_failed", f"The broker {self.path.stem} {why}.", fix, instance=self.path.stem
        )


def link_to(instance_name: str) -> BrokerLink:
    """The link to an instance that runs on this machine."""
    return BrokerLink(Path(settings.SLUICE_RUN_DIRECTORY) / f"{instance_name}.sock")


def _exchange(connection: socket.socket, path: str, request: bytes, deadline: float) -> bytes:
    """Send the request and read one line. The deadline holds for all of it, however slowly bytes drip in."""
    connection.settimeout(_left(deadline))
    connection.connect(path)
    connection.sendall(request)
    answer = bytearray()
    while not answer.endswith(b"\n"):
        connection.settimeout(_left(deadline))
        part = connection.recv(262_144)
        if not part:
            raise ConnectionResetError("the broker closed the connection before it answered")
        answer += part
        if len(answer) > MAX_ANSWER_BYTES:
            raise ConnectionAbortedError("the answer is too long")
    return bytes(answer)


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


class _Answer(msgspec.Struct, frozen=True):
    """What comes back: a result, or an error as `SluiceError.as_dict` tells it."""

    ok: bool
    result: msgspec.Raw = msgspec.Raw(b"null")
    error: dict[str, Any] | None = None


@cache
def _decoder_of(request: type[Request[Any]]) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(answer_of(request))
