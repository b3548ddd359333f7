"""Occupied ports are reported with their purpose before any process starts."""

from __future__ import annotations

import os
import socket
import sys

import pytest

from console.supervisor.ports import PortRequest, port_owner, port_problems, refusal_reason

CONSOLE = PortRequest("the console", "127.0.0.1", 8000, "Set SLUICE_WEB_PORT to a free port")
TCP = PortRequest("transport tcp", "127.0.0.1", 9007, "Set SLUICE_TCP_PORT to a free port")


def test_free_ports_are_no_problem() -> None:
    assert port_problems([CONSOLE, TCP], lambda host, port: None, lambda port: None) == []


def test_taken_port_names_purpose_holder_and_what_to_do() -> None:
    found = port_problems(
        [CONSOLE, TCP], lambda host, port: "is taken" if port == 9007 else None, lambda port: "nginx, pid 7"
    )
    assert found == [
        "Port 9007 on 127.0.0.1 (transport tcp) is taken by nginx, pid 7. Set SLUICE_TCP_PORT to a free port."
    ]


def test_taken_port_without_a_known_holder() -> None:
    (found,) = port_problems([CONSOLE], lambda host, port: "is taken", lambda port: None)
    assert found == "Port 8000 on 127.0.0.1 (the console) is taken. Set SLUICE_WEB_PORT to a free port."


def test_port_wanted_twice_names_both() -> None:
    twice = PortRequest("transport tcp", "127.0.0.1", 8000, "Set SLUICE_TCP_PORT to a free port")
    (found,) = port_problems([CONSOLE, twice], lambda host, port: None, lambda port: None)
    assert "configured twice: by the console and by transport tcp" in found


def test_every_taken_port_is_named() -> None:
    assert len(port_problems([CONSOLE, TCP], lambda host, port: "is taken", lambda port: None)) == 2


def test_real_listener_is_refused_and_found() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert refusal_reason("127.0.0.1", port) == "is taken"
        if sys.platform == "linux":
            assert str(os.getpid()) in (port_owner(port) or "")


def test_port_of_a_listener_that_went_away_is_free() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    assert refusal_reason("127.0.0.1", port) is None


@pytest.mark.parametrize("host", ["203.0.113.1", "no such host"])
def test_address_that_is_not_ours_says_why(host: str) -> None:
    assert (refusal_reason(host, 8000) or "").startswith("can't be used")
