"""Unauthenticated requests to the real web process: large bodies, slow bodies, and many unfinished
requests.
"""

from __future__ import annotations

import http.client
import json
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import psutil
import pytest
import requests
from websockets.sync.client import connect

from api.bounded_http import HEAD_WITHIN_S, MAX_BODY_PARTS
from api.unfinished_requests import MAX_PER_ADDRESS
from tests.support.console_server import NAME, PASSWORD
from tests.support.consoles import running_console

MIB = 1024 * 1024
WAIT_S = 60


class Web(NamedTuple):
    """Running web process."""

    address: str
    pid: int

    def connect(self) -> socket.socket:
        there = urlsplit(self.address)
        return socket.create_connection((there.hostname or "", there.port or 0), timeout=WAIT_S)

    def resident_mib(self) -> float:
        return psutil.Process(self.pid).memory_info().rss / MIB

    def open_files(self) -> set[str]:
        """Return the temporary files that the process has open, including deleted files."""
        found = set()
        for one in Path(f"/proc/{self.pid}/fd").iterdir():
            with suppress(FileNotFoundError):
                found.add(str(one.readlink()))
        return {
            path for path in found if path.startswith(f"{tempfile.gettempdir()}/") and "sqlite" not in path
        }

    def answers(self) -> bool:
        return requests.get(f"{self.address}/healthz", timeout=WAIT_S).status_code == 200


@pytest.fixture(scope="module")
def web() -> Iterator[Web]:
    with running_console() as (address, process):
        yield Web(address, process.pid)


def read_answer(line: socket.socket) -> tuple[int, dict[str, object]]:
    response = http.client.HTTPResponse(line)
    response.begin()
    body = response.read()
    return response.status, json.loads(body) if body.startswith(b"{") else {}


def send_until_refused(line: socket.socket, part: bytes, nbytes: int) -> int:
    """Send up to `nbytes` bytes; return how many bytes were sent before the web process closed the
    connection.
    """
    sent = 0
    with suppress(OSError):
        while sent < nbytes:
            line.sendall(part)
            sent += len(part)
    return sent


@pytest.mark.parametrize("path", ["/login/", "/api/v1/auth/login", "/nowhere"])
@pytest.mark.parametrize(
    "kind", ["application/json", "multipart/form-data", "application/x-www-form-urlencoded"]
)
def test_a_body_of_800_mib_is_refused_by_its_length(web: Web, path: str, kind: str) -> None:
    before = web.resident_mib()
    with web.connect() as line:
        head = (
            f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {kind}\r\nContent-Length: "
            f"{800 * MIB}\r\n\r\n"
        )
        line.sendall(head.encode())
        status, problem = read_answer(line)
        assert (status, problem["code"]) == (413, "body_too_large")
        send_until_refused(line, bytes(MIB), 64 * MIB)
    assert web.resident_mib() < before + 64
    assert web.answers()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["multipart/form-data", "application/json"])
def test_a_body_that_is_sent_whole_takes_neither_memory_nor_a_file(web: Web, kind: str) -> None:
    """Without a limit, multipart without a boundary used twelve times its size in memory and blocked all
    other requests.
    """
    before, open_before = web.resident_mib(), web.open_files()
    peak, files, sent = before, set[str](), threading.Event()

    def send() -> None:
        with web.connect() as line:
            head = f"POST /login/ HTTP/1.1\r\nHost: localhost\r\nContent-Type: {kind}\r\n"
            line.sendall(f"{head}Content-Length: {200 * MIB}\r\n\r\n".encode())
            send_until_refused(line, bytes(MIB), 200 * MIB)
            line.settimeout(WAIT_S)
            with suppress(OSError):
                line.recv(1)
        sent.set()

    threading.Thread(target=send, daemon=True).start()
    while not sent.wait(0.01):
        peak, files = max(peak, web.resident_mib()), files | web.open_files()
    assert (peak < before + 64, files - open_before) == (True, set()), peak - before
    assert web.answers()


@pytest.mark.parametrize("digits", [19, 5_000])
def test_a_length_of_many_digits_is_refused_by_a_sentence(web: Web, digits: int) -> None:
    with web.connect() as line:
        line.sendall(
            b"POST /login/ HTTP/1.1\r\nHost: localhost\r\nContent-Length: "
            + b"9" * digits
            + b"\r\nA: b\r\n\r\n"
        )
        status, problem = read_answer(line)
    assert (status, problem["code"]) == (413, "body_too_large")
    assert "at most" in str(problem["detail"])
    assert web.answers()


@pytest.mark.parametrize(
    "head",
    [
        b"POST /login/ HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"POST /login/ HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        b"GET / HTTP/1.1\r\nno colon\r\n\r\n",
        b"GET / HTTP/1.1\r\nTransfer-Encoding: gzip\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 101 + b"\r\n",
        b"nonsense\r\n\r\n",
        b"GET / HTTP/1.1\r\nA: " + b"b" * 200_000 + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\nA: " + b"b" * 200_000,
    ],
)
def test_a_head_that_cant_be_read_is_refused_by_a_sentence(web: Web, head: bytes) -> None:
    with web.connect() as line:
        line.sendall(head)
        status, problem = read_answer(line)
    assert (status, problem["code"]) == (400, "bad_request")
    assert "can't be read" in str(problem["detail"])
    assert web.answers()


@pytest.mark.parametrize("end", [b" HTTP/1.1\r\nHost: localhost\r\n\r\n", b""], ids=["whole", "unfinished"])
@pytest.mark.parametrize("nbytes", [16_400, 200_000])
def test_a_request_line_that_is_too_long_is_refused_by_a_sentence(web: Web, nbytes: int, end: bytes) -> None:
    with web.connect() as line:
        line.sendall(b"GET /api/v1/clients?search=" + b"a" * nbytes + end)
        status, problem = read_answer(line)
    assert (status, problem["code"]) == (414, "uri_too_long")
    assert "at most 16,384 bytes" in str(problem["detail"])
    assert web.answers()


def test_a_length_with_leading_zeros_is_a_length(web: Web) -> None:
    with web.connect() as line:
        line.sendall(
            b"POST /nowhere HTTP/1.1\r\nHost: localhost\r\nContent-Length: " + b"0" * 5_000 + b"\r\n\r\n"
        )
        assert read_answer(line)[0] in (403, 404)


def test_a_chunked_body_is_refused_at_the_bound_and_leaves_no_file(web: Web) -> None:
    before, files = web.resident_mib(), set(Path(tempfile.gettempdir()).iterdir())
    open_before = web.open_files()
    with web.connect() as line:
        line.sendall(
            b"POST /login/ HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n"
            b"Content-Type: multipart/form-data\r\n\r\n"
        )
        send_until_refused(line, b"100000\r\n" + bytes(MIB) + b"\r\n", 200 * MIB)
        assert web.open_files() == open_before
    assert web.resident_mib() < before + 64
    assert not [
        one
        for one in set(Path(tempfile.gettempdir()).iterdir()) - files
        if one.name.startswith("tmp") and one.is_file()
    ]
    assert web.answers()


def test_a_body_over_the_chunked_bound_gets_413(web: Web) -> None:
    with web.connect() as line:
        line.sendall(b"POST /login/ HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")
        for _ in range(5):
            line.sendall(b"100000\r\n" + bytes(MIB) + b"\r\n")
        assert read_answer(line)[0] == 413


def test_a_body_at_the_bound_is_read(web: Web) -> None:
    answer = requests.post(
        f"{web.address}/api/v1/auth/login",
        data=b" " * (4 * MIB - 2) + b"{}",
        headers={"Content-Type": "application/json"},
        timeout=WAIT_S,
    )
    assert answer.status_code == 400


def cpu_seconds(web: Web) -> float:
    times = psutil.Process(web.pid).cpu_times()
    return float(times.user + times.system)


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("multipart/form-data; boundary=a", b"--a\r\n\r\n" * 500_000),
        (
            "multipart/form-data; boundary=a",
            b"--a\r\nContent-Disposition: form-data; name=x\r\n\r\n\r\n" * 80_000,
        ),
        ("application/x-www-form-urlencoded", b"a&" * 2_000_000),
    ],
)
def test_a_form_of_many_fields_costs_little_before_anybody_has_logged_in(
    web: Web, kind: str, body: bytes
) -> None:
    requests.get(f"{web.address}/login/", timeout=WAIT_S)
    before = cpu_seconds(web)
    answer = requests.post(
        f"{web.address}/login/", data=body, headers={"Content-Type": kind}, timeout=4 * WAIT_S
    )
    assert answer.status_code == 403  # Django's answer to a missing CSRF token
    assert cpu_seconds(web) - before < 1.0  # Twisted's parser took 4.6, 1.5 and 1.8 s of the event loop


def test_a_body_of_more_chunks_than_the_bound_gets_413(web: Web) -> None:
    with web.connect() as line:
        line.sendall(b"POST /login/ HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")
        send_until_refused(line, b"1\r\na\r\n" * (MAX_BODY_PARTS + 1), 1)
        status, problem = read_answer(line)
        assert (status, problem["code"]) == (413, "body_too_large")


def test_a_body_of_as_many_chunks_as_the_bound_is_read_twice_on_a_connection(web: Web) -> None:
    with web.connect() as line:
        for _ in range(2):
            line.sendall(
                b"POST /api/v1/auth/login HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                b"Transfer-Encoding: chunked\r\n\r\n"
                + b"1\r\n \r\n" * (MAX_BODY_PARTS - 2)
                + b"2\r\n{}\r\n0\r\n\r\n"
            )
            assert read_answer(line)[0] == 400


def closes_within(line: socket.socket, seconds: float, drip: bytes = b"") -> bool:
    """Return whether the web process closes the connection within `seconds`, while the test sends `drip`
    every second.
    """
    end = time.monotonic() + seconds
    line.settimeout(1)
    while time.monotonic() < end:
        try:
            if not line.recv(65_536):
                return True
        except TimeoutError:
            pass
        except OSError:
            return True
        with suppress(OSError):
            line.sendall(drip)
    return False


@pytest.mark.slow
@pytest.mark.parametrize(
    "start",
    [
        b"",
        b"GET / HT",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nX-A: ",
        b"\r\n",
    ],
    ids=["nothing", "half a line", "half the headers", "an empty line"],
)
def test_a_head_that_never_becomes_whole_ends_at_its_deadline(web: Web, start: bytes) -> None:
    with web.connect() as line:
        line.sendall(start)
        assert closes_within(line, HEAD_WITHIN_S + WAIT_S, drip=b"a" if start else b"")


@pytest.mark.slow
def test_unfinished_requests_of_an_address_are_bounded_and_others_are_answered(web: Web) -> None:
    with ExitStack() as lines:
        opened = [lines.enter_context(web.connect()) for _ in range(300)]
        for line in opened:
            with suppress(OSError):  # the web process closes the oldest connections
                line.sendall(b"POST /login/ HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\nabc")
        assert web.answers()
        mine = psutil.Process(web.pid)
        until(lambda: established(mine) <= MAX_PER_ADDRESS + 20)
        assert web.answers()


@pytest.mark.slow
def test_answers_that_nobody_reads_do_not_pile_up(web: Web) -> None:
    request = b"GET /static/vendor/uplot-1.6.32/uPlot.esm.js HTTP/1.1\r\nHost: localhost\r\n\r\n"
    assert web.answers()
    before = web.resident_mib()
    with ExitStack() as lines:
        for _ in range(10):
            line = lines.enter_context(web.connect())
            line.setblocking(False)
            with suppress(BlockingIOError):
                line.send(request * 1_000)
        end = time.monotonic() + 10
        while time.monotonic() < end:
            assert web.answers()
            assert web.resident_mib() < before + 64
            time.sleep(0.5)


@pytest.mark.slow
def test_pipelined_requests_are_all_answered(web: Web) -> None:
    request = b"GET /static/vendor/uplot-1.6.32/uPlot.esm.js HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with web.connect() as line:
        line.sendall(request * 50)
        got = bytearray()
        with suppress(TimeoutError):
            while got.count(b"HTTP/1.1 200 ") < 50:
                part = line.recv(1 << 20)
                if not part:
                    break
                got += part
    assert got.count(b"HTTP/1.1 200 ") == 50


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]"])
def test_a_burst_of_connections_waits_in_the_kernel(host: str) -> None:
    code = (
        "import sys; from api.web_server import BACKLOG, WebServer;"  # a process can have only one reactor
        "one = WebServer(None, sys.argv[1], 0)._endpoint; print(one._backlog == BACKLOG, one._interface)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, host], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout.split() == ["True", host.strip("[]")]


def established(process: psutil.Process) -> int:
    return sum(one.status == psutil.CONN_ESTABLISHED for one in process.net_connections("tcp"))


def until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.2)


@pytest.mark.slow
def test_the_live_feed_outlives_every_deadline_of_a_request(web: Web) -> None:
    session = requests.Session()
    page = session.get(f"{web.address}/login/", timeout=WAIT_S).text
    token = re.search(r'name="csrfmiddlewaretoken" value="([^"]+)"', page)
    assert token is not None
    sent = {"username": NAME, "password": PASSWORD, "csrfmiddlewaretoken": token[1]}
    session.post(f"{web.address}/login/", data=sent, timeout=WAIT_S, headers={"Referer": web.address})
    cookie = f"sessionid={session.cookies['sessionid']}"
    address = web.address.replace("http://", "ws://") + "/live/"
    with connect(
        address, additional_headers={"Cookie": cookie}, origin=web.address, open_timeout=WAIT_S
    ) as feed:  # type: ignore[arg-type]
        end, messages = time.monotonic() + HEAD_WITHIN_S + 5, 0
        while time.monotonic() < end:
            with suppress(TimeoutError):
                feed.recv(timeout=5)
                messages += 1
        feed.ping().wait(WAIT_S)
    assert messages
