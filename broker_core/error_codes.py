"""Table of all error codes. A code is a stable word with a fixed meaning; the texts of errors may change.

Clients receive codes in replies, applications from the client library, operators on the command line or in a
run's `error`, and programs in answers of the API. HTTP statuses, close codes, retry advice, and the tables of
the documents are derived from this table. Tests compare it with the codes that the source raises and sends.

Close numbers of WebSockets are never reused: 40xx concern frames of the peer, 41xx the logon, 42xx an action
of a policy or an operator, 43xx the broker itself.
"""

from __future__ import annotations

from enum import Flag, auto
from http import HTTPStatus
from types import MappingProxyType
from typing import Final, NamedTuple


class ErrorAudience(Flag):
    """Audiences that can receive a code. Whether the API answers with it depends on its status."""

    CLIENT = auto()
    """Clients, in a reply of a broker: docs/protocol.md."""
    LIBRARY = auto()
    """Applications, from the client library itself: docs/client.md."""
    OPERATOR = auto()
    """Operators: the command line, a starting process, pages, and the `error` of a run."""


class ErrorCode(NamedTuple):
    """Meaning of a code, its audiences, and advice on retrying."""

    meaning: str
    """Meaning as a sentence, without its full stop."""
    audience: ErrorAudience
    """Audiences that can receive the code."""
    status: HTTPStatus | None = None
    """HTTP status of an answer of the API. None: no request is answered with this code."""
    close: int | None = None
    """Close code of a WebSocket.

    A code with one ends a connection. On TCP, a `closing` reply with the code precedes the end.
    """
    retry_after_ms: int | None = None
    """Milliseconds after which a retry may succeed, unless the reply names a delay.

    None: a retry fails until something is changed. 0: retry immediately.
    """

    @property
    def http_status(self) -> HTTPStatus:
        """Status of an answer with this code: 500 if no request should cause it."""
        return self.status or HTTPStatus.INTERNAL_SERVER_ERROR

    @property
    def retry_advice(self) -> bool:
        """Whether a later retry can be expected to succeed."""
        return self.retry_after_ms is not None


AT_ONCE: Final = 0
"""Retry delay in milliseconds: immediately."""
SOON: Final = 1_000
"""Retry delay in milliseconds, for conditions that pass quickly."""
SHORTLY: Final = 5_000
"""Retry delay in milliseconds, for resources that must be started or freed first."""

_CLIENT, _LIBRARY, _OPERATOR = ErrorAudience.CLIENT, ErrorAudience.LIBRARY, ErrorAudience.OPERATOR
_BAD, _FORBIDDEN, _NOT_FOUND, _CONFLICT = (
    HTTPStatus.BAD_REQUEST,
    HTTPStatus.FORBIDDEN,
    HTTPStatus.NOT_FOUND,
    HTTPStatus.CONFLICT,
)
_FAILED, _AWAY = HTTPStatus.INTERNAL_SERVER_ERROR, HTTPStatus.SERVICE_UNAVAILABLE

CODES: Final = MappingProxyType({
    # Frames and logons.
    "bad_frame": ErrorCode(
        "A frame's kind or flags are unknown, or a WebSocket message ends within a frame; `position` in the "
        "stream",
        _CLIENT | _LIBRARY, close=4000,
    ),
    "frame_too_large": ErrorCode(
        "The frame is over the limit, which is 64 KiB until the logon is answered; `length`, `limit`, "
        "`position`",
        _CLIENT | _LIBRARY, close=4001,
    ),
    "bad_batch": ErrorCode(
        "A checksum or length in the batch is wrong, or the batch has another client's name; `position` in "
        "the batch",
        _CLIENT, close=4002,
    ),
    "bad_command": ErrorCode(
        "Not JSON, or a field is missing, unknown or wrong; `field`. Ends the connection before logon",
        _CLIENT, _BAD, 4003,
    ),
    "unknown_command": ErrorCode(
        "There is no such command. Ends the connection before logon",
        _CLIENT, close=4004,
    ),
    "not_logged_on": ErrorCode("The first command wasn't a logon", _CLIENT, close=4100),
    "bad_logon": ErrorCode(
        "Wrong password, token or version. A second logon on a connection is refused, and the connection "
        "stays open",
        _CLIENT, close=4101,
    ),
    "bad_client_name": ErrorCode(
        "No client may have this name, or this user may not use it",
        _CLIENT, _BAD, 4102,
    ),
    "name_taken": ErrorCode(
        "The name belongs to another user, or another user's client is connected under it; in the API, the "
        "name exists already",
        _CLIENT | _OPERATOR, _CONFLICT, 4103,
    ),
    "logon_timeout": ErrorCode("No logon came within 10 s", _CLIENT, close=4104, retry_after_ms=SOON),
    "heartbeat_timeout": ErrorCode(
        "The client promised heartbeats, and sent and acknowledged no byte for twice that and a second",
        _CLIENT, close=4105, retry_after_ms=AT_ONCE,
    ),
    "frame_timeout": ErrorCode(
        "A frame took longer than 60 s and a second for each KiB of it",
        _CLIENT | _LIBRARY, close=4113, retry_after_ms=SOON,
    ),
    "too_many_attempts": ErrorCode(
        "Too many logons from your address have failed",
        _CLIENT, close=4106, retry_after_ms=SOON,
    ),
    "too_many_logons": ErrorCode(
        "Too many passwords are waiting to be checked, or too many clients are logging on from your address",
        _CLIENT, close=4107, retry_after_ms=SOON,
    ),
    "access_changed": ErrorCode(
        "A new revision changed what you may do",
        _CLIENT, close=4108, retry_after_ms=SOON,
    ),
    "connections_over_quota": ErrorCode(
        "Your user already has as many connections as its quota allows; `used`, `limit`",
        _CLIENT, close=4110, retry_after_ms=SHORTLY,
    ),
    "transport_closed": ErrorCode(
        "The transport was disabled or moved; reconnect, there or at another address",
        _CLIENT, close=4109, retry_after_ms=SOON,
    ),
    "link_in_use": ErrorCode(
        "Another link of your instance is connected, for example from another member of your group",
        _CLIENT, close=4111, retry_after_ms=SHORTLY,
    ),
    "stale_sequence": ErrorCode(
        "Another client has published with your name since you logged on, so your numbers aren't new: log "
        "on again and number from the new `sequence`",
        _CLIENT, close=4112, retry_after_ms=SOON,
    ),
    # Actions of a policy or an operator, and timeouts.
    "client_replaced": ErrorCode("Another client logged on with your name", _CLIENT, close=4200),
    "slow_client_disk": ErrorCode(
        "The pool's disk limit was exceeded, and you used most of it",
        _CLIENT, close=4201, retry_after_ms=SOON,
    ),
    "slow_client_capacity": ErrorCode(
        "Your spool exceeded its share of the disk limit",
        _CLIENT, close=4202, retry_after_ms=SOON,
    ),
    "slow_client_age": ErrorCode(
        "Your oldest waiting message exceeded the age limit",
        _CLIENT, close=4203, retry_after_ms=SOON,
    ),
    "operator_disconnect": ErrorCode(
        "An operator disconnected you",
        _CLIENT, close=4204, retry_after_ms=SOON,
    ),
    "too_many_connections": ErrorCode(
        "The instance accepts no more connections, or no more from your address",
        _CLIENT, close=4205, retry_after_ms=SOON,
    ),
    "slow_client_pool_memory": ErrorCode(
        "A rule on the pool's memory was exceeded, and you used most of it",
        _CLIENT, close=4206, retry_after_ms=SOON,
    ),
    "slow_client_memory_capacity": ErrorCode(
        "A rule on the bytes in your outbox was exceeded",
        _CLIENT, close=4207, retry_after_ms=SOON,
    ),
    "slow_client_backlog": ErrorCode(
        "A rule on the messages or bytes waiting for you, in memory and on disk, was exceeded",
        _CLIENT, close=4208, retry_after_ms=SOON,
    ),
    "slow_client_conflation": ErrorCode(
        "A rule on what conflation holds for you was exceeded",
        _CLIENT, close=4209, retry_after_ms=SOON,
    ),
    "slow_client_drain_rate": ErrorCode(
        "You took fewer bytes a second than the rule's floor",
        _CLIENT, close=4210, retry_after_ms=SOON,
    ),
    "slow_client_write_blocked": ErrorCode(
        "Your connection accepted nothing for longer than the rule allows",
        _CLIENT, close=4211, retry_after_ms=SOON,
    ),
    "slow_client_window_full": ErrorCode(
        "Your prefetch window was full for too long, or too often",
        _CLIENT, close=4212, retry_after_ms=SOON,
    ),
    "slow_client_unacked": ErrorCode(
        "You had too many unacknowledged messages, or had them for too long",
        _CLIENT, close=4213, retry_after_ms=SOON,
    ),
    "slow_client_ack_silence": ErrorCode(
        "You acknowledged nothing for longer than the rule allows",
        _CLIENT, close=4214, retry_after_ms=SOON,
    ),
    "slow_client_pinned": ErrorCode(
        "Your pauses, durable positions or replays keep more of the log than the rule allows",
        _CLIENT, close=4218, retry_after_ms=SOON,
    ),
    "slow_client_resource_error": ErrorCode(
        "A subscription exceeded its depth, age or count (Qpid's 506)",
        _CLIENT, close=4215, retry_after_ms=SOON,
    ),
    "spool_failed": ErrorCode(
        "Your backlog had to go to disk, and the disk refused it",
        _CLIENT, close=4217, retry_after_ms=SOON,
    ),
    "name_refused": ErrorCode(
        "A policy refuses this name for a while",
        _CLIENT, close=4216, retry_after_ms=SOON,
    ),
    "lease_expired": ErrorCode("A subscription wasn't renewed within its lease; in `cancelled`", _CLIENT),
    # Failures of the broker itself.
    "shutting_down": ErrorCode("The broker is being stopped", _CLIENT, close=4300, retry_after_ms=SOON),
    "journal_failed": ErrorCode(
        "The disk refused the journal, or the log can't be read there; nothing after that point is stored",
        _CLIENT | _OPERATOR, _FAILED, 4301, SOON,
    ),
    "journal_taken": ErrorCode(
        "The journal's lock or its current segment was removed, moved or replaced; `path`",
        _CLIENT | _OPERATOR, close=4304, retry_after_ms=SOON,
    ),
    "disk_full": ErrorCode(
        "There is no room on the disk",
        _CLIENT | _OPERATOR, HTTPStatus.INSUFFICIENT_STORAGE, 4302, SOON,
    ),
    "input_full": ErrorCode(
        "The instance already holds as much input from clients (unfinished frames, and frames that wait) as "
        "it accepts: 4 MiB before logon, 256 MiB of unfinished frames after it, 1 GiB in all. The client "
        "whose unfinished frame is oldest, of the user or address with most, is closed",
        _CLIENT, close=4305, retry_after_ms=SOON,
    ),
    "no_quorum": ErrorCode(
        "The group's shared log accepts nothing from this broker; as far as is known, nothing of it was "
        "stored",
        _CLIENT | _OPERATOR, HTTPStatus.SERVICE_UNAVAILABLE, 4306, SOON,
    ),
    "behind": ErrorCode(
        "This member of a group can't be sure that it has all of the log; another one can. `addresses` of "
        "its `closing` says where those are",
        _CLIENT | _LIBRARY | _OPERATOR, _AWAY, 4307, SOON,
    ),
    "internal_error": ErrorCode(
        "The broker failed to do it; its log says how",
        _CLIENT | _OPERATOR, _FAILED, 4303, SOON,
    ),
    # Commands.
    "bad_topic": ErrorCode("Such a topic can't be published to", _CLIENT | _OPERATOR, _BAD),
    "bad_pattern": ErrorCode("Not a topic pattern; `column`", _CLIENT | _OPERATOR, _BAD),
    "bad_filter": ErrorCode("Not a filter; `column`", _CLIENT | _OPERATOR, _BAD),
    "bad_selector": ErrorCode("Not a selector over headers; `column`", _CLIENT | _OPERATOR, _BAD),
    "not_supported": ErrorCode(
        "Other STOMP brokers can do that, but this one can't; `header` or `destination`", _CLIENT
    ),
    "bad_transaction": ErrorCode(
        "STOMP: no such transaction, one of that name exists already, there are too many of them, or one is "
        "too large",
        _CLIENT,
    ),
    "bad_bookmark": ErrorCode(
        "Not a bookmark, or not the bookmark of a record here",
        _CLIENT | _OPERATOR, _BAD,
    ),
    "not_entitled": ErrorCode(
        "You may not publish or subscribe to that; `topic` of a publish",
        _CLIENT, _FORBIDDEN,
    ),
    "not_journaled": ErrorCode(
        "A bookmark, a durable subscription, a resume, or a message for a queue, on a topic that no journal "
        "keeps; `topic` of a publish",
        _CLIENT, _BAD,
    ),
    "unknown_subscription": ErrorCode(
        "The client has no such subscription, or the command doesn't apply to its kind",
        _CLIENT, _NOT_FOUND,
    ),
    "too_many_subscriptions": ErrorCode("A client has 1,000 subscriptions at most", _CLIENT),
    "over_quota": ErrorCode(
        "You or your user already have as much of something as a quota allows; `quota`, `used`, `limit`, "
        "`unit`",
        _CLIENT,
    ),
    "publish_paced": ErrorCode(
        "A notice: you publish faster than a quota allows, so the broker reads from you more slowly; "
        "`wait_ms`",
        _CLIENT,
    ),
    "not_in_a_group": ErrorCode("A broker in a group has no shared subscriptions and no queues", _CLIENT),
    "refused_before": ErrorCode(
        "A message of yours with a smaller publisher sequence was refused on this connection, so later ones "
        "aren't taken until you send `skip`; `refused` is the last that was refused",
        _CLIENT,
    ),
    "too_many_repeats": ErrorCode(
        "10,000 acknowledgements of repeated messages are waiting for the disk",
        _CLIENT, retry_after_ms=SOON,
    ),
    "bad_ack": ErrorCode("What was acknowledged wasn't sent; `sent` says how many messages were", _CLIENT),
    "durable_differs": ErrorCode("The durable subscription has another topic or filter", _CLIENT),
    "durable_in_use": ErrorCode(
        "The durable subscription is subscribed already",
        _CLIENT, retry_after_ms=SOON,
    ),
    "too_many_durables": ErrorCode("The instance holds no more durable subscriptions", _CLIENT),
    "not_kept": ErrorCode(
        "The disk refused the file of durable subscriptions and managed replays",
        _CLIENT | _OPERATOR, _FAILED, retry_after_ms=SHORTLY,
    ),
    "bad_key": ErrorCode("Not a key: `topic`, or fields such as /id", _CLIENT),
    "snapshot_too_large": ErrorCode("The snapshot has more than 100,000 keys", _CLIENT),
    "bad_resume_token": ErrorCode("Not a token of this instance, client and subscription", _CLIENT),
    "resume_token_expired": ErrorCode("Resume tokens are valid for 24 hours", _CLIENT),
    "bad_rate": ErrorCode("Not a rate", _CLIENT, _BAD),
    "bad_interval": ErrorCode("Not an interval", _CLIENT, _BAD),
    "bad_conflation": ErrorCode("Not a conflation: its key is missing or wrong", _CLIENT, _BAD),
    "not_steerable": ErrorCode("The subscription has no bookmark, or has durability `live`", _CLIENT),
    "replay_of_another": ErrorCode("The managed replay belongs to another client", _CLIENT),
    "replay_in_use": ErrorCode("The managed replay is subscribed already", _CLIENT, retry_after_ms=SOON),
    "replay_differs": ErrorCode("The managed replay has another topic or filter", _CLIENT),
    "too_many_replays": ErrorCode("The instance holds no more managed replays", _CLIENT, _CONFLICT),
    "replay_cancelled": ErrorCode(
        "The managed replay was cancelled; this also ends its subscription",
        _CLIENT,
    ),
    "replay_completed": ErrorCode("The managed replay has reached its end", _CLIENT),
    "bookmark_gone": ErrorCode(
        "Records after the bookmark were removed, and the subscription asked for `on_gap=\"error\"`; "
        "`from`, `to`, `oldest`",
        _CLIENT | _OPERATOR, HTTPStatus.GONE,
    ),
    "bookmark_unknown": ErrorCode("A notice: these bookmarks were never in this log; `unknown`", _CLIENT),
    "fully_durable_is_persisted": ErrorCode(
        "A notice: there is no other member or destination to wait for, so `fully_durable` is the same as "
        "`persisted`",
        _CLIENT,
    ),
    "not_stored": ErrorCode(
        "A notice: records delivered with durability `live` weren't stored; `from`, `to`. Of a message "
        "published by hand: the disk refused it",
        _CLIENT | _OPERATOR, _FAILED,
    ),
    "no_longer_journaled": ErrorCode(
        "A notice, over STOMP an ERROR: the policy no longer journals what a subscription of the log is "
        "for; `id`, `topic`, `extent` (`all` or `part`)",
        _CLIENT,
    ),
    "narrowed": ErrorCode(
        "A notice: you aren't entitled to all of the pattern, and get the rest; `topics`",
        _CLIENT,
    ),
    # Codes of the client library itself.
    "acknowledged_missing": ErrorCode(
        "A notice: the broker's log lacks what it had acknowledged to this client; `known`, `acknowledged`",
        _LIBRARY,
    ),
    "session_forgotten": ErrorCode(
        "A notice: the broker no longer remembers this client's publisher session, so unacknowledged "
        "messages may be stored twice; `messages`",
        _LIBRARY,
    ),
    "bad_address": ErrorCode("Not the address of a transport, or no address", _LIBRARY),
    "bad_groups": ErrorCode(
        "It isn't clear which group has which topics, or two groups share an instance or a store",
        _LIBRARY,
    ),
    "bad_store": ErrorCode("The file isn't a store of this kind", _LIBRARY),
    "bad_subscription": ErrorCode("A subscription with that id exists already", _LIBRARY),
    "callback_would_wait": ErrorCode(
        "A callback of a client without asyncio called something of that client that waits",
        _LIBRARY,
    ),
    "client_closed": ErrorCode("The client isn't started, or is closed", _LIBRARY),
    "client_started": ErrorCode("A client can be started only once", _LIBRARY),
    "damaged_delivery": ErrorCode(
        "A delivery was damaged on its way from the broker",
        _LIBRARY, retry_after_ms=AT_ONCE,
    ),
    "broker_silent": ErrorCode(
        "The broker sent and acknowledged no byte for two heartbeats",
        _LIBRARY, retry_after_ms=AT_ONCE,
    ),
    "unsent_messages": ErrorCode(
        "The client closed while messages that are in this process alone weren't acknowledged; `messages`, "
        "`bytes`",
        _LIBRARY,
    ),
    "no_acks": ErrorCode("The subscription has no acknowledgements", _LIBRARY),
    "no_bookmark_store": ErrorCode("`MOST_RECENT` needs a bookmark store", _LIBRARY),
    "no_group_for_topic": ErrorCode("No group has the topic", _LIBRARY),
    "other_instance": ErrorCode(
        "The instance would take your new messages for repeats: it has those numbers from elsewhere",
        _LIBRARY,
    ),
    "store_failed": ErrorCode("A store's file can't be written or repaired", _LIBRARY),
    "store_full": ErrorCode("The bookmark store can hold no more positions", _LIBRARY),
    "store_locked": ErrorCode("Another process is using the store", _LIBRARY),
    "store_of_another_client": ErrorCode("The publish store holds another client's messages", _LIBRARY),
    "too_many_undone": ErrorCode("Too many batches were delivered without being marked as done", _LIBRARY),
    # Requests of operators and programs.
    "bad_request": ErrorCode("A field is missing, unknown or wrong; `fields` says which", _OPERATOR, _BAD),
    "parse_error": ErrorCode("The body doesn't match its content type", ErrorAudience(0), _BAD),
    "bad_action": ErrorCode("The action can't be used; `part` says where", _OPERATOR, _BAD),
    "bad_age": ErrorCode("Not an age such as 7d", _OPERATOR, _BAD),
    "bad_grant": ErrorCode("The grant can't be made", _OPERATOR, _BAD),
    "bad_idempotency_key": ErrorCode(
        "An `Idempotency-Key` has up to 200 printable characters",
        ErrorAudience(0), _BAD,
    ),
    "bad_if_match": ErrorCode("`If-Match` isn't an ETag of what is changed", _OPERATOR, _BAD),
    "bad_import": ErrorCode("The file can't be read as a policy of that system", _OPERATOR, _BAD),
    "nothing_imported": ErrorCode(
        "The file has nothing that a policy can express; `left_out`",
        _OPERATOR, _BAD,
    ),
    "bad_kind": ErrorCode("There are no statistics of that kind", _OPERATOR, _BAD),
    "bad_lifetime": ErrorCode("A token's lifetime is at most 366 days", _OPERATOR, _BAD),
    "bad_name": ErrorCode("The name can't be used", _OPERATOR, _BAD),
    "bad_networks": ErrorCode("Not addresses or networks that a token can be bound to", _OPERATOR, _BAD),
    "bad_number": ErrorCode("An action's option isn't a number within its bounds", _OPERATOR, _BAD),
    "bad_option": ErrorCode("The pipeline job has no such option or value", _OPERATOR, _BAD),
    "bad_parameters": ErrorCode("The request's parameters can't be used", _OPERATOR, _BAD),
    "bad_policy": ErrorCode("The policy can't be used; `problems`", _OPERATOR, _BAD),
    "bad_moment": ErrorCode(
        "The time can't be read, is in the future, or is before anything that is kept",
        _OPERATOR, _BAD,
    ),
    "bad_range": ErrorCode("`from` must be before `to`", _OPERATOR, _BAD),
    "bad_rollout": ErrorCode("The rollout can't begin", _OPERATOR, _BAD),
    "outside_roots": ErrorCode(
        "A directory in the policy isn't under any of SLUICE_DIRECTORY_ROOTS",
        _OPERATOR, _BAD,
    ),
    "bad_spool_path": ErrorCode("Spools can't be written to that directory; `path`", _OPERATOR, _BAD),
    "bad_schedule": ErrorCode("Not a schedule", _OPERATOR, _BAD),
    "bad_scope": ErrorCode("A token can't be made for that", _OPERATOR, _BAD),
    "bad_sort": ErrorCode("It can't be sorted by that", _OPERATOR, _BAD),
    "message_too_long": ErrorCode("A step's message is longer than an action may send", _OPERATOR, _BAD),
    "parameter_missing": ErrorCode(
        "The action needs parameters that the request lacks; `missing`",
        _OPERATOR, _BAD,
    ),
    "reason_needed": ErrorCode("A reason is required, because the client is told it", _OPERATOR, _BAD),
    "topic_refused": ErrorCode("Topics that start with $ are the broker's own", _OPERATOR, _BAD),
    "message_too_large": ErrorCode(
        "A message published here can have at most 1 MiB",
        _OPERATOR, HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    ),
    "body_too_large": ErrorCode(
        "The body of a request has at most 4 MiB",
        ErrorAudience(0), HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    ),
    "authentication_failed": ErrorCode(
        "The token or session is invalid",
        ErrorAudience(0), HTTPStatus.UNAUTHORIZED,
    ),
    "second_factor_needed": ErrorCode(
        "The password is right, but the login also needs a `code`",
        ErrorAudience(0), HTTPStatus.UNAUTHORIZED,
    ),
    "bad_code": ErrorCode(
        "Not the current code of the person's app, or a code that was used already",
        _OPERATOR, HTTPStatus.UNAUTHORIZED,
    ),
    "bad_password": ErrorCode(
        "Not the password of the account that sends the request",
        _OPERATOR, HTTPStatus.UNPROCESSABLE_ENTITY,
    ),
    "login_too_old": ErrorCode(
        "The act needs a login of the last minutes, because the account has no password here",
        _OPERATOR, _FORBIDDEN,
    ),
    "not_authenticated": ErrorCode(
        "The request isn't authenticated",
        ErrorAudience(0), HTTPStatus.UNAUTHORIZED,
    ),
    "permission_denied": ErrorCode(
        "You may not do that, or the CSRF token is missing",
        ErrorAudience(0), _FORBIDDEN,
    ),
    "second_factor_missing": ErrorCode(
        "A second factor is required here, and this account has none",
        ErrorAudience(0), _FORBIDDEN,
    ),
    "not_allowed": ErrorCode("Your role or token may not do that; `permission`", _OPERATOR, _FORBIDDEN),
    "own_run": ErrorCode("Whoever asked for a run can't approve it", _OPERATOR, _FORBIDDEN),
    "not_found": ErrorCode("There is nothing at this address", ErrorAudience(0), _NOT_FOUND),
    "unknown_action": ErrorCode("There is no such action", _OPERATOR, _NOT_FOUND),
    "unknown_client": ErrorCode("No client of that name is connected", _OPERATOR, _NOT_FOUND),
    "unknown_alert": ErrorCode("There is no such alert", _OPERATOR, _NOT_FOUND),
    "unknown_draft": ErrorCode("There is no such draft", _OPERATOR, _NOT_FOUND),
    "unknown_durable": ErrorCode("The client has no such durable subscription", _OPERATOR, _NOT_FOUND),
    "unknown_entry": ErrorCode("The draft has no such entry", _OPERATOR, _NOT_FOUND),
    "unknown_grant": ErrorCode("There is no such grant", ErrorAudience(0), _NOT_FOUND),
    "unknown_instance": ErrorCode("There is no such instance", _OPERATOR, _NOT_FOUND),
    "unknown_job": ErrorCode("The pipeline has no such job", _OPERATOR, _NOT_FOUND),
    "unknown_journal": ErrorCode("There is no such segment", _OPERATOR, _NOT_FOUND),
    "unknown_path": ErrorCode("No enabled action answers at that path", _OPERATOR, _NOT_FOUND),
    "unknown_person": ErrorCode("There is nobody with that name", _OPERATOR, _NOT_FOUND),
    "unknown_replay": ErrorCode("There is no such managed replay", _OPERATOR, _NOT_FOUND),
    "unknown_revision": ErrorCode("There is no such revision", _OPERATOR, _NOT_FOUND),
    "unknown_run": ErrorCode("There is no such run", _OPERATOR, _NOT_FOUND),
    "unknown_token": ErrorCode("You have no such token in force", ErrorAudience(0), _NOT_FOUND),
    "unknown_transport": ErrorCode("There is no such transport", _OPERATOR, _NOT_FOUND),
    "method_not_allowed": ErrorCode(
        "The address doesn't take this method",
        ErrorAudience(0), HTTPStatus.METHOD_NOT_ALLOWED,
    ),
    "not_acceptable": ErrorCode(
        "The answer isn't available in that form",
        ErrorAudience(0), HTTPStatus.NOT_ACCEPTABLE,
    ),
    "unsupported_media_type": ErrorCode(
        "The body's content type isn't supported",
        ErrorAudience(0), HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
    ),
    "immutable": ErrorCode("Such a row can't be changed or deleted", _OPERATOR, _CONFLICT),
    "second_factor_on": ErrorCode(
        "The account has a second factor, which is switched off before another is made",
        _OPERATOR, _CONFLICT,
    ),
    "last_administrator": ErrorCode("Nobody would be left who can give others access", _OPERATOR, _CONFLICT),
    "no_rollout": ErrorCode("No rollout is in progress", _OPERATOR, _CONFLICT),
    "not_awaiting": ErrorCode("The run isn't waiting for approval", _OPERATOR, _CONFLICT),
    "not_live": ErrorCode("The client's delivery isn't live", _OPERATOR, _CONFLICT),
    "not_repeatable": ErrorCode("Such a run can't be repeated", _OPERATOR, _CONFLICT),
    "plan_changed": ErrorCode(
        "What would be done has changed since the plan was made; `hash`",
        _OPERATOR, _CONFLICT,
    ),
    "plan_needed": ErrorCode("The action removes something, so it needs a plan", _OPERATOR, _CONFLICT),
    "replay_ended": ErrorCode("The managed replay has ended", _OPERATOR, _CONFLICT),
    "replay_exists": ErrorCode("A managed replay of that name exists already", _OPERATOR, _CONFLICT),
    "replay_not_ended": ErrorCode("The managed replay hasn't ended", _OPERATOR, _CONFLICT),
    "run_ended": ErrorCode("The run has ended", _OPERATOR, _CONFLICT),
    "run_in_progress": ErrorCode(
        "Another run is using what this one needs; `run`",
        _OPERATOR, _CONFLICT, None, SHORTLY,
    ),
    "confirm_needed": ErrorCode(
        "A change's warnings weren't confirmed; `warnings`, `preview`",
        _OPERATOR, _CONFLICT,
    ),
    "tray_blocked": ErrorCode("A pending change cannot be applied as it is", _OPERATOR, _CONFLICT),
    "tray_full": ErrorCode("No more changes can be pending", _OPERATOR, _CONFLICT),
    "nobody_matches": ErrorCode("No client that you may act on matches the filter", _OPERATOR, _CONFLICT),
    "too_many_matching": ErrorCode(
        "More clients match the filter than one act may cover",
        _OPERATOR, _CONFLICT,
    ),
    "too_many_views": ErrorCode(
        "You have as many views of the clients' table as you may",
        _OPERATOR, _CONFLICT,
    ),
    "view_exists": ErrorCode("You have another view of that name already", _OPERATOR, _CONFLICT),
    "too_many_drafts": ErrorCode("The instance has as many drafts as it may", _OPERATOR, _CONFLICT),
    "draft_changed": ErrorCode(
        "Somebody else changed it first; `version`",
        _OPERATOR, HTTPStatus.PRECONDITION_FAILED,
    ),
    "revision_changed": ErrorCode(
        "Somebody else published first; `revision`",
        _OPERATOR, HTTPStatus.PRECONDITION_FAILED,
    ),
    "rollout_running": ErrorCode(
        "A staged rollout must be promoted or stopped first; `revision`",
        _OPERATOR, _CONFLICT,
    ),
    "revision_withdrawn": ErrorCode("The revision's staged rollout returned by itself", _OPERATOR, _CONFLICT),
    "idempotency_key_reused": ErrorCode(
        "This `Idempotency-Key` was used for another request; `run`",
        ErrorAudience(0), HTTPStatus.UNPROCESSABLE_ENTITY,
    ),
    "if_match_needed": ErrorCode(
        "A change must say which version it is based on (`If-Match`)",
        ErrorAudience(0), HTTPStatus.PRECONDITION_REQUIRED,
    ),
    "throttled": ErrorCode(
        "Too many requests from one account",
        ErrorAudience(0), HTTPStatus.TOO_MANY_REQUESTS, None, SOON,
    ),
    "request_timeout": ErrorCode(
        "The request did not become whole in time",
        ErrorAudience(0), HTTPStatus.REQUEST_TIMEOUT, None, AT_ONCE,
    ),
    "web_busy": ErrorCode(
        "Too many requests of the address are unfinished, or bodies hold as much memory as they may",
        ErrorAudience(0), _AWAY, None, SHORTLY,
    ),
    "locked": ErrorCode(
        "Too many wrong passwords for this name, or failed logins from this address",
        ErrorAudience(0), HTTPStatus.TOO_MANY_REQUESTS, None, SHORTLY,
    ),
    "login_busy": ErrorCode("Too many passwords are being checked", _OPERATOR, _AWAY, None, SHORTLY),
    "error": ErrorCode("The API failed; the web process's log says how", ErrorAudience(0), _FAILED),
    "broker_failed": ErrorCode(
        "The broker closed the connection before it answered, or its answer can't be read. It may have done "
        "what was asked",
        _OPERATOR, HTTPStatus.BAD_GATEWAY, None, SHORTLY,
    ),
    "broker_away": ErrorCode("The broker can't be reached", _LIBRARY | _OPERATOR, _AWAY, None, SHORTLY),
    "broker_unproven": ErrorCode(
        "Whatever answers at the broker's address can't prove that it is the broker: its certificate isn't "
        "from a trusted authority, has expired, or is for another address",
        _LIBRARY | _OPERATOR, _AWAY, None, SHORTLY,
    ),
    "broker_other": ErrorCode(
        "Another broker answers at the address than the one configured",
        _OPERATOR, _AWAY, None, SHORTLY,
    ),
    "control_refused": ErrorCode(
        "The broker doesn't accept the console's token, or no longer does",
        _OPERATOR, _AWAY, None, SHORTLY,
    ),
    "bad_control_link": ErrorCode(
        "The control link between machines can't be set up as configured",
        _OPERATOR, _AWAY, None, SHORTLY,
    ),
    "unknown_member": ErrorCode(
        "The instance has no such member, or its policy doesn't list it as sync (`listed`)",
        _OPERATOR, HTTPStatus.NOT_FOUND,
    ),
    "member_in_use": ErrorCode(
        "A member that takes part, or that sync_members of the policy lists, can't be forgotten", _OPERATOR
    ),
    "database_away": ErrorCode(
        "The control plane's database can't be reached or written, for example because its disk is full. A "
        "change may have been made nevertheless",
        ErrorAudience(0), _AWAY, None, SHORTLY,
    ),
    "policy_from_disk": ErrorCode(
        "The broker runs the policy that is stored on its own disk, because it can't read the "
        "database. It reads it as soon as the database answers",
        _OPERATOR,
    ),
    "policy_unavailable": ErrorCode(
        "A broker starts for the first time, or its stored policy can't be used, and the database "
        "can't be read: it waits for the database",
        _OPERATOR,
    ),
    "policy_file_damaged": ErrorCode(
        "The broker's stored policy can't be used: its checksum, its format or its instance is "
        "wrong. The file was renamed; `file`",
        _OPERATOR,
    ),
    "policy_not_stored": ErrorCode(
        "The broker can't store its policy on its own disk, so it can't start without the "
        "database, and puts no staged revision in force",
        _OPERATOR,
    ),
    "policy_set_back": ErrorCode(
        "The database doesn't have the policy that a broker runs: it is a new one, or an older backup. The "
        "broker keeps its policy until an operator decides; `running`, `database`",
        _OPERATOR,
    ),
    "policy_not_set_back": ErrorCode(
        "There is nothing to decide: the database has the policy of each broker that answers",
        _OPERATOR,
    ),
    "database_locked": ErrorCode(
        "Another session has locked a table of the database, or all of it, so that it can't be "
        "read or written",
        _OPERATOR, _AWAY, None, SHORTLY,
    ),
    "database_read_only": ErrorCode(
        "The database can be read and not written",
        _OPERATOR, _AWAY, None, SHORTLY,
    ),
    "database_full": ErrorCode("The database has no room on its disk", _OPERATOR, _AWAY, None, SHORTLY),
    "no_worker": ErrorCode(
        "No worker serves the queue of the broker's machine, so what is to be done with its journal has to "
        "wait",
        _OPERATOR,
    ),
    "queue_away": ErrorCode("The task queue can't be reached", _OPERATOR, _AWAY, None, SHORTLY),
    "redis_away": ErrorCode("Redis can't be reached", _OPERATOR, _AWAY, None, SHORTLY),
    # Runs, processes, files.
    "already_up": ErrorCode("A supervisor is already running Sluice from this home", _OPERATOR),
    "audit_failed": ErrorCode(
        "An audit that was asked to fail on findings found something; see its run",
        _OPERATOR,
    ),
    "bad_group": ErrorCode("The settings that make the broker a member of a group can't be used", _OPERATOR),
    "bad_certificate": ErrorCode("The certificate or its key can't be used", _LIBRARY | _OPERATOR, _BAD),
    "bad_columns": ErrorCode("The journal has no such columns", _OPERATOR),
    "bad_job": ErrorCode("A file in the directory of your own pipeline jobs isn't a job", _OPERATOR),
    "bad_kept_positions": ErrorCode(
        "The file of durable subscriptions and managed replays can't be read",
        _OPERATOR,
    ),
    "bad_owners": ErrorCode(
        "The file that says which user each client name belongs to can't be read",
        _OPERATOR,
    ),
    "bad_prepared_file": ErrorCode("The prepared file can't replace the segment", _OPERATOR, _CONFLICT),
    "bad_run_directory": ErrorCode("Sockets can't be created in the run directory", _OPERATOR),
    "bad_setting": ErrorCode("A pipeline setting can't be used", _OPERATOR),
    "console_elsewhere": ErrorCode(
        "The console is on another machine, and what it shares with this one isn't configured",
        _OPERATOR,
    ),
    "engine_away": ErrorCode("No engine of the group answers, or they have no quorum", _OPERATOR),
    "engine_behind": ErrorCode(
        "A server of the group's log service is away or behind; a majority is up to date", _OPERATOR
    ),
    "engine_damaged": ErrorCode("An entry of the group's log isn't what was sent; `entry`", _OPERATOR),
    "engine_lost": ErrorCode(
        "The engine's log isn't the one that the member has applied, or has less of it than a member has, "
        "or other entries; `engine`, `applied`, `journal`",
        _OPERATOR,
    ),
    "event_loop": ErrorCode("Events have triggered each other too often", _OPERATOR),
    "folder_refused": ErrorCode("Actions may not use that directory", _OPERATOR, _BAD),
    "group_log_lost": ErrorCode(
        "A member has no journal, the log service has no log, and the control plane knows records "
        "of the group; `known`",
        _OPERATOR,
    ),
    "group_log_other": ErrorCode(
        "A member has no journal, and the log service's log isn't one that the control plane "
        "knows of the group; `engine`, `known`",
        _OPERATOR,
    ),
    "group_not_installed": ErrorCode("A group's engine needs packages that aren't installed", _OPERATOR),
    "java_missing": ErrorCode("Spark needs a newer Java", _OPERATOR),
    "journal_archived": ErrorCode("The segment has been archived already", _OPERATOR, _CONFLICT),
    "journal_behind": ErrorCode(
        "The log ends before records that were acknowledged; `found`, `acknowledged`",
        _OPERATOR,
    ),
    "journal_compressed": ErrorCode("The segment has been compressed already", _OPERATOR, _CONFLICT),
    "journal_current": ErrorCode("The segment is still being written", _OPERATOR, _CONFLICT),
    "journal_damaged": ErrorCode("A segment, or its copy, is damaged; `file`, `offset`", _OPERATOR, _FAILED),
    "journal_elsewhere": ErrorCode(
        "The policy names a different directory from the one that has the segments",
        _OPERATOR, _CONFLICT,
    ),
    "journal_gap": ErrorCode("Only the oldest segments can be removed, in order", _OPERATOR, _CONFLICT),
    "journal_in_use": ErrorCode("Somebody needs the segment; `refused`", _OPERATOR, _CONFLICT, None, SHORTLY),
    "journal_locked": ErrorCode("Another process is using the journal; `pid`", _OPERATOR),
    "journal_other": ErrorCode("The log isn't the one that the instance wrote last; `logs`", _OPERATOR),
    "journal_pinned": ErrorCode(
        "Somebody needs the segment; `needed_by`",
        _OPERATOR, _CONFLICT, None, SHORTLY,
    ),
    "journal_short": ErrorCode("Records are missing within a segment; `first`, `last`", _OPERATOR),
    "journal_there": ErrorCode("The member that is to join has a journal already", _OPERATOR),
    "lake_busy": ErrorCode("Another job is writing to the lake", _OPERATOR, None, None, SHORTLY),
    "lake_damaged": ErrorCode("A file of the lake isn't as it was written; `file`", _OPERATOR, _FAILED),
    "lake_overlap": ErrorCode("Two files of the lake have the same record", _OPERATOR),
    "lake_unwritable": ErrorCode("The lake can't be written; `directory`", _OPERATOR),
    "log_exists": ErrorCode("The engine already has a log of the group's name; `log`", _OPERATOR),
    "master_unreachable": ErrorCode("Spark can't be started on that master; `master`", _OPERATOR),
    "member_behind": ErrorCode(
        "The group's log starts after what the member needs next; `engine`, `applied`",
        _OPERATOR,
    ),
    "member_fenced": ErrorCode("Another process has joined the group under the member's name", _OPERATOR),
    "member_silent": ErrorCode(
        "A member of the group takes no part: the others receive nothing from it", _OPERATOR
    ),
    "link_away": ErrorCode("A link to another site carries nothing", _OPERATOR),
    "link_refused": ErrorCode(
        "The destination of a link refuses a record; nothing after it is carried until it accepts it",
        _OPERATOR,
    ),
    "link_to_itself": ErrorCode("A link's address is the broker's own, or its group's", _OPERATOR),
    "link_elsewhere": ErrorCode("A different instance from before answers at a link's address", _OPERATOR),
    "link_gap": ErrorCode(
        "The destination has records of this instance that this log doesn't: it is another log of that "
        "name, or was truncated; `there`, `here`",
        _OPERATOR,
    ),
    "no_link_secret": ErrorCode(
        "The file of the links' secrets can't be used, or others can read it",
        _OPERATOR,
    ),
    "no_group": ErrorCode("The broker isn't in a group", _OPERATOR),
    "no_archive": ErrorCode("The instance has no archive directory", _OPERATOR, _CONFLICT),
    "no_file_system": ErrorCode("A directory can't be examined", _OPERATOR, _CONFLICT),
    "no_history": ErrorCode(
        "Hourly history of clients was asked for, and client-history hasn't written any",
        _OPERATOR,
    ),
    "no_journal": ErrorCode(
        "There is no such journal or archive directory, or no journal of that instance in it", _OPERATOR
    ),
    "no_log": ErrorCode("There is no such text log", _OPERATOR, _CONFLICT),
    "no_memory_figure": ErrorCode("The host doesn't report how much memory it has", _OPERATOR),
    "no_redis": ErrorCode("No Redis is configured, and none can be started", _OPERATOR),
    "no_source": ErrorCode("There is no healthy journal to make the member from", _OPERATOR),
    "no_transport": ErrorCode("The demo needs an enabled TCP transport", _OPERATOR),
    "not_the_groups": ErrorCode(
        "The member's journal ends with records that no group's log has; `last`",
        _OPERATOR,
    ),
    "not_here": ErrorCode("This broker can't stop its own process", _OPERATOR, _CONFLICT),
    "other_log": ErrorCode(
        "Two logs have the same instance's name, and the one found is the other; `found`, `expected`",
        _CLIENT | _OPERATOR,
        close=4308,
        retry_after_ms=SHORTLY,
    ),
    "other_origin": ErrorCode("The record was accepted by another instance", _OPERATOR),
    "pipeline_failed": ErrorCode("The pipeline's job failed; `returncode`", _OPERATOR),
    "port_taken": ErrorCode("The broker can't listen on an address", _OPERATOR, _CONFLICT),
    "replica_diverged": ErrorCode(
        "The member's journal differs from those of the others; `members`, `entry`",
        _OPERATOR,
    ),
    "run_failed": ErrorCode("The run failed unexpectedly; the worker's log says how", _OPERATOR),
    "segment_missing": ErrorCode("A segment has no file in the journal or the archive", _OPERATOR),
    "spark_not_started": ErrorCode(
        "Spark, or the Java that it needs, can't be started on this machine",
        _OPERATOR,
    ),
    "spool_damaged": ErrorCode("A client's spool is damaged", _OPERATOR, _FAILED),
    "too_many_groups": ErrorCode("The result would have too many rows", _OPERATOR),
    "too_many_keys": ErrorCode("The state has more keys than a run can hold", _OPERATOR),
    "unknown_operator": ErrorCode("There is no operator of that name", _OPERATOR),
    "oidc_failed": ErrorCode("The login at the identity provider failed", _OPERATOR),
    "account_closed": ErrorCode("The account is closed", _OPERATOR),
    "call_refused": ErrorCode(
        "Too many calls of other hosts hang already", _OPERATOR, _AWAY, retry_after_ms=SHORTLY
    ),
    "webhook_failed": ErrorCode(
        "The webhook's host didn't answer, or not with success; `status`",
        _OPERATOR, retry_after_ms=SHORTLY,
    ),
    "webhook_refused": ErrorCode("Webhooks may not call that address", _OPERATOR, _BAD),
    "wrong_stream": ErrorCode(
        "The engine, or its stream of that name, can't carry the group's log",
        _OPERATOR,
    ),
    "worker_lost": ErrorCode("The run's worker stopped reporting", _OPERATOR, retry_after_ms=AT_ONCE),
})  # fmt: skip

UNKNOWN: Final = ErrorCode(
    "A code that isn't in the table, as from a newer broker",
    ErrorAudience.CLIENT,
    HTTPStatus.INTERNAL_SERVER_ERROR,
    4999,
    SOON,
)


def error_code_entry(code: str) -> ErrorCode:
    """Return the entry of a code, or `UNKNOWN` if the table lacks it, as with codes of a newer broker."""
    return CODES.get(code, UNKNOWN)
