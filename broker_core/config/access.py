"""Access settings: users, their credentials, and the topics that they may publish and read.

In the document, beside `transports`:

    "access": {
      "users": [
        {"name": "maria", "password": "scrypt$...", "token": null, "certificate": null, "groups": ["desk"]}
      ],
      "entitlements": [
        {"who": ["group:desk"], "transports": [], "publish": ["orders.*"], "subscribe": ["orders.>"],
         "filter": "/region = 'eu'"}
      ]
    }

A transport adds `authentication`, `restricted`, `tls` and `origins`. The document stores hashes of passwords
and tokens, never the secrets themselves (`broker_core.access.credential_hashes`).
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
    """Paths of a transport's PEM files.

    Attributes:
        certificate: Certificate chain that the transport shows.
        key: Private key of the certificate.
        client_ca: Authorities whose client certificates are accepted. None: no client certificates.
    """

    certificate: str
    key: str
    client_ca: str | None = None


@dataclass(frozen=True, slots=True)
class UserSettings:
    """User account with one or several kinds of credentials.

    Attributes:
        name: Unique user name.
        password: Hash of the password.
        token: Hash of the token, unique among users.
        certificate: Common name or subject alternative name in the client's certificate, unique among users.
        groups: Names of groups. An entitlement refers to a group as `group:NAME`.
        clients: Client names that the user may use. `feed-*` matches every name with that prefix. Empty: any
            name.
    """

    name: str
    password: str | None = None
    token: str | None = None
    certificate: str | None = None
    groups: tuple[str, ...] = ()
    clients: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class EntitlementSettings:
    """Permissions of some users.

    Permissions of several entitlements add up. A restricted transport rejects actions that no entitlement
    permits.

    Attributes:
        who: User names, `feed-*` for every name with that prefix, `group:NAME`, or `*` for all users.
        transports: Names of transports. Empty: all transports.
        publish: Topic patterns that the users may publish to.
        subscribe: Topic patterns that the users may subscribe to.
        filter: Filter that is added to every subscription that this entitlement permits.
    """

    who: tuple[str, ...]
    transports: tuple[str, ...] = ()
    publish: tuple[str, ...] = ()
    subscribe: tuple[str, ...] = ()
    filter: str | None = None


@dataclass(frozen=True, slots=True)
class AccessSettings:
    """Users and entitlements of an instance."""

    users: tuple[UserSettings, ...] = ()
    entitlements: tuple[EntitlementSettings, ...] = ()


def read_authentication(
    reader: DocumentReader, source: Mapping[str, Any], where: str
) -> tuple[str, bool, TlsSettings | None]:
    """Return the authentication method of a transport, whether it is restricted, and its TLS settings.

    Authentication by certificate is a problem unless `tls` names a `client_ca`.
    """
    method = source.get("authentication", "none")
    if method not in AUTHENTICATIONS:
        reader.problems.append(f"{where}: authentication must be one of {', '.join(AUTHENTICATIONS)}")
    tls = _read_tls(reader, reader.read_object(source, "tls"), where)
    if method == "certificate" and (tls is None or tls.client_ca is None):
        reader.problems.append(f"{where}: authentication by certificate needs tls with a client_ca")
    return str(method), bool(reader.read_bool(source, "restricted", where)), tls


ANY_ORIGIN = "*"


def read_origins(reader: DocumentReader, source: Mapping[str, Any], where: str) -> tuple[str, ...]:
    """Read the origins of web pages that may connect by WebSocket, as browsers send them. `*` permits any."""
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
    """Return whether a web page may open a WebSocket to a transport.

    Args:
        origin: The page's origin as its browser sent it. Programs send none ("") and are always allowed.
        host: Host name and port by which the page called the transport. A page from that host is always
            allowed.
        origins: Permitted origins of the transport.
    """
    is_same_host = urlsplit(origin).netloc == host and host != ""
    return origin == "" or is_same_host or origin in origins or ANY_ORIGIN in origins


def _read_tls(reader: DocumentReader, source: Mapping[str, Any], where: str) -> TlsSettings | None:
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
    """Read the users and entitlements of a policy document."""
    reader.check_known_keys(source, AccessSettings.__dataclass_fields__, "access")
    users = tuple(_read_user(reader, item) for item in _read_entries(reader, source, "users", MAX_USERS))
    for key in ("name", "token", "certificate"):
        counts = Counter(getattr(user, key) for user in users)
        # Do not repeat a token's hash in the problem: other operators can read it.
        reader.problems += [
            f"two users have the same {key}" if key == "token" else f"two users have the {key} {value}"
            for value, number in counts.items()
            if value is not None and number > 1
        ]
    entries = _read_entries(reader, source, "entitlements", MAX_ENTITLEMENTS)
    return AccessSettings(
        users, tuple(_read_entitlement(reader, item, n) for n, item in enumerate(entries, 1))
    )


def _read_entries(
    reader: DocumentReader, source: Mapping[str, Any], key: str, max_entries: int
) -> list[Mapping[str, Any]]:
    expected = f"a list of at most {max_entries} objects"
    return list(
        reader.read_checked(
            source, key, "access", lambda value: is_list_of(value, Mapping, max_entries), expected
        )
        or ()
    )


def _read_user(reader: DocumentReader, source: Mapping[str, Any]) -> UserSettings:
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


def _read_entitlement(reader: DocumentReader, source: Mapping[str, Any], number: int) -> EntitlementSettings:
    where = f"entitlement {number}"
    reader.check_known_keys(source, EntitlementSettings.__dataclass_fields__, where)
    users = reader.read_texts(source, "who", where, (), "names")
    if not users:
        reader.problems.append(f"{where}: who must name a user or group, or be ['*']")
    return EntitlementSettings(
        users,
        reader.read_texts(source, "transports", where, (), "names"),
        reader.read_texts(source, "publish", where, ()),
        reader.read_texts(source, "subscribe", where, ()),
        reader.read_text(source, "filter", where),
    )
