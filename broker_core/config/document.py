"""Policy document: parses one policy revision from JSON and checks the directories that it names.

A policy may name directories only below configured roots (`SLUICE_DIRECTORY_ROOTS`). The roots come from the
environment, not from a policy. So an operator who may edit policies cannot make the broker write to an
arbitrary directory of the machine.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from broker_core.config.access import AccessSettings, read_access
from broker_core.config.destinations import DestinationSettings, read_destinations
from broker_core.config.document_reader import DocumentReader, bad_policy_error
from broker_core.config.instance import GROUP_DEFAULTS, InstanceSettings, read_instance
from broker_core.config.preset_settings import (
    DEFAULT_CLIENT_MAX_CAPACITY,
    ActiveMqPolicy,
    ClientPolicy,
    PoolSettings,
    QpidTopicPolicy,
    QuotaSettings,
    XapPolicy,
)
from broker_core.config.presets import (
    read_activemq,
    read_client_policy,
    read_pool,
    read_qpid,
    read_quotas,
    read_xap,
)
from broker_core.config.rules import RuleSettings, read_rules
from broker_core.config.transports import TRANSPORT_DEFAULTS, TransportSettings, read_transport
from broker_core.errors import OperatorError

MAX_NAME_BYTES: Final = 255
"""Maximum bytes of one name in a path, on Linux's file systems."""
MAX_PATH_BYTES: Final = 3_800
"""Maximum bytes of a directory's path: Linux's 4,096 less the names of files in it."""


@dataclass(frozen=True, slots=True)
class PolicyDocument:
    """Policy revision: all settings of an instance.

    `client_policy` is the instance-wide client policy. Its `client_max_capacity` is always set.
    """

    revision: int
    instance: InstanceSettings
    pool: PoolSettings
    client_policy: ClientPolicy
    transports: tuple[TransportSettings, ...]
    rules: tuple[RuleSettings, ...] = ()
    """Custom rules of the operators."""
    xap: tuple[XapPolicy, ...] = ()
    activemq: tuple[ActiveMqPolicy, ...] = ()
    qpid: tuple[QpidTopicPolicy, ...] = ()
    access: AccessSettings = field(default_factory=AccessSettings)
    """Users and their permissions."""
    quotas: tuple[QuotaSettings, ...] = ()
    """Limits on the resources of one user or one client."""
    destinations: tuple[DestinationSettings, ...] = ()
    """Links to other brokers or groups."""

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> PolicyDocument:
        """Parse and validate a policy document.

        Raises:
            OperatorError: `bad_policy`, with a list of all problems in `details["problems"]`.
        """
        reader = DocumentReader()
        policy = _read_document(reader, document)
        if reader.problems or policy is None:
            raise bad_policy_error(reader.problems)
        return policy

    def to_dict(self) -> dict[str, Any]:
        """Return the document as JSON-compatible data. `from_dict(to_dict())` returns an equal policy."""
        made: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(self))
        made["instance"]["journaled_topics"] = [topic.to_json() for topic in self.instance.journaled_topics]
        # Settings at their defaults are omitted, so that documents written before a setting existed stay
        # unchanged.
        for key, default in GROUP_DEFAULTS.items():
            if made["instance"][key] == default:
                del made["instance"][key]
        if self.access == AccessSettings():
            del made["access"]
        if not self.destinations:
            del made["destinations"]
        for transport in made["transports"]:
            for key, default in TRANSPORT_DEFAULTS.items():
                if transport[key] == default:
                    del transport[key]
        return made

    def transport(self, name: str) -> TransportSettings:
        """Return the transport with that name.

        Raises:
            OperatorError: `unknown_transport`.
        """
        for transport in self.transports:
            if transport.name == name:
                return transport
        raise OperatorError(
            "unknown_transport", f"The transport {name!r} doesn't exist.", "See /api/v1/transports."
        )

    def client_policy_for(self, transport: str) -> ClientPolicy:
        """Return the effective client policy of a transport.

        The transport's values override those of the instance. An unknown transport gets the instance's
        values.
        """
        for found in self.transports:
            if found.name == transport:
                overrides = {
                    key: value for key, value in asdict(found.client_policy).items() if value is not None
                }
                return replace(self.client_policy, **overrides)
        return self.client_policy


def default_policy(
    instance_name: str,
    *,
    tcp_port: int = 9007,
    websocket_port: int = 9008,
    stomp_port: int = 61613,
    stomp_ws_port: int = 61614,
) -> PolicyDocument:
    """Return revision 1 of a new instance, with four transports.

    TCP on 9007 and WebSocket on 9008 are AMPS's defaults. STOMP on 61613 and 61614 are ActiveMQ's.
    """
    return PolicyDocument(
        1,
        InstanceSettings(instance_name),
        PoolSettings(),
        ClientPolicy(client_max_capacity=DEFAULT_CLIENT_MAX_CAPACITY),
        (
            TransportSettings("tcp", "tcp", tcp_port),
            TransportSettings("websocket", "websocket", websocket_port),
            TransportSettings("stomp", "stomp", stomp_port),
            TransportSettings("stomp-ws", "stomp-ws", stomp_ws_port),
        ),
    )


def _read_document(reader: DocumentReader, source: Mapping[str, Any]) -> PolicyDocument | None:
    reader.check_known_keys(source, PolicyDocument.__dataclass_fields__, "policy")
    revision = reader.read_int(source, "revision", "policy", 1, 2**31 - 1) or 0
    instance = read_instance(reader, reader.read_object(source, "instance"))
    pool = read_pool(reader, reader.read_object(source, "pool"), "pool")
    client = read_client_policy(reader, reader.read_object(source, "client_policy"), "client_policy")
    if client.client_max_capacity is None:
        client = ClientPolicy(DEFAULT_CLIENT_MAX_CAPACITY, client.client_message_age_limit_ms)
    entries = source.get("transports")
    if not isinstance(entries, (list, tuple)) or not 1 <= len(entries) <= 64:
        reader.problems.append("transports must be a list of 1 to 64")
        return None
    transports = tuple(read_transport(reader, item) for item in entries if isinstance(item, Mapping))
    if len(transports) != len(entries):
        reader.problems.append("every transport must be an object")
    reader.check_unique([transport.name for transport in transports], "transport name")
    reader.check_unique([(t.host, t.port) for t in transports if t.port], "address of a transport")
    return PolicyDocument(
        revision,
        instance,
        pool,
        client,
        transports,
        read_rules(reader, source.get("rules")),
        read_xap(reader, source.get("xap")),
        read_activemq(reader, source.get("activemq")),
        read_qpid(reader, source.get("qpid")),
        read_access(reader, reader.read_object(source, "access")),
        read_quotas(reader, source.get("quotas")),
        read_destinations(reader, source.get("destinations")),
    )


class DirectoryDefaults(NamedTuple):
    """Directories that an installation uses where its policy names none."""

    journal: Path
    archive: Path
    spool: Path


def misplaced_directories(
    policy: PolicyDocument,
    roots: Sequence[Path],
    reserved: Sequence[Path] = (),
    defaults: DirectoryDefaults | None = None,
) -> list[str]:
    """Return one sentence for each directory that a policy must not name.

    Each directory must lie below a root and must not overlap a reserved path. Spools and segments must be
    separate: neither directory may contain the other. Symbolic links are followed.

    Args:
        policy: The policy to check.
        roots: Directories below which a policy may place files.
        reserved: Paths that are in use for other purposes.
        defaults: The installation's directories, compared with those that the policy names. None: not
            compared.
    """
    named = list(_named_directories(policy))
    if unreadable := _unreadable_paths(named):
        return unreadable
    return misplaced_paths(named, roots, reserved) + _shared_directories(policy, named, defaults)


def misplaced_paths(
    named: Sequence[tuple[str, Path]], roots: Sequence[Path], reserved: Sequence[Path]
) -> list[str]:
    """Return one sentence for each setting whose path is relative, outside all roots, or overlaps `reserved`.

    A relative path is refused because it would depend on the working directory of the process.
    """
    allowed = [root.resolve() for root in roots]
    relative = [
        f"{setting}: {path} isn't an absolute path" for setting, path in named if not path.is_absolute()
    ]
    if unreadable := _unreadable_paths(named):
        return relative + unreadable
    outside = [
        f"{setting}: {path} isn't under {', '.join(map(str, roots))} (SLUICE_DIRECTORY_ROOTS)"
        for setting, path in named
        if path.is_absolute() and not any(path.resolve().is_relative_to(root) for root in allowed)
    ]
    overlapping = [
        f"{setting}: {path} overlaps {reserved_path}, which has another purpose"
        for (setting, path), reserved_path in product(named, reserved)
        if paths_overlap(path, reserved_path)
    ]
    return relative + outside + overlapping


def paths_overlap(one: Path, other: Path) -> bool:
    """Return whether two paths are equal, or one contains the other.

    Follows symbolic links and compares mounts.
    """
    first, second = one.resolve(), other.resolve()
    return _is_within(first, second) or _is_within(second, first)


def _is_within(outer: Path, inner: Path) -> bool:
    """Return whether the resolved path `inner` equals `outer` or lies below it.

    Device and inode are compared too, so that a directory that is mounted twice is recognised.
    """
    if inner.is_relative_to(outer):
        return True
    found = _identity(outer)
    return found is not None and any(_identity(one) == found for one in (inner, *inner.parents))


def _identity(path: Path) -> tuple[int, int] | None:
    """Return the device and inode of a path, or None if the path does not exist."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _unreadable_paths(named: Sequence[tuple[str, Path]]) -> list[str]:
    """Return one sentence for each setting whose path cannot be resolved, such as a link loop, or created."""
    problems = []
    for setting, path in named:
        if not str(path).isprintable():
            problems.append(f"{setting}: {str(path)!r} has control characters")
            continue
        if len(os.fsencode(path)) > MAX_PATH_BYTES or any(
            len(os.fsencode(name)) > MAX_NAME_BYTES for name in path.parts
        ):
            problems.append(
                f"{setting}: the path is too long: it has at most {MAX_PATH_BYTES} bytes, and each of its "
                f"names {MAX_NAME_BYTES}"
            )
            continue
        try:
            path.resolve()
        except (OSError, RuntimeError, ValueError) as problem:
            problems.append(f"{setting}: {path} can't be followed: {problem}")
    return problems


def check_directories(
    policy: PolicyDocument,
    roots: Sequence[Path],
    reserved: Sequence[Path] = (),
    defaults: DirectoryDefaults | None = None,
) -> None:
    """Raise an error if a policy names a directory that it must not; see `misplaced_directories`.

    Raises:
        OperatorError: `outside_roots`.
    """
    if problems := misplaced_directories(policy, roots, reserved, defaults):
        raise outside_roots_error(problems)


def outside_roots_error(problems: list[str]) -> OperatorError:
    """Return the error for directories that a policy must not name; `problems` has one sentence for each."""
    return OperatorError(
        "outside_roots",
        f"The policy names directories that it may not: {'; '.join(problems)}.",
        "Use a separate directory below a root, or add a root to SLUICE_DIRECTORY_ROOTS and restart.",
        problems=problems,
    )


def _shared_directories(
    policy: PolicyDocument, named: Sequence[tuple[str, Path]], defaults: DirectoryDefaults | None
) -> list[str]:
    """Return one sentence for each pair of directories that must be separate but overlap.

    Spools must not overlap segments. The journal and the archive must be different directories. Only pairs in
    which the policy names at least one directory are checked: the policy cannot change the installation's own
    directories.
    """
    instance = policy.instance
    spools = [(setting, path) for setting, path in named if setting.endswith("message_disk_path")]
    segments = [(setting, path) for setting, path in named if not setting.endswith("message_disk_path")]
    all_spools, all_segments = list(spools), list(segments)
    if defaults is not None:
        all_spools += [("the installation's spool directory", defaults.spool)] * (
            policy.pool.message_disk_path is None
        )
        all_segments += [("the installation's journal directory", defaults.journal)] * (
            instance.journal_directory is None
        )
        all_segments += [("the installation's archive directory", defaults.archive)] * (
            instance.archive_directory is None
        )
    pairs = {*product(spools, all_segments), *product(segments, all_spools)}
    problems = [
        f"{one}: {path} overlaps {another} ({other}): spools and segments lie apart"
        for (one, path), (another, other) in sorted(pairs)
        if (one, path) in spools or (another, other) not in spools
        if paths_overlap(path, other)
    ]
    journal, archive = (
        Path(configured) if configured is not None else default
        for configured, default in (
            (instance.journal_directory, defaults and defaults.journal),
            (instance.archive_directory, defaults and defaults.archive),
        )
    )
    if segments and journal is not None and archive is not None and journal.resolve() == archive.resolve():
        problems.append(f"instance: archive_directory: {archive} is the journal's directory")
    return problems


def _named_directories(policy: PolicyDocument) -> Iterator[tuple[str, Path]]:
    instance = policy.instance
    named: Iterable[tuple[str, str | None]] = (
        ("instance: journal_directory", instance.journal_directory),
        ("instance: archive_directory", instance.archive_directory),
        ("pool: message_disk_path", policy.pool.message_disk_path),
        *(
            (f"transport {one.name!r}: message_disk_path", one.pool.message_disk_path)
            for one in policy.transports
        ),
    )
    yield from ((setting, Path(path)) for setting, path in named if path is not None)
