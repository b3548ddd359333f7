"""Destinations: other brokers or groups to which links forward this instance's records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from broker_core.config.document_reader import DocumentReader, is_list_of
from broker_core.names import LINK_PREFIX, MAX_NAME

MAX_DESTINATIONS: Final = 32
MAX_ADDRESSES: Final = 16
MAX_TEXT: Final = 4_096
BEGIN_POSITIONS: Final = ("oldest", "now")
DURABILITIES: Final = ("async", "sync")


@dataclass(frozen=True, slots=True)
class DestinationSettings:
    """Link that forwards records of this instance to another broker or group.

    Attributes:
        name: Name of the link. Its client and its managed replay are named `link.NAME`.
        addresses: `tcp://` or `tcps://` addresses of a broker, or of the members of a group. The link tries
            them in order.
        topic: Topic or pattern of the records to forward. Default `>`: all topics.
        filter: Filter that a record must pass to be forwarded. None: all records.
        begin: First record of a new link: the `oldest` record of the log (default), or `now` for new records
            only.
        durability: `sync`: publishers get their acknowledgement after the destination has the record. `async`
            (default): publishers do not wait for the destination.
        enabled: Default true. A disabled link keeps its position, and pins the log from there on.
        ca: PEM file of the authority that signed the destination's certificate. None: the system's
            authorities.
        certificate: PEM file of the certificate that the link shows, on the broker's machine. Needs `key`.
        key: PEM file of the private key of `certificate`.
    """

    name: str
    addresses: tuple[str, ...]
    topic: str = ">"
    filter: str | None = None
    begin: str = "oldest"
    durability: str = "async"
    enabled: bool = True
    ca: str | None = None
    certificate: str | None = None
    key: str | None = None

    @property
    def is_sync(self) -> bool:
        """Whether publishers wait for this destination, unless a timeout or an operator has downgraded it."""
        return self.durability == "sync" and self.enabled


def read_destinations(reader: DocumentReader, source: Any) -> tuple[DestinationSettings, ...]:
    """Read the list `destinations` of a policy document."""
    if source is None:
        return ()
    if not is_list_of(source, Mapping, MAX_DESTINATIONS):
        reader.problems.append(f"destinations must be a list of at most {MAX_DESTINATIONS} objects")
        return ()
    found = tuple(_read_destination(reader, entry) for entry in source)
    names = [one.name for one in found]
    reader.problems += [
        f"destination {name}: there are two entries"
        for name in sorted({n for n in names if names.count(n) > 1})
    ]
    return found


def _read_destination(reader: DocumentReader, entry: Mapping[str, Any]) -> DestinationSettings:
    where = f"destination {str(entry.get('name') or '')[:MAX_NAME]}".rstrip()
    reader.check_known_keys(entry, DestinationSettings.__dataclass_fields__, where)
    name = reader.read_name(entry, where)
    if len(name) > MAX_NAME - len(LINK_PREFIX):
        reader.problems.append(f"{where}: name must be at most {MAX_NAME - len(LINK_PREFIX)} characters")
    addresses = reader.read_texts(entry, "addresses", where, (), "addresses")
    if not 1 <= len(addresses) <= MAX_ADDRESSES or not all(map(_is_address, addresses)):
        reader.problems.append(
            f"{where}: addresses must be 1 to {MAX_ADDRESSES} of tcp://HOST:PORT or tcps://HOST:PORT"
        )
    begin = reader.read_checked(
        entry, "begin", where, BEGIN_POSITIONS.__contains__, f"one of {', '.join(BEGIN_POSITIONS)}"
    )
    durability = reader.read_checked(
        entry, "durability", where, DURABILITIES.__contains__, f"one of {', '.join(DURABILITIES)}"
    )
    if durability == "sync" and begin == "now":
        reader.problems.append(
            f"{where}: sync requires begin oldest. Create a link that begins now as async; change "
            "it to sync when it forwards"
        )
    enabled = reader.read_bool(entry, "enabled", where)
    certificate, key = reader.read_path(entry, "certificate", where), reader.read_path(entry, "key", where)
    if (certificate is None) != (key is None):
        reader.problems.append(f"{where}: certificate and key go together")
    return DestinationSettings(
        name,
        addresses,
        _read_text(reader, entry, "topic", where) or ">",
        _read_text(reader, entry, "filter", where),
        begin or "oldest",
        durability or "async",
        enabled is not False,
        reader.read_path(entry, "ca", where),
        certificate,
        key,
    )


def _is_address(text: str) -> bool:
    return len(text) <= MAX_TEXT and text.startswith(("tcp://", "tcps://"))


def _read_text(reader: DocumentReader, entry: Mapping[str, Any], key: str, where: str) -> str | None:
    def is_valid(value: Any) -> bool:
        return isinstance(value, str) and len(value) <= MAX_TEXT

    found: str | None = reader.read_checked(
        entry, key, where, is_valid, f"a text of at most {MAX_TEXT} characters"
    )
    return found or None
