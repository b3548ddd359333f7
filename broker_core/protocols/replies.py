"""Replies of the broker: typed structs, which the broker encodes strictly and a client parses leniently.

A client ignores unknown fields and replies, so that a newer broker can send more.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from broker_core.errors import ClientError, SluiceError
from broker_core.protocols.field_info import field_meta, list_tags

_Wait = Annotated[int, field_meta(unit="ms")]
_How = Annotated[str, field_meta("`log`, `conflated`, `now`, `snapshot`")]
_Word = Annotated[str, field_meta("`processed`, `persisted`, `completed`")]
_Durability = Annotated[str, field_meta("`persisted`, `live`, `fully_durable`")]


class _Reply(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="c"):
    """Base of all replies. The field `c` has the name of the reply."""


class Ack(_Reply, frozen=True, kw_only=True, tag="ack"):
    """Acknowledgement.

    `ack` is what was reached (processed, persisted, completed), `of` the name of the command.

    Without `of` it acknowledges published records by publisher sequence: `persisted` all up to `sequence`,
    `processed` the unjournaled records `first` to `sequence`.
    """

    ack: _Word
    of: str | None = None
    id: str | None = None
    sequence: int | None = None
    first: int | None = None
    name: str | None = None
    instance: str | None = None
    version: int | None = None
    max_frame: Annotated[int, field_meta(unit="bytes")] | None = None
    stream: int | None = None
    bookmark: str | None = None
    durability: _Durability | None = None
    ended: bool | None = None
    heartbeat_ms: _Wait | None = None
    session: int | None = None
    stored: int | None = None
    forgotten: bool | None = None
    kept: Annotated[int, field_meta(unit="messages")] | None = None
    """Reply to an unsubscribe: undelivered messages that the log keeps behind `bookmark`."""
    lost: Annotated[int, field_meta(unit="messages")] | None = None
    """Reply to an unsubscribe: undelivered messages that no journal has.

    They don't count as losses in the client's status, because the client asked for the end.
    """


class ErrorReply(_Reply, frozen=True, kw_only=True, tag="error"):
    """Error. `of` and `id` name the command; a publish has `first` and `sequence` instead."""

    code: str
    message: str = ""
    fix: str = ""
    details: dict[str, Any] = {}
    of: str | None = None
    id: str | None = None
    first: int | None = None
    sequence: int | None = None


class BrokerHeartbeat(_Reply, frozen=True, kw_only=True, tag="heartbeat"):
    """Sign of life of the broker."""


class GapNotice(_Reply, frozen=True, kw_only=True, tag="gap", rename={"first": "from", "last": "to"}):
    """Interval of a subscription's records that the log no longer has, with the reason."""

    id: str
    first: str
    last: str
    why: str = ""


class DecisionNotice(_Reply, frozen=True, kw_only=True, tag="notice"):
    """Action of a policy on this client.

    It has the observed value, the limit, the messages kept and lost, and where to resume.
    """

    code: str
    message: str = ""
    observed: float | int | None = None
    limit: float | int | None = None
    unit: str = ""
    resume: str | None = None
    kept: Annotated[int, field_meta(unit="messages")] | None = None
    lost: Annotated[int, field_meta(unit="messages")] | None = None
    retry_after_ms: _Wait | None = None
    details: dict[str, Any] = {}
    decision: str | None = None
    subscription: str | None = None
    resume_token: str | None = None


class SubscriptionCancelled(_Reply, frozen=True, kw_only=True, tag="cancelled"):
    """End of one subscription by a policy or by its lease. The client's other subscriptions continue."""

    id: str
    code: str
    message: str = ""
    decision: str | None = None
    retry_after_ms: _Wait | None = None
    kept: Annotated[int, field_meta(unit="messages")] = 0
    """Undelivered messages that the log keeps: a subscription after `bookmark` gets them."""
    lost: Annotated[int, field_meta(unit="messages")] = 0
    """Undelivered messages that are lost."""
    bookmark: str | None = None


class CloseRequested(_Reply, frozen=True, kw_only=True, tag="close_requested"):
    """Request to the client to finish and close.

    The broker doesn't close; it asks again while the reason lasts.
    """

    code: str
    message: str = ""
    retry_after_ms: _Wait | None = None


class ResumedNotice(_Reply, frozen=True, kw_only=True, tag="resumed", rename={"first": "from", "last": "to"}):
    """Result of a resume: how the subscription continues, and the number of skipped messages."""

    id: str
    how: _How
    missed: Annotated[int, field_meta(unit="messages")]
    first: str = ""
    last: str = ""
    exact: bool = True


class ClosingNotice(_Reply, frozen=True, kw_only=True, tag="closing"):
    """Last reply before the broker closes the connection."""

    code: str
    message: str = ""
    fix: str = ""
    retry_after_ms: _Wait | None = None
    kept: Annotated[int, field_meta(unit="messages")] = 0
    """Undelivered messages of all subscriptions that the log keeps behind `bookmark`."""
    lost: Annotated[int, field_meta(unit="messages")] = 0
    """Undelivered messages of all subscriptions that are lost."""
    bookmark: str | None = None
    addresses: list[str] = []
    """Known addresses of the other members of the group, with the code `behind`."""


class TextMessage(_Reply, frozen=True, kw_only=True, tag="message"):
    """Record in text mode."""

    sub: str
    topic: str
    bookmark: str | None = None
    timestamp: str | None = None
    data: msgspec.Raw = msgspec.Raw(b"null")
    encoding: Annotated[str, field_meta("`base64`")] | None = None
    mark: Annotated[str, field_meta("`conflated`, `conflation_over`")] | None = None


Reply = (
    Ack
    | ErrorReply
    | BrokerHeartbeat
    | GapNotice
    | DecisionNotice
    | ClosingNotice
    | TextMessage
    | SubscriptionCancelled
    | CloseRequested
    | ResumedNotice
)
NAMES = list_tags(Reply)
"""Names of all replies."""

_decode = msgspec.json.Decoder(Reply).decode


class _ReplyTag(msgspec.Struct):
    c: str


def persisted_ack(sequence: int) -> Ack:
    """Return the acknowledgement of all records up to a publisher sequence, because they are on disk."""
    return Ack(ack="persisted", sequence=sequence)


def processed_ack(first: int, last: int) -> Ack:
    """Return the acknowledgement of unjournaled records, because they were forwarded."""
    return Ack(ack="processed", first=first, sequence=last)


def error_reply(
    error: SluiceError,
    *,
    of: str | None = None,
    id: str | None = None,
    first: int | None = None,
    sequence: int | None = None,
) -> ErrorReply:
    """Return the reply for an error, addressed to its command or published records."""
    details = {
        key: value for key, value in error.details.items() if key not in ("c", "id", "first", "sequence")
    }
    return ErrorReply(
        code=error.code,
        message=error.sentence,
        fix=error.fix,
        details=details,
        of=of or error.details.get("c"),
        id=id or error.details.get("id"),
        first=first or error.details.get("first"),
        sequence=sequence or error.details.get("sequence"),
    )


def parse_reply(payload: bytes | bytearray | memoryview | str) -> Reply | None:
    """Parse the reply in a COMMAND frame or a text; None for a reply that this version doesn't know.

    Raises:
        ClientError: bad_frame.
    """
    try:
        reply: Reply = _decode(payload)
    except msgspec.ValidationError as problem:
        if _unknown(payload):
            return None
        raise _bad_reply_error(problem) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as problem:
        raise _bad_reply_error(problem) from None
    return reply


def _unknown(payload: bytes | bytearray | memoryview | str) -> bool:
    try:
        return msgspec.json.decode(payload, type=_ReplyTag).c not in NAMES
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False


def _bad_reply_error(problem: Exception) -> ClientError:
    return ClientError(
        "bad_frame", f"The broker's reply can't be read: {problem}.", "Is this a Sluice broker?"
    )
