"""Message bodies for display: indented JSON, FIX by fields, otherwise text or hexadecimal."""

from __future__ import annotations

import base64
import json
import re
from typing import Any, NamedTuple

import msgspec

from broker_core.documents.journals import BrowsedMessage
from broker_core.filters.message_types import SOH

MAX_SHOWN = 16_384
"""Maximum characters of a body on a page."""
MAX_HEX = 2_048
"""Maximum bytes of a body in hexadecimal."""
MAX_FIELDS = 400
"""Maximum fields of a FIX message on a page."""
PREVIEW = 180
"""Maximum characters of a preview."""
_DIGITS = re.compile(r"\d{1,6}")
FIX_NAMES = {
    "1": "Account", "6": "AvgPx", "8": "BeginString", "9": "BodyLength", "10": "CheckSum", "11": "ClOrdID",
    "14": "CumQty", "15": "Currency", "17": "ExecID", "20": "ExecTransType", "21": "HandlInst",
    "22": "SecurityIDSource", "31": "LastPx", "32": "LastQty", "34": "MsgSeqNum", "35": "MsgType",
    "37": "OrderID", "38": "OrderQty", "39": "OrdStatus", "40": "OrdType", "41": "OrigClOrdID",
    "43": "PossDupFlag", "44": "Price", "48": "SecurityID", "49": "SenderCompID", "50": "SenderSubID",
    "52": "SendingTime", "54": "Side", "55": "Symbol", "56": "TargetCompID", "57": "TargetSubID",
    "58": "Text", "59": "TimeInForce", "60": "TransactTime", "63": "SettlType", "64": "SettlDate",
    "75": "TradeDate", "98": "EncryptMethod", "100": "ExDestination", "108": "HeartBtInt",
    "109": "ClientID", "110": "MinQty", "112": "TestReqID", "131": "QuoteReqID", "132": "BidPx",
    "133": "OfferPx", "134": "BidSize", "135": "OfferSize", "150": "ExecType", "151": "LeavesQty",
    "167": "SecurityType", "207": "SecurityExchange", "262": "MDReqID", "268": "NoMDEntries",
    "269": "MDEntryType", "270": "MDEntryPx", "271": "MDEntrySize", "336": "TradingSessionID",
    "371": "RefTagID", "372": "RefMsgType",
}  # fmt: skip
"""Names of common FIX tags. Other tags are shown by number only."""


class FixField(NamedTuple):
    """Field of a FIX message. `name` is "" if its tag is not in `FIX_NAMES`."""

    tag: str
    name: str
    value: str


class BodyView(NamedTuple):
    """Body as a page shows it.

    `kind` names the detected format. The page shows the first of `pretty`, `fields` and `hexadecimal` that
    is not empty.
    """

    kind: str
    preview: str
    pretty: str = ""
    fields: tuple[FixField, ...] = ()
    hexadecimal: str = ""
    cut: int = 0
    """Number of characters, bytes or fields that are not shown."""


def view_body(message: BrowsedMessage) -> BodyView:
    """Return a message's body for display.

    The format is detected from the content: JSON, FIX (tag=value, ended by SOH), text, MessagePack, or
    bytes.
    """
    if isinstance(message.base64, str):
        return _bytes(base64.b64decode(message.base64))
    if isinstance(message.text, str):
        return _text(message.text)
    return _laid_out("JSON", None if message.data is msgspec.UNSET else message.data)


def hex_dump(body: bytes) -> str:
    """Return a hex dump with 16 bytes per line: offset, bytes, and printable characters."""
    lines = []
    for at in range(0, len(body), 16):
        part = body[at : at + 16]
        text = "".join(chr(one) if 32 <= one < 127 else "·" for one in part)
        lines.append(f"{at:06x}  {part[:8].hex(' '):23}  {part[8:].hex(' '):23}  {text}")
    return "\n".join(lines)


def _laid_out(kind: str, value: Any, hexed: str = "") -> BodyView:
    """Return a decoded value as indented JSON."""
    compact = json.dumps(value, ensure_ascii=False, separators=(", ", ": "), default=repr)
    pretty = json.dumps(value, ensure_ascii=False, indent=2, default=repr)
    return BodyView(kind, compact[:PREVIEW], pretty[:MAX_SHOWN], (), hexed, max(0, len(pretty) - MAX_SHOWN))


def _text(text: str) -> BodyView:
    fields = _fields(text)
    hexed = hex_dump(text.encode()[:MAX_HEX])
    if fields:
        fix = all(_DIGITS.fullmatch(field.tag) for field in fields)
        preview = " ".join(f"{field.name or field.tag}={field.value}" for field in fields[:20])
        omitted = max(0, text.count(SOH) - len(fields)) if len(fields) == MAX_FIELDS else 0
        return BodyView("FIX" if fix else "NVFIX", preview[:PREVIEW], "", tuple(fields), hexed, omitted)
    return BodyView("text", text[:PREVIEW], text[:MAX_SHOWN], (), hexed, max(0, len(text) - MAX_SHOWN))


def _fields(text: str) -> list[FixField]:
    """Return the fields of a FIX or NVFIX message; empty for other texts."""
    if SOH not in text:
        return []
    found = []
    for pair in text.split(SOH, MAX_FIELDS)[:MAX_FIELDS]:
        tag, equals, value = pair.partition("=")
        if pair and not (equals and tag):
            return []
        if pair:
            found.append(FixField(tag, FIX_NAMES.get(tag, ""), value))
    return found


def _bytes(body: bytes) -> BodyView:
    hexed = hex_dump(body[:MAX_HEX])
    try:
        value = msgspec.msgpack.decode(body)
    except (msgspec.DecodeError, ValueError):
        value = None
    if isinstance(value, dict | list):
        return _laid_out("MessagePack", value, hexed)
    return BodyView("bytes", body[:32].hex(" "), "", (), hexed, max(0, len(body) - MAX_HEX))
