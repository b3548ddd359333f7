"""The port to a running broker: its control socket, one JSON object a line each way.

A link opens a connection for each call: calls are few, and a broker that was restarted is then met without a word.
"""

from __future__ import annotations

import contextlib
import socket
import time
from pathlib import Path
from typing import Any

import orjson
from django.conf import settings

from broker_core.errors import OperatorError

MAX_ANSWER_BYTES = 64 * 1024 * 1024
"""10,000 clients with subscriptions come to some 8 MB; more than this is not an answer of ours."""


class BrokerAway(OperatorError):
    """The broker doesn't answer: it isn't running, or it is too busy. Code broker_away."""


class BrokerLink:
    """Calls one broker. Each call raises the broker's own error, or BrokerAway."""

    def __init__(self, path: Path, timeout_s: float | None = None) -> None:
        self.path = path
        self.timeout_s = settings.SLUICE_CONTROL_TIMEOUT_S if timeout_s is None else timeout_s

    def call(self, do: str, /, *, timeout_s: float | None = None, **arguments: Any) -> Any:
        """Ask the broker to do something; returns its result. `timeout_s` bounds the whole call."""
        allowed = timeout_s or self.timeout_s
        request = orjson.dumps({"do": do, **arguments}) + b"\n"
        try:
            with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as connection:
                line = _exchange(connection, str(self.path), request, time.monotonic() + allowed)
        except TimeoutError as late:
            raise self._away(f"did not answer `{do}` within {allowed:g} s") from late
        except OSError as problem:
            raise self._away(f"can't be reached: {problem.strerror or problem}") from problem
        return _result(line, self)

    def _away(self, why: str) -> BrokerAway:
        return BrokerAway(
            "broker_away",
            f"The broker {self.path.stem} {why}.",
            "See whether it runs (`manage.py runbroker`, or `make up`) and look at its log.",
            instance=self.path.stem,
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


def _result(line: bytes, link: BrokerLink) -> Any:
    try:
        answer = orjson.loads(line)
        if answer["ok"]:
            return answer.get("result")
        error = dict(answer["error"])
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError) as problem:
        raise BrokerAway(
            "broker_away",
            f"The broker {link.path.stem} gave an answer that can't be read.",
            "Use the same release of the broker and the console.",
        ) from problem
    refused = OperatorError(
        str(error.get("code", "refused")), str(error.get("message", "The broker refused.")), str(error.get("fix", ""))
    )
    refused.details = error.get("details") or {}
    raise refused
