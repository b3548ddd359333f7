"""Settings of access: who may log on to a transport, by what proof, and which topics they may publish and read.

In the document, beside `transports`:

    "access": {
      "users": [{"name": "maria", "password": "scrypt$...", "token": null, "certificate": null, "groups": ["desk"]}],
      "entitlements": [{"who": ["group:desk"], "transports": [], "publish": ["orders.*"], "subscribe": ["orders.>"],
                        "filter": "/region = 'eu'"}]
    }

and in a transport: `authentication`, `restricted`, `tls` and `origins`. Secrets are hashes, never the secrets themselves
(`broker_core.access.credential_hashes`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from broker_core.config.document_reader import DocumentReader, is_list_of, is_path

AUTHENTICATIONS = ("none", "token", "password", "certificate")
MAX_USERS = 10_000
MAX_ENTITLEMENTS = 1_000


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """Files in PEM: the transport's certificate chain, its key, and the authorities of clients' certificates."""

    certificate: str
    key: str
    client_ca: str | None = None


@dataclass(frozen=True, slots=True)
class UserSettings:
    """Somebody who may log on, with one proof or several, for the transports that ask for it.

    password      the hash of one; token: the hash of one
    certificate   the common name or a subject alternative name in the client's certificate
    groups        names that entitlements may speak of as `group:name`
    clients       client names that the user may take, `feed-*` for those that begin so; none means any
    """

    name: str
    password: str | None = None
    token: str | None = None
    certificate: str | None = None
    groups: tuple[str, ...] = ()
    clients: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class EntitlementSettings:
    """What some may do. Entitlements add up; what none of them allows is refused on a restricted transport.

    who          user names, `feed-*` for names that begin so, `group:name`, or `*` for everybody
    transports   names; none means all
    publish      topic patterns that may be published to
    subscribe    topic patterns that may be read
    filter       added to every subscription that this entitlement allows
    """

    who: tuple[str, ...]
    transports: tuple[str, ...] = ()
    publish: tuple[str, ...] = ()
    subscribe: tuple[str, ...] = ()
    filter: str | None = None


@dataclass(frozen=True, slots=True)
class AccessSettings:
    """The users and what they may do."""

    users: tuple[UserSettings, ...] = ()
    entitlements: tuple[EntitlementSettings, ...] = ()


def read_authentication(
    reader: DocumentReader, source: Mapping[str, Any], where: str
) -> tuple[str, bool, TlsSettings | None]:
    """How a transport's clients prove who they are, whether entitlements limit them, and its TLS."""
    proof = source.get("authentication", "none")
    if proof not in AUTHENTICATIONS:
        reader.problems.append(f"{where}: authentication must be one of {', '.join(AUTHENTICATIONS)}")
    tls = _tls(reader, reader.read_object(source, "tls"), where)
    if proof == "certificate" and (tls is None or tls.client_ca is None):
        reader.problems.append(f"{where}: authentication by certificate needs tls with a client_ca")
    return str(proof), bool(reader.read_bool(source, "restricted", where)), tls


ANY_ORIGIN = "*"


def read_origins(reader: DocumentReader, source: Mapping[str, Any], where: str) -> tuple[str, ...]:
    """Whose pages may connect by WebSocket: origins as browsers send them, or * for any."""
    origins = reader.read_texts(source, "origins", where, (), "origins")
    reader.problems += [
        f"{where}: {one[:80]!r} isn't an origin such as https://desk.example:8443, nor *"
        for one in origins
        if one != ANY_ORIGIN and not _is_origin(one)
    ]
    return origins


def _is_origin(text: str) -> bool:
    try:
        found = urlsplit(text)
        return (
            found.scheme in ("http", "https")
            and bool(found.hostname)
            and text == f"{found.scheme}://{found.netloc}"
        )
    except ValueError:
        return False


def is_origin_allowed(origin: str, host: str, origins: Collection[str]) -> bool:
    """Whether a page of an origin may open a WebSocket to a transport that it called by `host`, its name and port. Programs
    send no origin; a page that comes from there itself needs no permission."""
    own = urlsplit(origin).netloc == host and host != ""
    return origin == "" or own or origin in origins or ANY_ORIGIN in origins


def _tls(reader: DocumentReader, source: Mapping[str, Any], where: str) -> TlsSettings | None:
    if not source:
        return None
    reader.check_known_keys(source, TlsSettings.__dataclass_fields__, f"{where}: tls")
    paths = {key: source.get(key) for key in TlsSettings.__dataclass_fields__}
    for key, path in paths.items():
        if not is_path(path) and not (path is None and key == "client_ca"):
            reader.problems.append(f"{where}: tls.{key} must be an absolute path")
            return None
    return TlsSettings(**paths)  # type: ignore[arg-type]


def read_access(reader: DocumentReader, source: Mapping[str, Any]) -> AccessSettings:
    """The users and entitlements."""
    reader.check_known_keys(source, AccessSettings.__dataclass_fields__, "access")
    users = tuple(_user(reader, item) for item in _listed(reader, source, "users", MAX_USERS))
    for key in ("name", "token", "certificate"):
        found = Counter(getattr(user, key) for user in users)
        # A token's hash isn't for the eyes of whoever reads the problem.
        reader.problems += [
            f"two users have the same {key}" if key == "token" else f"two users have the {key} {value}"
            for value, number in found.items()
            if value is not None and number > 1
        ]
    listed = _listed(reader, source, "entitlements", MAX_ENTITLEMENTS)
    return AccessSettings(users, tuple(_entitlement(reader, item, n) for n, item in enumerate(listed, 1)))


def _listed(
    reader: DocumentReader, source: Mapping[str, Any], key: str, most: int
) -> list[Mapping[str, Any]]:
    wanted = f"a list of at most {most} objects"
    return list(
        reader.read_checked(source, key, "access", lambda value: is_list_of(value, Mapping, most), wanted)
        or ()
    )


def _user(reader: DocumentReader, source: Mapping[str, Any]) -> UserSettings:
    where = f"user {source.get('name', '')!r}"
    reader.check_known_keys(source, UserSettings.__dataclass_fields__, where)
    name = reader.read_name(source, where)
    return UserSettings(
        name,
        reader.read_text(source, "password", where),
        reader.read_text(source, "token", where),
        reader.read_text(source, "certificate", where),
        reader.read_texts(source, "groups", where, (), "names"),
        reader.read_texts(source, "clients", where, (), "names"),
    )


def _entitlement(reader: DocumentReader, source: Mapping[str, Any], number: int) -> EntitlementSettings:
    where = f"entitlement {number}"
    reader.check_known_keys(source, EntitlementSettings.__dataclass_fields__, where)
    who = reader.read_texts(source, "who", where, (), "names")
    if not who:
        reader.problems.append(f"{where}: who must name somebody, or be ['*']")
    return EntitlementSettings(
        who,
        reader.read_texts(source, "transports", where, (), "names"),
        reader.read_texts(source, "publish", where, ()),
        reader.read_texts(source, "subscribe", where, ()),
        reader.read_text(source, "filter", where),
    )
