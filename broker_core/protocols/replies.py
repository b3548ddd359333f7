"""What the broker says: typed structs, which encode as they are and which a client reads leniently.

A client ignores fields and replies that it doesn't know, so that a newer broker can say more.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from broker_core.errors import ClientError, SluiceError
from broker_core.protocols.field_info import field_meta, tags_of

_Wait = Annotated[int, field_meta(unit="ms")]
_How = Annotated[str, field_meta("`log`, `conflated`, `now`, `snapshot`")]
_Word = Annotated[str, field_meta("`processed`, `persisted`, `completed`")]
_Durability = Annotated[str, field_meta("`persisted`, `live`, `fully_durable`")]


class _Reply(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="c"):
    """What all replies have in common: the field `c` says which it is."""


class Ack(_Reply, frozen=True, kw_only=True, tag="ack"):
    """Something was done: `ack` says how far (processed, persisted, completed), `of` which command.

    Without `of` it acknowledges publishing, by publisher sequence: `persisted` everything up to `sequence`,
    `processed` the records `first` to `sequence`, which no journal keeps.
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
    lost: Annotated[int, field_meta(unit="messages")] | None = None
    """Of an unsubscribe: messages that were owed, which the log keeps behind `bookmark`, or nothing brings back."""


class ErrorReply(_Reply, frozen=True, kw_only=True, tag="error"):
    """Something couldn't be done. `of` and `id` name the command; a publish has `first` and `sequence` instead."""

    code: str
    message: str = ""
    fix: str = ""
    details: dict[str, Any] = {}
    of: str | None = None
    id: str | None = None
    first: int | None = None
    sequence: int | None = None


class BrokerHeartbeat(_Reply, frozen=True, kw_only=True, tag="heartbeat"):
    """The broker is here."""


class GapNotice(_Reply, frozen=True, kw_only=True, tag="gap", rename={"first": "from", "last": "to"}):
    """Records of a subscription that the log no longer holds: the exact interval, and why."""

    id: str
    first: str
    last: str
    why: str = ""


class DecisionNotice(_Reply, frozen=True, kw_only=True, tag="notice"):
    """A policy acts on this client: what was observed, the limit, what is kept and lost, and where to resume."""

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
    """A policy, or the end of its lease, ended a subscription; the others of the client go on."""

    id: str
    code: str
    message: str = ""
    decision: str | None = None
    retry_after_ms: _Wait | None = None
    kept: Annotated[int, field_meta(unit="messages")] = 0
    """Messages that were owed and that the log keeps: subscribing with `bookmark` brings them."""
    lost: Annotated[int, field_meta(unit="messages")] = 0
    """Messages that were owed and that nothing brings back."""
    bookmark: str | None = None


class CloseRequested(_Reply, frozen=True, kw_only=True, tag="close_requested"):
    """The client should finish and close. The broker doesn't; it asks again while the reason lasts."""

    code: str
    message: str = ""
    retry_after_ms: _Wait | None = None


class ResumedNotice(_Reply, frozen=True, kw_only=True, tag="resumed", rename={"first": "from", "last": "to"}):
    """What a resume token brought: how it goes on, and what of the interval since isn't delivered, as a count."""

    id: str
    how: _How
    missed: Annotated[int, field_meta(unit="messages")]
    first: str = ""
    last: str = ""
    exact: bool = True


class ClosingNotice(_Reply, frozen=True, kw_only=True, tag="closing"):
    """The last word before a close."""

    code: str
    message: str = ""
    fix: str = ""
    retry_after_ms: _Wait | None = None
    kept: Annotated[int, field_meta(unit="messages")] = 0
    """Of what its subscriptions were owed, and that the log keeps: subscribing with `bookmark` brings them."""
    lost: Annotated[int, field_meta(unit="messages")] = 0
    """Of the same, and that nothing brings back."""
    bookmark: str | None = None
    addresses: list[str] = []
    """With `behind`: where the other members of the group are, as far as they have said."""


class TextMessage(_Reply, frozen=True, kw_only=True, tag="message"):
    """One record in text mode."""

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
NAMES = tags_of(Reply)
"""What replies are called."""

_decode = msgspec.json.Decoder(Reply).decode


class _ReplyTag(msgspec.Struct):
    c: str


def persisted_ack(sequence: int) -> Ack:
    """Everything this publisher numbered up to `sequence` is on disk."""
    return Ack(ack="persisted", sequence=sequence)


def processed_ack(first: int, last: int) -> Ack:
    """The records `first` to `last` were handed on; their topics aren't journaled."""
    return Ack(ack="processed", first=first, sequence=last)


def error_reply(
    error: SluiceError,
    *,
    of: str | None = None,
    id: str | None = None,
    first: int | None = None,
    sequence: int | None = None,
) -> ErrorReply:
    """The reply that carries an error, to the command or the published records it is about."""
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
    """The reply in a COMMAND frame or a text; None for one of a kind this version doesn't know."""
    try:
        reply: Reply = _decode(payload)
    except msgspec.ValidationError as problem:
        if _unknown(payload):
            return None
        raise _bad(problem) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as problem:
        raise _bad(problem) from None
    return reply


def _unknown(payload: bytes | bytearray | memoryview | str) -> bool:
    try:
        return msgspec.json.decode(payload, type=_ReplyTag).c not in NAMES
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False


def _bad(problem: Exception) -> ClientError:
    return ClientError(
        "bad_frame", f"The broker's reply can't be read: {problem}.", "Is this a Sluice broker?"
    )
