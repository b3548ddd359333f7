"""A control socket for tests of the console that answers like a broker, from plain data.

Tests may change the data.
"""

from __future__ import annotations

import base64
import contextlib
import json
import math
import socketserver
import threading
import time
from pathlib import Path
from typing import Any, Union

import msgspec
from msgspec import structs

from broker_core.bookmark import bookmark_sequence
from broker_core.control.requests import clients
from broker_core.control.set_back import older_revision_error, set_back_error
from broker_core.documents.clients import ClientEntry, ClientsPage, DeliveryState
from broker_core.documents.instance import DatabaseEntry, InstanceStatus, RefusedRevision, Snapshot
from broker_core.documents.problems import ProblemEntry
from broker_core.documents.replays import ReplayEntry
from broker_core.documents.replication import GroupStatus, LinkEntry, MemberEntry
from broker_core.documents.requests import Request
from broker_core.documents.stalls import StallEntry, StallTotals
from broker_core.engine.stalls import StallHistory
from broker_core.errors import SluiceError
from broker_core.subscriptions.topics import TopicPattern

MIB = 1024 * 1024
REQUESTS = msgspec.json.Decoder(Union[tuple(Request.__subclasses__())])  # noqa: UP007 (of as many as there are)
CARRIERS = ("AA", "AS", "B6", "DL", "EV", "F9", "HA", "MQ", "OO", "UA", "US", "VX", "WN", "YV")


_FLIGHTS = [f"flights.{code}" for code in CARRIERS[:5]]
AMOUNTS = {
    f"{part}_{unit}": 0
    for part in ("matched", "acknowledged", "in_flight", "waiting")
    for unit in ("messages", "bytes")
} | {"gone": {}, "gone_bytes": 0, "lost_messages": 0, "unacked_messages": 0}


def make_subscription(
    state: str = "live", lag: int = 0, health: str = "keeps up", **more: Any
) -> dict[str, Any]:
    """Return the subscription entry of a client."""
    return {
        "id": "sub-1",
        "topic": "flights.>",
        "filter": "/dep_delay > 15 AND /carrier IN ('UA', 'DL')",
        "bookmark": "0",
        "delivery": state,
        "health": health,
        **_lag(lag),
        **AMOUNTS,
        "waiting_messages": lag,
        "delivered_messages": 1_204_331,
        "rate": None,
        "ack": None,
        "prefetch": None,
        "durable": None,
        "lease_ms": None,
        "paused": state == "paused",
        **more,
    }


def _lag(lag: int) -> dict[str, Any]:
    return {
        "lag_messages": lag,
        "lag_bytes": lag * 412,
        "lag_ms": lag * 3,
        "seconds_behind": lag * 3 / 1_000,
        "caught_up_in_s": None,
        "caught_up_why_none": "there are too few samples" if lag else "",
        "lag_at_most": False,
    }


HEALTHS = {"offlined": "stalled", "draining": "keeps up", "replaying": "keeps up", "paused": "paused"}


def make_client(name: str, state: str = "live", lag: int = 0, **more: Any) -> ClientEntry:
    """Return a client entry as a broker lists it."""
    now = int(time.time() * 1000)
    spooled = state in ("offlined", "draining")
    health = HEALTHS.get(state, "keeps up")
    made = {
        "name": name,
        "transport": "tcp",
        "protocol": "native",
        "remote": "127.0.0.1:52114",
        "user": "",
        "delivery": state,
        "health": health,
        "connected_at": now - 3_725_000,
        "heartbeat_ms": 10_000,
        **_lag(lag),
        **AMOUNTS,
        "matched_messages": 1_204_331 + lag,
        "acknowledged_messages": 1_204_331,
        "waiting_messages": lag,
        "outbox_bytes": 0 if spooled else lag * 412,
        "outbox_messages": 0 if spooled else lag,
        "spool_bytes": lag * 40 if spooled else 0,
        "spool_messages": lag if spooled else 0,
        "offlined_since": now - 95_000 if spooled else None,
        "delivered_messages": 1_204_331,
        "delivered_bytes": 496_184_000,
        "published_messages": 0,
        "published_topics": {},
        "rate_out_messages": 0.0 if state == "offlined" else 5210.4,
        "write_blocked_ms": 95_400 if state == "offlined" else 0,
        "pool": "instance",
        "memory_percent": min(50.0, lag / 20_000),
        "disk_percent": lag / 500_000 if spooled else 0.0,
        "revision": 1,
        "window_full_ms": 0,
        "held_bytes": 0,
        "forecast": None,
        "why_slow": None,
        "last_decision": None,
        "subscriptions": [make_subscription(state, lag, health)],
        **more,
    }
    return msgspec.convert(made, ClientEntry)


def make_snapshot(
    at: int, *clients: ClientEntry, replays: list[ReplayEntry] | None = None, **status: Any
) -> Snapshot:
    """Return a snapshot of one second; `status` overrides fields of the status."""
    known = msgspec.convert({"instance": "sluice-1", "revision": 1, "pid": 7, **status}, InstanceStatus)
    return Snapshot(at=at, status=known, clients=list(clients), replays=replays)


CHAIN = "0d4f" * 8


def make_link(name: str, **said: Any) -> LinkEntry:
    """Return the entry of a disconnected link."""
    away: dict[str, Any] = {
        "client": f"link.{name}",
        "addresses": [f"tcps://{name}:9007"],
        "topic": "prices.>",
        "filter": "/n > 1",
        "state": "away",
        "instance": name,
        "code": "broker_away",
        "why": "Nobody answers.",
        "fix": "",
        "behind": 12_345,
        "behind_ms": 61_000,
        "position": "sluice-1|7|",
        "carried": 0,
        "gaps": 0,
        "connected_at": None,
    }
    return LinkEntry(name=name, **away | said)


def make_member(name: str, **more: object) -> MemberEntry:
    """Return the entry of a member that is present and in agreement."""
    said = {
        "there": True,
        "applied": 18_212,
        "behind": 0,
        "sequence": 9_811_200,
        "chain": CHAIN,
        "alike": True,
    }
    return MemberEntry(name=name, **{**said, **more})  # type: ignore[arg-type]


def make_group(*members: MemberEntry) -> GroupStatus:
    """Return the status of a group as seen by member a."""
    return GroupStatus(
        instance="sluice-1",
        member="a",
        state="taking part",
        why="",
        fix="",
        log="7b1e0a0e",
        generation=3,
        last=18_215,
        leader="engine-2",
        engines=3,
        engines_current=3,
        clock_ahead_ms=0,
        members=list(members),
    )


def make_pool(name: str, **more: Any) -> dict[str, Any]:
    """Return a pool entry of a status."""
    figures = dict.fromkeys(("memory_used", "memory_limit", "disk_used", "disk_limit"), 0)
    return {"name": name, "transports": [], "disk_path": "/var/lib/sluice/spool", **figures, **more}


def make_transport(name: str, **more: Any) -> dict[str, Any]:
    """Return a transport entry of a status."""
    return {
        "name": name,
        "kind": name,
        "host": "127.0.0.1",
        "port": 9007,
        "enabled": True,
        "clients": 0,
        "pool": "instance",
        **more,
    }


def some_clients() -> list[ClientEntry]:
    """Return clients of a busy morning.

    Most are up to date; one is offlined, one drains, one replays.
    """
    return [
        make_client("board-jfk", "offlined", 184_220, user="ops"),
        make_client("delay-mailer", "draining", 20_411),
        make_client("lake-loader", "replaying", 92_000, transport="websocket"),
        make_client(
            "feed-publisher",
            published_messages=336_775,
            published_topics=dict.fromkeys(_FLIGHTS, 67_355),
            rate_out_messages=0.0,
            subscriptions=[],
        ),
        *(
            make_client(
                f"carrier-{code.lower()}",
                "live",
                3 if code == "UA" else 0,
                transport="websocket" if code < "F" else "tcp",
            )
            for code in CARRIERS
        ),
    ]


def some_replays() -> list[dict[str, Any]]:
    """Return three managed replays: running, paused and cancelled."""
    now = int(time.time() * 1000)
    common = {
        "filter": None,
        "bookmark": "0",
        "rate": None,
        "rate_max_gap": None,
        "conflation": None,
        "conflation_key": None,
        "recorded_at": now - 86_400_000,
        "ended_at": None,
        "unrecorded": False,
        "records_per_s": 0.0,
        "left_s": None,
    }
    return [
        {
            **common,
            "name": "nightly",
            "client": "lake-loader",
            "topic": "flights.>",
            "rate": "4X",
            "rate_max_gap": "10s",
            "state": "running",
            "connected": True,
            "position": "sluice-1|812004|",
            "behind": 524_772,
            "delivered_messages": 812_003,
            "progress": 0.607,
            "left_s": 734.2,
            "records_per_s": 714.8,
            "created_at": now - 3_600_000,
        },
        {
            **common,
            "name": "audit-2026",
            "client": "auditor",
            "topic": "flights.UA",
            "filter": "/dep_delay > 15",
            "state": "paused",
            "connected": False,
            "position": "sluice-1|120400|",
            "behind": 1_216_376,
            "delivered_messages": 20_455,
            "progress": 0.09,
            "created_at": now - 90_000_000,
        },
        {
            **common,
            "name": "last-week",
            "client": "auditor",
            "topic": "flights.>",
            "state": "cancelled",
            "connected": False,
            "position": "sluice-1|900000|",
            "behind": 436_776,
            "delivered_messages": 899_999,
            "progress": 0.673,
            "created_at": now - 180_000_000,
            "ended_at": now - 80_000_000,
        },
    ]


def flight(number: int) -> dict[str, Any]:
    """Return the body of a flight departure."""
    return {
        "carrier": CARRIERS[number % 5],
        "flight": 100 + number % 700,
        "origin": "JFK",
        "dest": ("LAX", "SFO", "MIA")[number % 3],
        "dep_delay": (number * 7) % 90 - 10,
        "distance": 2_475,
    }


def some_shapes() -> tuple[dict[str, Any], ...]:
    """Return six bodies that are not plain JSON objects."""
    order = (
        "8=FIX.4.2\x0135=D\x0149=DESK7\x0156=SLUICE\x0155=IBM\x0154=1\x0138=200\x0144=182.35\x0110=128\x01"
    )
    return (
        {"topic": "orders.fix", "text": order},
        {"topic": "orders.nvfix", "text": "Symbol=IBM\x01Side=Buy\x01OrderQty=200\x01"},
        {
            "topic": "orders.packed",
            "base64": base64.b64encode(b"\x82\xa6symbol\xa3IBM\xa3qty\xcc\xc8").decode(),
        },
        {
            "topic": "pictures.raw",
            "base64": base64.b64encode(bytes(range(250, 256)) + b"\x00picture").decode(),
        },
        {
            "topic": "notes.desk",
            "text": "The desk is closed.",
            "headers": {"content-type": "text/plain", "priority": "4"},
        },
        {"topic": "flights.AA", "data": None},
    )


def stall_totals(stalls: list[StallEntry]) -> StallTotals:
    history = StallHistory()
    for one in stalls:
        history.put(one)
    return history.totals


class FakeBroker:
    """A fake broker whose control socket is served by a thread.

    `asked` lists every request. `answers` overrides replies by request name.
    """

    def __init__(self, path: Path, instance: str = "sluice-1", member: str = "") -> None:
        self.path, self.instance, self.member = path, instance, member
        self.started_at = time.time()
        self.begin_morning()
        self.revision = 1
        self.unrecorded: list[str] = []
        """Clients that a preview says would get no new records."""
        self.cut_off: list[str] = []
        """Clients that a preview says would be cut off."""
        self.asked: list[dict[str, Any]] = []
        self.answers: dict[str, Any] = {}
        self.durable = 1_336_576
        self.refused: RefusedRevision | None = None
        self.database: DatabaseEntry | None = None
        self.group: GroupStatus | None = None
        self.links: list[LinkEntry] = []
        self.problems: list[ProblemEntry] = []
        self.kept: tuple[dict[str, Any], dict[str, Any] | None] | None = None
        """Policy, and staged one, that it keeps because the database lacks it."""
        self.stalls: list[StallEntry] = []
        self.log: list[dict[str, Any]] = []
        for number in range(194):
            self.add_message(f"flights.{CARRIERS[number % 5]}", data=flight(number))
        for add in some_shapes():
            self.add_message(**add)
        self._server: socketserver.ThreadingUnixStreamServer | None = None

    def begin_morning(self) -> None:
        """Reset clients, replays and durable subscriptions to the initial data."""
        self.clients = some_clients()
        self.replays = some_replays()
        now = int(time.time() * 1_000)
        common = {"topic": "flights.>", "filter": None, "created_at": now - 86_400_000}
        self.durables = [
            {
                **common,
                "client": "board-jfk",
                "name": "orders",
                "bookmark": "sluice-1|900|",
                "connected": True,
                "behind": 4,
                "seen_at": now,
            },
            {
                **common,
                "client": "auditor",
                "name": "night",
                "bookmark": "sluice-1|2|",
                "connected": False,
                "behind": 902,
                "seen_at": now - 80_000_000,
            },
        ]

    def begin_rush_hour(self) -> None:
        """Reset the data, then add healthy clients up to 500, with a dozen name prefixes."""
        self.begin_morning()
        rests = next(one for one in self.clients if one.name == "carrier-aa")
        rush = [
            structs.replace(rests, name=f"team-{number % 12:02d}-desk-{number:03d}")
            for number in range(500 - len(self.clients))
        ]
        self.clients = [*self.clients, *rush]

    def __enter__(self) -> FakeBroker:
        broker = self

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                for line in self.rfile:
                    self.wfile.write(msgspec.json.encode(broker.answer(line)) + b"\n")

        self.path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            self.path.unlink()
        self._server = socketserver.ThreadingUnixStreamServer(str(self.path), Handler)
        self._server.daemon_threads = True
        threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True
        ).start()
        return self

    def __exit__(self, *exc: object) -> None:
        assert self._server is not None
        self._server.shutdown()
        self._server.server_close()
        self.path.unlink(missing_ok=True)

    def answer(self, line: bytes) -> dict[str, Any]:
        """Return the reply to one request line, which must be a valid broker request."""
        REQUESTS.decode(line)
        request: dict[str, Any] = json.loads(line)
        self.asked.append(request)
        do = request["do"]
        if do in self.answers:
            return dict(self.answers[do])
        try:
            result = getattr(self, f"do_{do}")(request)
        except SluiceError as refused:
            return {"ok": False, "error": refused.as_dict()}
        if isinstance(result, dict) and "error" in result:
            return {"ok": False, "error": result["error"]}
        return {"ok": True, "result": result}

    def move(self) -> None:
        """Advance one second.

        One message arrives, the offlined client falls further behind, draining and replaying clients catch
        up.
        """
        self.add_message("flights.UA", data=flight(self.durable))
        del self.log[:-1_000]
        for place, one in enumerate(self.clients):
            lag = max(
                0,
                one.lag_messages
                + {"offlined": 2_600, "draining": -410, "replaying": -700}.get(one.delivery, 0),
            )
            if one.name == "carrier-ua":
                lag = int(20 + 18 * math.sin(time.time() / 3))
            age = int(lag * (2.4 + 0.6 * math.sin(time.time() / 11)))
            self.clients[place] = structs.replace(
                one,
                lag_messages=lag,
                lag_bytes=lag * 412,
                lag_ms=age,
                seconds_behind=age / 1_000,
                waiting_messages=lag,
                spool_bytes=lag * 40 if one.delivery in ("offlined", "draining") else 0,
                delivered_messages=one.delivered_messages + int(one.rate_out_messages),
                published_messages=one.published_messages + 1_000 * len(one.published_topics),
                published_topics={topic: number + 1_000 for topic, number in one.published_topics.items()},
                subscriptions=[
                    structs.replace(of, delivered_messages=of.delivered_messages + int(one.rate_out_messages))
                    for of in one.subscriptions
                ],
            )

    def do_stalls(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the stalls of the broker, with stacks."""
        return {"stalls": msgspec.to_builtins(self.stalls)}

    def do_status(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the status."""
        wave = math.sin(time.time() / 7)
        states: dict[str, int] = {}
        for one in self.clients:
            states[one.delivery] = states.get(one.delivery, 0) + 1
        uptime = int(time.time() - self.started_at + 93_600)
        return {
            "instance": self.instance,
            "member": self.member,
            "pid": 4242,
            "started_at": int((time.time() - uptime) * 1000),
            "revision": self.revision,
            "next_sequence": self.durable + 1,
            "durable_sequence": self.durable,
            "uptime_s": uptime,
            "transports": [
                {
                    "name": "tcp",
                    "kind": "tcp",
                    "host": "127.0.0.1",
                    "port": 9007,
                    "enabled": True,
                    "clients": 13,
                    "pool": "instance",
                },
                {
                    "name": "websocket",
                    "kind": "websocket",
                    "host": "127.0.0.1",
                    "port": 9008,
                    "enabled": True,
                    "clients": 5,
                    "pool": "websocket",
                },
            ],
            "pools": [
                {
                    "name": "instance",
                    "transports": ["tcp"],
                    "memory_used": 1_860 * MIB,
                    "memory_limit": 2_458 * MIB,
                    "disk_used": 211 * MIB,
                    "disk_limit": 2_458 * MIB,
                    "disk_path": "/var/lib/sluice/spool",
                },
                {
                    "name": "websocket",
                    "transports": ["websocket"],
                    "memory_used": 12 * MIB,
                    "memory_limit": 256 * MIB,
                    "disk_used": 0,
                    "disk_limit": 1_024 * MIB,
                    "disk_path": "/var/lib/sluice/spool",
                },
            ],
            "rates": {
                "messages_in": 5_200 + 900 * wave,
                "bytes_in": 2_142_000 + 370_000 * wave,
                "messages_out": 61_000 + 9_000 * wave,
                "bytes_out": 25_100_000 + 3_700_000 * wave,
            },
            "refused": self.refused and msgspec.to_builtins(self.refused),
            "problems": msgspec.to_builtins(self.problems),
            "stalls": msgspec.to_builtins(stall_totals(self.stalls)),
            "database": self.database and msgspec.to_builtins(self.database),
            "delay": {"p50_ms": 0.896, "p99_ms": 14.336, "messages": 610_000},
            "totals": {"messages_in": 1_336_776, "standstills": 2},
            "clients_by_state": states,
            "recovery": {"kept_records": 0},
            "journal": {"segments": 5, "bytes": 541_065_216},
        }

    def do_clients(self, request: dict[str, Any]) -> list[ClientEntry]:
        """Return all clients."""
        return self.clients

    def do_clients_page(self, request: dict[str, Any]) -> ClientsPage:
        """Return a page of clients, cut as a real broker does."""
        return clients.client_page(self.clients, REQUESTS.decode(json.dumps(request)))

    def add_message(self, topic: str, headers: dict[str, str] | None = None, **body: Any) -> None:
        """Append a record to the log; its body is `data`, `text` or `base64`."""
        self.durable += 1
        self.log.append(
            {
                "bookmark": f"{self.instance}|{self.durable}|",
                "topic": topic,
                "destination": f"/topic/{topic}",
                "at": int(time.time() * 1_000),
                "bytes": len(json.dumps(body)),
                "headers": headers or {},
                **body,
            }
        )

    def do_browse(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return records of the log from a bookmark on; filters are ignored."""
        pattern = TopicPattern.parse(request["topic"])
        after = bookmark_sequence(request.get("bookmark") or "0", self.instance) or 0
        fitting = [
            one
            for one in self.log
            if (bookmark_sequence(one["bookmark"], self.instance) or 0) > after
            and pattern.matches(one["topic"])
        ]
        given = fitting[: request.get("limit", 100)]
        cut = len(given) < len(fitting)
        reached = given[-1]["bookmark"] if cut else f"{self.instance}|{self.durable}|"
        return {"messages": given, "next": reached, "searched": self.durable - after, "complete": not cut}

    def do_publish(self, request: dict[str, Any]) -> dict[str, Any]:
        """Append a JSON message to the log."""
        self.add_message(request["topic"], data=request["data"])
        return {"topic": request["topic"]}

    def do_publish_bytes(self, request: dict[str, Any]) -> dict[str, Any]:
        """Append a message of raw bytes to the log."""
        body = base64.b64decode(request["body"])
        self.add_message(request["topic"], text=body.decode())
        return {"topic": request["topic"], "bytes": len(body)}

    def do_snapshot(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return status and clients."""
        return {"at": int(time.time() * 1000), "status": self.do_status({}), "clients": self.clients}

    def snapshot(self) -> Snapshot:
        """Return the snapshot as the broker's process decodes it."""
        return msgspec.json.decode(msgspec.json.encode(self.do_snapshot({})), type=Snapshot)

    def do_replays(self, request: dict[str, Any]) -> list[dict[str, Any]]:
        """Return all managed replays."""
        return self.replays

    def do_replay_create(self, request: dict[str, Any]) -> dict[str, Any]:
        """Create a managed replay."""
        if any(one["name"] == request["name"] for one in self.replays):
            return {"error": {"code": "replay_exists", "message": "There is one.", "fix": "", "details": {}}}
        asked = {
            key: request.get(key) or None
            for key in ("filter", "rate", "rate_max_gap", "conflation", "conflation_key")
        }
        made = {
            **self.replays[-1],
            **asked,
            "name": request["name"],
            "client": request["client"],
            "topic": request["topic"],
            "state": "paused" if request.get("paused") else "waiting",
            "progress": 0.0,
            "delivered_messages": 0,
            "created_at": int(time.time() * 1000),
            "ended_at": None,
            "unrecorded": False,
        }
        self.replays.insert(0, made)
        return made

    def _steered(self, request: dict[str, Any], **change: Any) -> dict[str, Any]:
        for one in self.replays:
            if one["name"] == request["name"]:
                one.update(change)
                return one
        return {"error": {"code": "unknown_replay", "message": "There is none.", "fix": "", "details": {}}}

    def do_replay_pause(self, request: dict[str, Any]) -> dict[str, Any]:
        """Pause a managed replay."""
        return self._steered(request, state="paused")

    def do_replay_resume(self, request: dict[str, Any]) -> dict[str, Any]:
        """Resume a managed replay."""
        return self._steered(request, state="running")

    def do_replay_rate(self, request: dict[str, Any]) -> dict[str, Any]:
        """Change the rate of a managed replay."""
        return self._steered(request, rate=request.get("rate"), rate_max_gap=request.get("rate_max_gap"))

    def do_replay_cancel(self, request: dict[str, Any]) -> dict[str, Any]:
        """Cancel a managed replay."""
        return self._steered(request, state="cancelled", ended_at=int(time.time() * 1000))

    def do_replay_forget(self, request: dict[str, Any]) -> dict[str, Any]:
        """Accept the removal of a replay, but keep it, so that a test may request it again."""
        return {"name": request["name"]}

    def do_client(self, request: dict[str, Any]) -> ClientEntry | dict[str, Any]:
        """Return the entry of a client, or an error."""
        for one in self.clients:
            if one.name == request["name"]:
                return one
        return {
            "error": {
                "code": "unknown_client",
                "message": f"No client {request['name']!r} is logged on.",
                "fix": "",
                "details": {},
            }
        }

    def do_disconnect(self, request: dict[str, Any]) -> dict[str, Any]:
        """Disconnect a client."""
        found = self.do_client(request)
        if isinstance(found, dict):
            return found
        self.clients.remove(found)
        return {"name": request["name"], "reason": request["reason"]}

    def do_pause(self, request: dict[str, Any]) -> dict[str, Any]:
        """Pause all subscriptions of a client, or one."""
        found = self.do_client(request)
        if isinstance(found, dict):
            return found
        steered = [structs.replace(one, paused=request["do"] == "pause") for one in found.subscriptions]
        self._replace(found, structs.replace(found, subscriptions=steered))
        return {"name": request["name"], "subscriptions": [one.id for one in steered]}

    do_resume = do_pause

    def do_offline(self, request: dict[str, Any]) -> dict[str, Any]:
        """Offline a live client."""
        found = self.do_client(request)
        if isinstance(found, dict):
            return found
        if found.delivery in ("offlined", "draining"):
            return {
                "error": {
                    "code": "not_live",
                    "message": f"{found.name} is {found.delivery} already.",
                    "fix": "",
                    "details": {},
                }
            }
        self._replace(found, structs.replace(found, delivery=DeliveryState.OFFLINED))
        return {"name": found.name, "state": "offlined"}

    def do_forecasts(self, request: dict[str, Any]) -> list[dict[str, Any]] | dict[str, Any]:
        """Return two forecasts: one limit comes nearer, the other does not."""
        found = self.do_client(request)
        if isinstance(found, dict):
            return found
        common = {"mode": "enforce", "per_second": 0.0, "subscription": ""}
        return [
            {
                **common,
                "rule": "amps.client_max_capacity.disk",
                "setting": "ClientMaxCapacity",
                "action": "disconnect",
                "signal": "spool_bytes",
                "value": 900,
                "limit": 1_000,
                "percent": 90.0,
                "per_second": 10.0,
                "fires_in_ms": 10_000,
                "why_none": "",
            },
            {
                **common,
                "rule": "qpid.depth",
                "setting": "depth",
                "action": "disconnect",
                "signal": "backlog_bytes",
                "value": 0,
                "limit": 1_000,
                "percent": 0.0,
                "fires_in_ms": None,
                "why_none": "none of the limit is used",
                "subscription": "sub-1",
            },
        ]

    def do_effective(self, request: dict[str, Any]) -> list[dict[str, Any]] | dict[str, Any]:
        """Return two effective settings of the client and one of its subscription."""
        found = self.do_client(request)
        if isinstance(found, dict):
            return found
        common = {"unit": "bytes", "subscription": ""}
        return [
            {**common, "setting": "amps.message_memory_limit", "value": None, "origin": "default"},
            {
                **common,
                "setting": "amps.client_max_capacity",
                "value": 50,
                "unit": "percent",
                "origin": "instance",
            },
            {
                **common,
                "setting": "qpid.depth",
                "value": 1_048_576,
                "origin": "qpid flights.>",
                "subscription": "sub-1",
            },
        ]

    def _replace(self, before: ClientEntry, after: ClientEntry) -> None:
        self.clients[self.clients.index(before)] = after

    def do_group(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the group that the test has set, or None."""
        if self.group is None:
            message = "This broker isn't in a group."
            return {"error": {"code": "no_group", "message": message, "fix": "", "details": {}}}
        return msgspec.to_builtins(self.group)

    def do_links(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the links that the test has set, or None."""
        return {"links": msgspec.to_builtins(self.links)}

    do_downgrade_member = do_upgrade_member = do_forget_member = do_group
    do_downgrade_link = do_upgrade_link = do_links

    def do_durables(self, request: dict[str, Any]) -> list[dict[str, Any]]:
        """Return two durable subscriptions; the client of one is disconnected."""
        return self.durables

    def do_durable_delete(self, request: dict[str, Any]) -> dict[str, Any]:
        """Delete a durable subscription."""
        key = (request["client"], request["name"])
        kept = [one for one in self.durables if (one["client"], one["name"]) != key]
        if len(kept) == len(self.durables):
            message = f"Client {key[0]} has no durable subscription {key[1]}."
            return {"error": {"code": "unknown_durable", "message": message, "fix": "", "details": {}}}
        self.durables = kept
        return {"client": key[0], "name": key[1], "undelivered": 12}

    def do_apply(self, request: dict[str, Any]) -> dict[str, Any]:
        """Put a policy revision in force."""
        staged = request.get("staged")
        if self.kept is not None and not request.get("decided"):
            raise set_back_error(self.revision, request["policy"]["revision"])
        self.kept = None
        offered = (staged["policy"] if staged else request["policy"])["revision"]
        if offered < self.revision and not request.get("decided"):
            raise older_revision_error(self.revision, offered)
        self.revision = offered
        return {"revision": self.revision}

    def do_check_spools(self, request: dict[str, Any]) -> dict[str, Any]:
        """Accept every directory for spools."""
        return {"revision": self.revision}

    def do_policy(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the policy in force."""
        policy, staged = self.kept or ({"revision": self.revision}, None)
        return {"policy": policy, "staged": staged, "is_set_back": self.kept is not None}

    def do_preview(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return a preview in which the slowest client reaches its capacity.

        A staged revision is previewed if there is one.
        """
        policy = (request.get("staged") or request)["policy"]
        capacity = policy["client_policy"]["client_max_capacity"]
        change = {
            "setting": "amps.client_max_capacity",
            "before": {"value": 50, "origin": "instance"},
            "after": {"value": capacity, "origin": "instance"},
        }
        touched = (
            [
                {"client": one.name, "transport": one.transport, "subscription": "", "changes": [change]}
                for one in self.clients
            ]
            if capacity != 50
            else []
        )
        acted_on = [
            {
                "at": int(time.time() * 1_000),
                "client": "board-jfk",
                "action": "disconnect",
                "mode": "enforce",
                "sentence": "board-jfk would be over its capacity.",
            }
        ]
        return {
            "clients": len(self.clients),
            "touched": touched,
            "touched_in_all": len(touched),
            "acted_on": acted_on if capacity < 10 else [],
            "acted_on_in_all": int(capacity < 10),
            "enforced_in_all": int(capacity < 10),
            "cut_off": [
                {"client": name, "transport": "websocket", "code": "transport_closed"}
                for name in self.cut_off
            ],
            "cut_off_in_all": len(self.cut_off),
            "unrecorded": [
                {
                    "client": name,
                    "subscription": "s",
                    "topic": "flights.a",
                    "subscription_kind": "durable",
                    "connected": True,
                    "extent": "all",
                }
                for name in self.unrecorded
            ],
            "unrecorded_in_all": len(self.unrecorded),
        }

    def do_journals(self, request: dict[str, Any]) -> list[dict[str, Any]]:
        """Return five segments: two archived (one compressed), two sealed, one current."""
        now, day = time.time_ns(), 86_400 * 10**9
        made = []
        for number, (state, packed) in enumerate(
            (("archived", True), ("archived", False), ("sealed", True), ("sealed", False), ("current", False))
        ):
            first = 1 + number * 280_000
            made.append(
                {
                    "name": f"{self.instance}.{first:020d}.journal{'.gz' if packed else ''}",
                    "path": str(self.path.parent / str(first)),
                    "state": state,
                    "compressed": packed,
                    "first_sequence": first,
                    "last_sequence": first + 279_999,
                    "records": 280_000,
                    "first_at": now - (9 - 2 * number) * day,
                    "last_at": now - (7 - 2 * number) * day if number < 4 else now,
                    "bytes": 31_000_000 if packed else 134_217_728,
                    "pinned_by": ["replay of lake-loader", "spool of board-jfk"] if number == 3 else [],
                }
            )
        return made

    def do_journal_plan(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return a plan that chooses the sealed segment that no reader needs."""
        segments = self.do_journals({})
        return {
            "action": request["action"],
            "chosen": [segments[2]["name"]] if request["age_s"] < 30 * 86_400 else [],
            "skipped": [
                {
                    "name": segments[3]["name"],
                    "why": "needed by replay of lake-loader and by the spool of board-jfk",
                },
                {"name": segments[4]["name"], "why": "it is the current segment"},
            ],
            "bytes": 31_000_000 if request["age_s"] < 30 * 86_400 else 0,
        }
