"""Commands of clients: a typed struct for each, and the function that parses them.

Unknown fields are refused by name: a misspelt `bookmark` that is silently ignored would lose messages.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

import msgspec

from broker_core.batch import MAX_SESSION
from broker_core.config.preset_settings import MAX_PREFETCH
from broker_core.errors import ClientError
from broker_core.names import MAX_NAME
from broker_core.protocols.field_info import field_meta, get_tag, list_fields, list_structs, list_tags
from broker_core.protocols.names import (
    MAX_SUBSCRIPTION_ID,
    MAX_TOPIC_BYTES,
    check_client_name,
    check_subscription_id,
    check_topic,
)

MAX_TOKEN = 4_096
MAX_HEARTBEAT_MS = 3_600_000
MIN_HEARTBEAT_MS = 100

Durability = Literal["persisted", "live", "fully_durable"]
OnGap = Literal["replay", "error"]
AckWord = Literal["auto", "client", "client-individual", "none"]
ResumeHow = Literal["log", "conflated", "now"]
MAX_ACK_RANGES = 1_000
MAX_DELIVERIES = 1_000
MIN_LEASE_MS = 1_000
MAX_LEASE_MS = 3_600_000
_NAME_LETTERS = f"1 to {MAX_NAME} of `A-Z a-z 0-9 _ . -`, not dots alone"
_Name = Annotated[str, field_meta(_NAME_LETTERS, pattern=rf"^(?!\.+\Z)[A-Za-z0-9_.-]{{1,{MAX_NAME}}}\Z")]
_ClientName = Annotated[str, field_meta(_NAME_LETTERS)]
"""Client name. `names.check_client_name` checks it, because that check has an error code of its own."""
_Topic = Annotated[str, field_meta(f"1 to {MAX_TOPIC_BYTES} bytes, see Topics")]
_Pattern = Annotated[
    str, field_meta("1 to 1,024 characters, a topic pattern", min_length=1, max_length=1_024)
]
_Filter = Annotated[str, field_meta("up to 4,096 characters, a filter")]
_Id = Annotated[str, field_meta(max_length=128)]
_SubscriptionId = Annotated[
    str,
    field_meta(
        f"1 to {MAX_SUBSCRIPTION_ID} printable characters", min_length=1, max_length=MAX_SUBSCRIPTION_ID
    ),
]
_Ids = Annotated[list[_SubscriptionId], field_meta(min_length=1, max_length=1_000)]
_Bookmark = Annotated[str, field_meta("up to 4,096 characters, a bookmark", max_length=4_096)]
_Rate = Annotated[str, field_meta("1 to 64 characters, a rate", min_length=1, max_length=64)]
_Interval = Annotated[str, field_meta("an interval, 1 ms to 24 h", min_length=1, max_length=64)]
_Key = Annotated[str, field_meta("1 to 1,024 characters, a key", min_length=1, max_length=1_024)]
_Secret = Annotated[str, field_meta(max_length=MAX_TOKEN)]
_Sequence = Annotated[int, field_meta(ge=1, le=2**63 - 1)]
_Bytes = Annotated[int, field_meta(unit="bytes", ge=0, le=2**63 - 1)]


class _Command(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True, tag_field="c"
):
    """Base of all commands. The field `c` has the name of the command."""


class Logon(_Command, frozen=True, kw_only=True, tag="logon"):
    """First command of a connection. A second client of the same name replaces the first one.

    Args:
        name: client name, unique on the instance or in the group.
        version: protocol version.
        id: id of the command, repeated in the reply.
        user: user name.
        password: password, on a transport that requires one.
        token: access token, on a transport that requires one.
        heartbeat_ms: interval in which both sides send something, ms.
        session: publisher session of the client's publisher sequences.
    """

    name: _ClientName
    version: Annotated[int, field_meta("1")] = 1
    id: _Id | None = None
    user: Annotated[str, field_meta(max_length=256)] | None = None
    password: _Secret | None = None
    token: _Secret | None = None
    heartbeat_ms: Annotated[int, field_meta(unit="ms", ge=MIN_HEARTBEAT_MS, le=MAX_HEARTBEAT_MS)] | None = (
        None
    )
    session: Annotated[int, field_meta(ge=1, le=MAX_SESSION)] | None = None

    def __repr__(self) -> str:
        # Secrets must not reach a log through a traceback.
        return f"Logon(name={self.name!r}, user={self.user!r}, version={self.version})"


class Publish(_Command, frozen=True, kw_only=True, tag="publish"):
    """Publish one message as JSON, for people and small tools. Programs send record batches instead.

    Args:
        topic: topic of the message.
        data: body as any JSON, stored byte for byte. Exactly one of `data` and `text` is given.
        text: body as a string, stored as UTF-8.
        sequence: publisher sequence.
        ack: requested acknowledgements. Without any, only an error is answered.
        id: id of the command, repeated in the reply.
    """

    topic: _Topic
    data: msgspec.Raw = msgspec.Raw()
    text: str | None = None
    sequence: _Sequence | None = None
    ack: Annotated[list[Literal["processed", "persisted"]], field_meta(max_length=2)] = []
    id: _Id | None = None

    def body(self) -> bytes:
        """Return the body of the message as bytes."""
        return bytes(self.data) if self.text is None else self.text.encode()


class Subscribe(_Command, frozen=True, kw_only=True, tag="subscribe"):
    """Subscribe to the records of a topic pattern.

    Args:
        id: id of the subscription, chosen by the client.
        topic: topic or topic pattern.
        filter: filter on the records.
        bookmark: position in the log after which the subscription begins; None: live records only, or the
            stored position of a durable subscription.
        on_gap: reaction to records after the bookmark that were removed. `replay` begins with the oldest
            existing record after a gap notice, `error` refuses the subscription.
        timestamp: add to each message the time at which the broker accepted it.
        durability: when a record is delivered after the replay. `persisted`: when it is on this instance's
            disk; `live`: before that; `fully_durable`: when all synchronous replication destinations have it,
            too.
        rate, rate_max_gap: speed of the delivery, see replay/rate_limit.py.
        paused: deliver nothing before a `resume`.
        conflation, conflation_key: interval and key, see delivery/conflation.py.
        managed: name of a managed replay, which the broker keeps when its client disconnects.
        received: bookmark of the last record of the managed replay that the client has.
        ack: acknowledgement mode.
        prefetch: maximum number of unacknowledged messages.
        durable: name of a durable subscription.
        shared: share the durable subscription with other clients. Each record goes to one of them.
        max_deliveries: how often consumers may fail with a record of a shared subscription; 0: any number.
        lease_ms: the subscription ends if it isn't renewed within this time, ms.
        snapshot_key: without a bookmark, begin with the last record of each value of this key. A policy may
            also conflate by it.
        resume: resume token.
        resume_how: with `resume`: `log` delivers all missed records, `conflated` the last one per key, `now`
            none.
        credit: bytes that may be sent before the client grants more.
    """

    id: _SubscriptionId
    topic: _Pattern
    filter: _Filter | None = None
    bookmark: _Bookmark | None = None
    on_gap: OnGap | None = None
    timestamp: bool = False
    durability: Durability | None = None
    rate: _Rate | None = None
    rate_max_gap: _Interval | None = None
    paused: bool = False
    conflation: _Interval | None = None
    conflation_key: _Key | None = None
    managed: _Name | None = None
    received: _Bookmark | None = None
    ack: AckWord | None = None
    prefetch: Annotated[int, field_meta(unit="messages", ge=1, le=MAX_PREFETCH)] | None = None
    durable: _Name | None = None
    shared: bool = False
    max_deliveries: (
        Annotated[int, field_meta(unit="deliveries, 0 for any number", ge=0, le=MAX_DELIVERIES)] | None
    ) = None
    lease_ms: Annotated[int, field_meta(unit="ms", ge=MIN_LEASE_MS, le=MAX_LEASE_MS)] | None = None
    snapshot_key: _Key | None = None
    resume: Annotated[str, field_meta(max_length=8_192)] | None = None
    resume_how: ResumeHow | None = None
    credit: _Bytes | None = None


class Acknowledge(_Command, frozen=True, kw_only=True, tag="ack"):
    """Acknowledge messages of a subscription with `ack`, by exactly one of `upto`, `bookmark` and `numbers`.

    A subscription with `client-individual` acknowledges only the named messages, others all before them as
    well.

    Args:
        id: id of the subscription.
        upto: number of a message, counted from 1 in the order of their delivery.
        bookmark: bookmark of a message.
        numbers: ranges of message numbers: first and last of each.
    """

    id: _SubscriptionId
    upto: _Sequence | None = None
    bookmark: _Bookmark | None = None
    numbers: Annotated[list[tuple[_Sequence, _Sequence]], field_meta(max_length=MAX_ACK_RANGES)] = []


class NoticeReceived(_Command, frozen=True, kw_only=True, tag="told"):
    """Confirm the receipt of a decision notice, by the id of its `decision`."""

    decision: Annotated[str, field_meta(max_length=64)]


class RenewLease(_Command, frozen=True, kw_only=True, tag="renew"):
    """Renew the lease of a subscription."""

    id: _SubscriptionId


class GrantCredit(_Command, frozen=True, kw_only=True, tag="credit"):
    """Grant credit to a subscription: `upto` is the total of bytes it may be sent, counted from its start."""

    id: _SubscriptionId
    upto: _Bytes


class Skip(_Command, frozen=True, kw_only=True, tag="skip"):
    """Give up refused publisher sequences, so that later ones are accepted again on this connection.

    `sequence` is the last refused one: the client has read every refusal up to it.
    """

    sequence: _Sequence


class PauseSubscriptions(_Command, frozen=True, kw_only=True, tag="pause"):
    """Pause bookmark subscriptions at their position.

    Each is acknowledged with the bookmark after which it resumes.
    """

    ids: _Ids


class ResumeSubscriptions(_Command, frozen=True, kw_only=True, tag="resume"):
    """Resume paused subscriptions.

    Those at the same bookmark with the same rate share one replay from then on.
    """

    ids: _Ids


class SetRate(_Command, frozen=True, kw_only=True, tag="rate"):
    """Change the speed of bookmark subscriptions; without `rate`, deliver as fast as the client reads."""

    ids: _Ids
    rate: _Rate | None = None
    rate_max_gap: _Interval | None = None


class Unsubscribe(_Command, frozen=True, kw_only=True, tag="unsubscribe"):
    """End a subscription. `delete` also deletes its durable subscription."""

    id: _SubscriptionId
    delete: bool = False


class ClientHeartbeat(_Command, frozen=True, kw_only=True, tag="heartbeat"):
    """Sign of life of a client."""


class Flush(_Command, frozen=True, kw_only=True, tag="flush"):
    """Request a `completed` reply when all messages published before are acknowledged."""

    id: _Id


Command = (
    Logon
    | Publish
    | Subscribe
    | Unsubscribe
    | ClientHeartbeat
    | Flush
    | PauseSubscriptions
    | ResumeSubscriptions
    | SetRate
    | Acknowledge
    | NoticeReceived
    | RenewLease
    | GrantCredit
    | Skip
)
NAMES = list_tags(Command)
"""Names of all commands."""
_STRUCTS = dict(zip(NAMES, list_structs(Command), strict=True))


class _CommandTag(msgspec.Struct):
    """Parts of a refused command that its error repeats."""

    c: Any = None
    id: Any = None
    sequence: Any = None


_decode = msgspec.json.Decoder(Command).decode
_decode_tag = msgspec.json.Decoder(_CommandTag).decode


def parse_command(payload: bytes | bytearray | memoryview | str) -> Command:
    """Parse the command in a COMMAND frame's payload or a WebSocket text.

    Raises:
        ClientError: bad_command, unknown_command, bad_topic, bad_logon or bad_client_name. The details name
            the field, or the byte if it isn't JSON, and repeat the command's `c` and `id` if they are
            readable.
    """
    try:
        command: Command = _decode(payload)
    except msgspec.ValidationError as problem:
        raise _parse_error(payload, str(problem)) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as problem:
        raise ClientError("bad_command", f"The command isn't JSON: {problem}.", _FIX) from None
    try:
        _check(command)
    except ClientError as error:
        raise with_command(error, command) from None
    return command


def with_command(error: ClientError, command: Command) -> ClientError:
    """Add the name and id of a command to an error, unless it has them. Return the error."""
    error.details.setdefault("c", get_tag(type(command)))
    if identity := getattr(command, "id", None):
        error.details.setdefault("id", identity)
    if isinstance(command, Publish) and command.sequence:
        error.details |= {"first": command.sequence, "sequence": command.sequence}
    return error


_FIX = 'A command is one JSON object with the field "c"; docs/protocol.md lists them.'


def _check(command: Command) -> None:
    """Check what the structs' types can't express."""
    if isinstance(command, Publish):
        check_topic(command.topic)
        if bool(bytes(command.data)) == (command.text is not None):
            sentence = "publish takes `data` or `text`, and exactly one of them."
            raise _bad_field_error("data", sentence, 'Send {"c":"publish","topic":"a.b","data":{"x":1}}.')
    elif isinstance(command, Subscribe | Unsubscribe | Acknowledge | RenewLease | GrantCredit):
        check_subscription_id(command.id)
        if isinstance(command, Acknowledge):
            if sum((command.upto is not None, command.bookmark is not None, bool(command.numbers))) != 1:
                sentence = "ack takes `upto`, `bookmark` or `numbers`, and exactly one of them."
                raise _bad_field_error("upto", sentence, 'Send {"c":"ack","id":"s","upto":12}.')
        elif isinstance(command, Subscribe):
            for contradiction in _find_contradictions(command):
                raise _bad_field_error(*contradiction)
    elif isinstance(command, PauseSubscriptions | ResumeSubscriptions | SetRate):
        for one in command.ids:
            check_subscription_id(one)
        if isinstance(command, SetRate) and command.rate_max_gap is not None and command.rate is None:
            raise _bad_field_error(*_GAP_WITHOUT_RATE)
    elif isinstance(command, Logon):
        check_client_name(command.name)
        if command.version != 1:
            raise ClientError(
                "bad_logon",
                f"Protocol version {command.version} isn't spoken here.",
                "Use version 1.",
                field="version",
            )


_GAP_WITHOUT_RATE = ("rate_max_gap", "rate_max_gap is an option of rate.", "Give a rate such as 2X.")

_NOT_WITH_SHARED = (
    "on_gap",
    "durability",
    "rate",
    "rate_max_gap",
    "paused",
    "conflation",
    "managed",
    "received",
    "snapshot_key",
    "resume",
)
"""Subscribe options that set a client's own position in the log.

A shared subscription has one position for all clients.
"""


def _bad_field_error(field: str, sentence: str, fix: str) -> ClientError:
    return ClientError("bad_command", sentence, fix, field=field)


def _find_contradictions(command: Subscribe) -> Iterator[tuple[str, str, str]]:
    """Yield options that contradict each other, as field, sentence and fix."""
    if command.rate_max_gap is not None and command.rate is None:
        yield _GAP_WITHOUT_RATE
    for field in ("rate", "paused", "managed"):
        if getattr(command, field) and command.durability == "live":
            yield field, f"{field} doesn't go with the durability live.", "Leave one of them out."
    if command.conflation_key is not None and command.conflation is None:
        sentence = "conflation_key is an option of conflation."
        yield "conflation_key", sentence, 'Give an interval such as "1s".'
    if command.received is not None and command.managed is None:
        sentence = "received is an option of managed replays."
        yield "received", sentence, "Give the bookmark as `bookmark`."
    if command.durable is not None and (command.bookmark or "")[:1] in ("[", "("):
        sentence = "A durable subscription has no end, so it can't have a range."
        yield "bookmark", sentence, "Give one bookmark, or leave durable out."
    if command.shared and command.durable is None:
        yield (
            "shared",
            "shared is an option of durable subscriptions.",
            "Give their common name as `durable`.",
        )
    if command.max_deliveries is not None and not command.shared:
        sentence = "max_deliveries is an option of shared subscriptions."
        yield "max_deliveries", sentence, 'Add "shared":true, or leave max_deliveries out.'
    for field in _NOT_WITH_SHARED if command.shared else ():
        if getattr(command, field):
            sentence = (
                f"{field} is of one's own way through the log, and a shared subscription has one for all."
            )
            yield field, sentence, f"Leave {field} or shared out."
    if command.prefetch is not None and command.ack in (None, "none"):
        sentence = "prefetch is an option of subscriptions with ack."
        yield "prefetch", sentence, 'Add "ack":"client", or leave prefetch out.'
    for field in ("on_gap", "durability", "rate", "rate_max_gap", "paused", "managed", "received"):
        if command.bookmark is None and getattr(command, field):
            sentence = f"{field} is an option of bookmark subscriptions, and there is no bookmark."
            yield field, sentence, "Give a bookmark: 0|1| is from now on."


def _parse_error(payload: bytes | bytearray | memoryview | str, problem: str) -> ClientError:
    """Return the error for a command that doesn't match its struct."""
    try:
        tag = _decode_tag(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ClientError("bad_command", "A command is a JSON object, and this is something else.", _FIX)
    details: dict[str, Any] = {"id": tag.id} if isinstance(tag.id, str) else {}
    if tag.c == "publish" and type(tag.sequence) is int and 0 < tag.sequence < 1 << 63:
        details |= {"first": tag.sequence, "sequence": tag.sequence}
    if tag.c is None:
        return ClientError(
            "bad_command", 'The field "c", which names the command, is missing.', _FIX, field="c", **details
        )
    if tag.c not in NAMES:
        return ClientError(
            "unknown_command",
            "There is no command "
            f"{str(tag.c)[:40] if isinstance(tag.c, str | int) else type(tag.c).__name__!r}.",
            f"The commands are {', '.join(NAMES)}.",
            field="c",
            **details,
        )
    field = _find_field(problem)
    known = list_fields(_STRUCTS[tag.c]).get(field.partition("[")[0])
    fix = f"docs/protocol.md lists the fields of {tag.c}."
    if known is not None:
        fix = f"{known.name}: {known.accepted_values()}."
        if " matching regex " in problem:
            problem = f"{field} isn't {known.accepted_values()}"
    return ClientError("bad_command", f"{tag.c}: {problem}.", fix, c=tag.c, field=field, **details)


def _find_field(problem: str) -> str:
    """Return the name of the field in a msgspec error; "" if it has none."""
    # msgspec writes "... - at `$.topic`" and "... missing required field `topic`": the field is quoted.
    quoted = problem.split("`")[1::2]
    return quoted[-1].removeprefix("$.") if quoted else ""
