"""One console over two machines.

Brokers, workers, daphne and their files are separate per machine. They share PostgreSQL, Redis and a NATS
server, and nothing in the file system. The control link to the second machine uses TLS through a proxy that
can be cut.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from broker_core.client import AsyncClient
from tests.support.certificates import Authority
from tests.support.cuttable_proxy import cuttable_proxy_to
from tests.support.html import minified
from tests.support.nats_servers import running_nats_servers
from tests.support.postgres import find_binaries, temporary_cluster
from tests.support.redis_process import redis_server

pytestmark = pytest.mark.slow
PROJECT = Path(__file__).resolve().parents[2]
OURS = ("SLUICE_", "REDIS_URL", "DATABASE_URL", "DJANGO_SETTINGS_MODULE")
PORTS = (
    "SLUICE_WEB_PORT",
    "SLUICE_TCP_PORT",
    "SLUICE_WEBSOCKET_PORT",
    "SLUICE_STOMP_PORT",
    "SLUICE_STOMP_WS_PORT",
)
APART = 100
LONG_S = 240


def free_ports() -> dict[str, int]:
    """Return free ports for the first machine whose counterparts `APART` higher are free too.

    They lie below the kernel's ephemeral ports.
    """
    while True:
        first = random.randrange(20_000, 29_000)
        ports = {name: first + number for number, name in enumerate(PORTS)}
        with ExitStack() as held:
            try:
                for port in ports.values():
                    for step in (0, APART):
                        held.enter_context(socket.create_server(("127.0.0.1", port + step)))
            except OSError:
                continue
        return ports


class Machine:
    """A machine: its files, its environment and its processes."""

    def __init__(self, home: Path, **environment: str) -> None:
        self.home = home
        home.mkdir()
        kept = {key: value for key, value in os.environ.items() if not key.startswith(OURS)}
        self.environment = {**kept, "SLUICE_HOME": str(home), **environment}
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self, *words: str) -> None:
        with (self.home / "output.log").open("ab") as output:
            self._processes.append(
                subprocess.Popen(
                    (sys.executable, *words), cwd=PROJECT, env=self.environment, stdout=output, stderr=output
                )
            )

    def run(self, *words: str) -> str:
        done = subprocess.run(
            (sys.executable, "manage.py", *words),
            cwd=PROJECT,
            env=self.environment,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def check(self) -> None:
        """Check that no started process has ended."""
        assert all(one.poll() is None for one in self._processes), self.output()

    def output(self) -> str:
        return (self.home / "output.log").read_text(errors="replace")[-4_000:]

    def end(self) -> None:
        for one in reversed(self._processes):
            one.terminate()
        for one in self._processes:
            try:
                one.wait(60)
            except subprocess.TimeoutExpired:
                one.kill()
                one.wait()


class Installation:
    """Both machines, and the console as its user has it."""

    def __init__(
        self, a: Machine, b: Machine, wire: Any, redis: Any, tokens: Path, ports: dict[str, int]
    ) -> None:
        self.a, self.b, self.wire, self.redis, self.tokens = a, b, wire, redis, tokens
        self.ports = ports
        self.http = httpx.Client(base_url=f"http://127.0.0.1:{ports['SLUICE_WEB_PORT']}", timeout=60)

    def until(self, condition: Callable[[], Any]) -> Any:
        """Call `condition` until it returns something true; return that."""
        deadline = time.monotonic() + LONG_S
        while True:
            for machine in (self.a, self.b):
                machine.check()
            try:
                if found := condition():
                    return found
            except httpx.TransportError:
                pass
            assert time.monotonic() < deadline, self.a.output() + self.b.output()
            time.sleep(0.1)

    def log_in(self, password: str) -> None:
        asked = {"username": "operator", "password": password}
        answer = self.until(lambda: self.http.post("/api/v1/auth/login", json=asked))
        assert answer.status_code == 200, answer.text
        self.http.headers["X-CSRFToken"] = self.http.cookies["csrftoken"]

    def get(self, path: str, **asked: str) -> Any:
        answer = self.http.get(f"/api/v1/{path}", params=asked)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def post(self, path: str, body: Any, **asked: str) -> Any:
        answer = self.http.post(f"/api/v1/{path}", json=body, params=asked)
        assert answer.status_code in (200, 202), answer.text
        return answer.json()

    def problem_of_b(self) -> str:
        """Return the code of the problem with b, or ""."""
        return next(str(one["code"]) for one in self.get("brokers") if one["member"] == "b")

    def address(self, member: str) -> str:
        return f"tcp://127.0.0.1:{self.ports['SLUICE_TCP_PORT'] + (APART if member == 'b' else 0)}"


@contextmanager
def installed(tmp_path: Path, database: str, redis: str, engines: tuple[str, ...]) -> Iterator[Installation]:
    ports, files = free_ports(), tmp_path / "b-files"
    files.mkdir()
    certificate, key = Authority(files).sign("b")
    with socket.create_server(("127.0.0.2", 0)) as held:
        listens = held.getsockname()[1]
    redis_port = int(redis.partition("/0")[0].rpartition(":")[2])
    with (
        cuttable_proxy_to("127.0.0.2", listens) as wire,
        cuttable_proxy_to("127.0.0.1", redis_port) as redis_wire,
    ):
        both = {
            "DATABASE_URL": database,
            "REDIS_URL": redis,
            "SLUICE_INSTANCE": "orders",
            "SLUICE_GROUP_ENGINES": ",".join(engines),
            "DJANGO_SETTINGS_MODULE": "console.project.settings",
        }
        a = Machine(
            tmp_path / "a",
            **both,
            SLUICE_GROUP_MEMBER="a",
            **{name: str(port) for name, port in ports.items()},
            SLUICE_BROKERS=f"orders/a=unix:,orders/b=tls://localhost:{wire.port}",
            SLUICE_BROKERS_CA=str(files / "authority.pem"),
            SLUICE_BROKERS_TOKENS=str(tmp_path / "a" / "tokens"),
        )
        b = Machine(
            tmp_path / "b",
            **{**both, "REDIS_URL": f"redis://127.0.0.1:{redis_wire.port}/0"},
            SLUICE_GROUP_MEMBER="b",
            SLUICE_PORTS_APART=str(APART),
            SLUICE_CONTROL_LISTEN=f"127.0.0.2:{listens}",
            SLUICE_CONTROL_CERTIFICATE=str(certificate),
            SLUICE_CONTROL_KEY=str(key),
            SLUICE_CONTROL_TOKENS=str(tmp_path / "b" / "hashes"),
        )
        try:
            a.run("up", "--prepare-broker")
            given = a.run("controltoken", "orders/b").splitlines()
            (a.home / "tokens").write_text(given[1] + "\n")
            (a.home / "tokens").chmod(0o600)
            (b.home / "hashes").write_text(given[3] + "\n")
            password = re.search(r"Password: (\S+)", a.run("createoperator"))
            for machine in (a, b):
                machine.start("manage.py", "runbroker")
            a.start(
                "-m",
                "api.web_server",
                "127.0.0.1",
                str(ports["SLUICE_WEB_PORT"]),
                "console.project.asgi:application",
            )
            a.start("-m", "celery", "-A", "console.project", "worker", "--pool", "solo", "-n", "a@test")
            made = Installation(a, b, wire, redis_wire, b.home / "hashes", ports)
            assert password is not None
            made.log_in(password[1])
            made.until(lambda: all(one["answers"] for one in made.get("brokers")))
            yield made
        finally:
            a.end()
            b.end()


async def test_one_console_serves_two_machines_and_says_when_it_cannot(tmp_path: Path) -> None:
    assert find_binaries() is not None, "PostgreSQL isn't installed; `make test` does it"
    with socket.create_server(("127.0.0.1", 0)) as held:
        redis = f"redis://127.0.0.1:{held.getsockname()[1]}/0"
    (tmp_path / "redis").mkdir()
    async with running_nats_servers(tmp_path, 1) as engines:
        with (
            temporary_cluster() as database,
            redis_server(redis, tmp_path / "redis"),
            installed(tmp_path, database, redis, engines.urls) as made,
        ):
            await _check_remote_actions(made)
            await asyncio.to_thread(_policies_converge, made)
            await _members_go_on_without_the_console_and_converge_afterwards(made)
            await _journals_are_worked_on_where_they_are(made)
            await asyncio.to_thread(_check_failed_link_is_named, made)


async def _check_remote_actions(made: Installation) -> None:
    on_a, on_b = AsyncClient(made.address("a"), "desk-a"), AsyncClient(made.address("b"), "desk-b")
    async with on_a, on_b:
        get = asyncio.to_thread
        told = await get(made.until, lambda: len(made.get("clients")["results"]) == 2 and made.get("clients"))
        where = {one["name"]: one["member"] for one in told["results"]}
        assert where == {"desk-a": "a", "desk-b": "b"}
        alone = await get(made.get, "clients", member="b")
        assert [one["name"] for one in alone["results"]] == ["desk-b"]
        assert (await get(made.get, "clients/desk-b"))["member"] == "b"
        assert (await get(made.get, "status"))["clients_by_state"]["live"] == 2
        done = await get(made.post, "clients/desk-b/disconnect", {"reason": "tried from afar"})
        assert done["disconnected"]
        page = await get(lambda: made.http.get("/").text)
        assert all(name in page for name in ("orders/a", "orders/b", "2 of 2 answer"))
        both = await get(
            made.until,
            lambda: made.get("statistics", member="b")["points"] and made.get("statistics")["points"],
        )
        assert both


def _policies_converge(made: Installation) -> None:
    answer = made.http.patch(
        "/api/v1/policies",
        json={"instance": {"journal_size": 1024 * 1024}, "reason": "small files", "confirmed": True},
        headers={"If-Match": "*"},
    )
    assert answer.status_code == 200, answer.text
    revision = answer.json()["document"]["revision"]
    made.until(lambda: {one["revision"] for one in made.get("brokers")} == {revision})
    made.until(lambda: made.get("status")["in_force"]["converged"])
    assert f"Revision {revision} in force on 2 of 2 members" in minified(made.http.get("/policies/").text)


async def _journals_are_worked_on_where_they_are(made: Installation) -> None:
    async with AsyncClient(made.address("a"), "publisher") as client:
        for _ in range(40):
            await client.publish("t", {"padding": "x" * 64_000})
        await client.flush()

    def sealed(member: str) -> list[Any]:
        found = made.get("journals", member=member)["results"]
        return [one for one in found if one["state"] == "sealed"]

    await asyncio.to_thread(made.until, lambda: sealed("a") and sealed("b"))
    run = await asyncio.to_thread(made.post, "journals/archive", {"age": "0s"}, member="b")
    waiting = await asyncio.to_thread(made.get, f"runs/{run['id']}")
    assert (waiting["state"], waiting["error"]["code"]) == ("waiting", "no_worker")
    ready = (await asyncio.to_thread(made.http.get, "/readyz")).json()
    assert {"worker orders/b": "no_worker"}.items() <= {
        one["name"]: one["problem"] for one in ready["parts"]
    }.items()
    made.b.start(
        "-m",
        "celery",
        "-A",
        "console.project",
        "worker",
        "--pool",
        "solo",
        "-n",
        "b@test",
        "-Q",
        "sluice.orders.b",
    )
    done = await asyncio.to_thread(
        made.until,
        lambda: next((one for one in [made.get(f"runs/{run['id']}")] if one["state"] == "succeeded"), None),
    )
    assert done["member"] == "b"
    assert list((made.b.home / "archive").glob("orders.*.journal"))
    assert not list((made.a.home / "archive").glob("orders.*.journal"))


async def _members_go_on_without_the_console_and_converge_afterwards(made: Installation) -> None:
    """Cut b's machine from console and Redis, edit the policy meanwhile, and check convergence."""

    def edited() -> int:
        answer = made.http.patch(
            "/api/v1/policies",
            json={"instance": {"downgrade_after_ms": 20_000}, "reason": "cut off", "confirmed": True},
            headers={"If-Match": "*"},
        )
        assert answer.status_code == 200, answer.text
        return int(answer.json()["document"]["revision"])

    made.wire.cut()
    made.redis.cut()
    await asyncio.to_thread(made.until, lambda: made.problem_of_b() == "broker_away")
    revision = await asyncio.to_thread(edited)
    async with (
        AsyncClient(made.address("b"), "alone") as client,
        AsyncClient(made.address("a"), "near") as near,
    ):
        subscription = await near.subscribe("alone", bookmark="0")
        await client.publish("alone", {"n": 1})
        await client.flush()
        async with asyncio.timeout(60):
            assert (await anext(aiter(subscription))).data == {"n": 1}
    made.wire.restore()
    made.redis.restore()
    await asyncio.to_thread(
        made.until, lambda: {one["revision"] for one in made.get("brokers")} == {revision}
    )
    await asyncio.to_thread(made.until, lambda: made.get("status")["in_force"]["converged"])


def _check_failed_link_is_named(made: Installation) -> None:
    made.wire.cut()
    made.until(lambda: made.problem_of_b() == "broker_away")
    ready = made.http.get("/readyz")
    assert ready.status_code == 503
    (part,) = [one for one in ready.json()["parts"] if one["name"] == "broker orders/b"]
    assert part["problem"] == "broker_away"
    assert "SLUICE_CONTROL_LISTEN" in part["fix"]
    assert "orders/b" in minified(made.http.get("/").text)
    assert made.get("status")["instance"] == "orders"  # what is left answers
    made.wire.restore()
    made.until(lambda: made.problem_of_b() == "")
    made.tokens.write_text("# revoked\n")
    made.until(lambda: made.problem_of_b() == "control_refused")
    made.until(lambda: "control_link_refused" in (made.b.home / "output.log").read_text())
