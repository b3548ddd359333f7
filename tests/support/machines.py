"""Fake brokers for a console over several machines: a group of three, a standalone broker, and links.

A *scene* is an event there, in one or two words: `away b`, `back b`, `downgraded c`, `upgraded c`, `refused
b`, `took b`, `linked`, `cut off`. `tests.support.console_server` reads scenes from its input, one per line.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from msgspec import structs

from broker_core.documents.replication import LinkEntry, MemberEntry
from console.broker_addresses import BrokerAddress
from tests.support.fake_broker import CHAIN, FakeBroker, make_client, make_group, make_member, some_clients

GROUP, MEMBERS, OTHER = "sluice-1", ("a", "b", "c"), "prices"
REFUSED = {
    "code": "bad_policy",
    "message": "The transport websocket can't listen at 127.0.0.1:9008: another process does.",
    "fix": "Choose another port.",
    "details": {},
}


class Machines:
    """All fake brokers of the installation; scenes change their answers.

    They are served while the `with` block runs.
    """

    def __init__(self, run: Path) -> None:
        self.members = {name: FakeBroker(run / f"{GROUP}.{name}.sock", GROUP, name) for name in MEMBERS}
        self.members[MEMBERS[0]].cut_off = ["lake-loader"]
        self.other = FakeBroker(run / f"{OTHER}.sock", OTHER)
        self.gone: dict[str, float] = {}
        """Members that are away, and since when, s since 1970."""
        self._downgraded: set[str] = set()
        self._refusing: set[str] = set()
        self.begin_morning()

    @property
    def addresses(self) -> list[BrokerAddress]:
        """Return the addresses of all brokers, as SLUICE_BROKERS lists them."""
        return [BrokerAddress(one.instance, one.member, one.path) for one in self._all]

    @property
    def there(self) -> list[FakeBroker]:
        """Return the brokers that can be reached."""
        return [one for one in self._all if one.member not in self.gone]

    @property
    def _all(self) -> list[FakeBroker]:
        return [*self.members.values(), self.other]

    def __enter__(self) -> Machines:
        for one in self._all:
            one.__enter__()
        return self

    def __exit__(self, *exc: object) -> None:
        for one in self.there:
            one.__exit__()

    def begin_morning(self) -> None:
        """Reset the data: each client is at one member, the publisher and most boards at the first."""
        everyone = some_clients()
        for place, one in enumerate(self.members.values()):
            one.begin_morning()
            mine = [client for number, client in enumerate(everyone) if min(number % 5, 2) == place]
            one.clients = [structs.replace(client, member=one.member) for client in mine]
            if place:  # every member knows these clients, but only the first serves them
                one.replays, one.durables = [], []
        self.other.begin_morning()
        self.other.clients = [make_client("price-board"), make_client("price-loader", "replaying", 4_000)]
        self.other.replays, self.other.durables = [], []
        self._linked()
        self._update_group()

    def take_up(self, revision: int) -> None:
        """Put a policy revision in force in the group."""
        for one in self.members.values():
            one.revision = revision

    def play(self, scene: str) -> None:
        """Apply a scene, given by its words."""
        what, _, name = scene.strip().partition(" ")
        {
            "away": self._away,
            "back": self._back,
            "downgraded": self._downgraded.add,
            "upgraded": self._downgraded.discard,
            "refused": self._refuse,
            "took": self._take,
            "linked": self._linked,
            "cut": self._cut,
        }[what](*[name] if name and what != "cut" else [])
        self._update_group()

    def move(self) -> None:
        """Advance one second."""
        for one in self.there:
            one.move()
            one.clients = [structs.replace(client, member=one.member) for client in one.clients]
        self._update_group()

    def _away(self, name: str) -> None:
        if name not in self.gone:
            self.gone[name] = time.time()
            self.members[name].__exit__()

    def _back(self, name: str) -> None:
        if self.gone.pop(name, None) is not None:
            self.members[name].__enter__()

    def _refuse(self, name: str) -> None:
        """Let a member keep the previous revision and answer with its reason."""
        if name not in self._refusing:
            self._refusing.add(name)
            self.members[name].revision -= 1
            self.members[name].answers["apply"] = {"ok": False, "error": REFUSED}

    def _take(self, name: str) -> None:
        if name in self._refusing:
            self._refusing.discard(name)
            self.members[name].revision += 1
            del self.members[name].answers["apply"]

    def _linked(self) -> None:
        """Make every link carry records, except one that is switched off."""
        self._links(
            _link(
                "newyork",
                state="carrying",
                instance="ny",
                behind=41,
                behind_ms=120,
                position=f"{GROUP}|1336500|",
            ),
            _link(
                "tokyo",
                state="off",
                topic="orders.>",
                instance="tokyo-1",
                behind=20_411,
                behind_ms=5_400_000,
                position=f"{GROUP}|1316165|",
            ),
        )

    def _cut(self) -> None:
        """Cut the link to New York, and make Sydney unreachable."""
        why, fix = "Nobody answers at tcps://ny:9007.", "See whether it runs there, and can be reached."
        self._links(
            _link(
                "newyork",
                state="away",
                instance="ny",
                code="broker_away",
                why=why,
                fix=fix,
                behind=184_220,
                behind_ms=312_000,
                position=f"{GROUP}|1152356|",
            ),
            _link(
                "sydney",
                state="away",
                code="no_link_secret",
                why="There is no secret for sydney.",
                fix="Put a line into SLUICE_LINK_SECRETS.",
                behind=1_336_576,
                position=f"{GROUP}|0|",
            ),
            _link(
                "tokyo",
                state="off",
                topic="orders.>",
                instance="tokyo-1",
                behind=20_411,
                behind_ms=5_400_000,
                position=f"{GROUP}|1316165|",
            ),
        )

    def _links(self, *links: LinkEntry) -> None:
        """Set the links: they are active at the first member, and stand by at the others."""
        for one in self.members.values():
            one.links = [
                link if one.member == MEMBERS[0] or link.state == "off" else _standby(link) for link in links
            ]

    def _update_group(self) -> None:
        """Update the group status of each member; a disconnected member keeps its last report."""
        for one in self.members.values():
            said = [self._entry(name, asked=one.member) for name in MEMBERS]
            one.group = structs.replace(make_group(*said), member=one.member, confirmed=9_811_200)

    def _entry(self, name: str, asked: str) -> MemberEntry:
        since = self.gone.get(name)
        more: dict[str, Any] = {"mode": "sync", "confirmed": 9_811_200, "heard_s": 0.4}
        if name == asked:
            more |= {"alike": None, "heard_s": 0.0}
        if name in self._downgraded:
            more |= {
                "mode": "downgraded",
                "downgraded_by": "policy",
                "confirmed": 9_790_102,
                "unconfirmed_ms": 0,
                "behind": 812,
                "applied": 17_403,
                "sequence": 9_790_102,
                "lag_records": 21_098,
                "lag_ms": 9_700,
            }
        if since is not None:
            heard = time.time() - since
            more |= {
                "there": False,
                "heard_s": heard,
                "behind": int(heard * 3),
                "applied": 18_215 - int(heard * 3),
                "lag_records": int(heard * 1_000),
                "lag_ms": int(heard * 1_000),
                "chain": CHAIN,
                "alike": None,
            }
        return make_member(name, **more)


def _link(name: str, **more: Any) -> LinkEntry:
    usual = {
        "client": f"link.{name}",
        "addresses": [f"tcps://{name}:9007"],
        "topic": "flights.>",
        "filter": None,
        "instance": "",
        "code": "",
        "why": "",
        "fix": "",
        "behind": 0,
        "behind_ms": 0,
        "carried": 20_455 if more["state"] == "carrying" else 0,
        "gaps": 0,
        "connected_at": int(time.time() * 1_000) if more["state"] == "carrying" else None,
    }
    return LinkEntry(name=name, **{**usual, **more})


def _standby(link: LinkEntry) -> LinkEntry:
    return structs.replace(
        link, state="standing by", code="link_in_use", why="", fix="", carried=0, connected_at=None
    )
