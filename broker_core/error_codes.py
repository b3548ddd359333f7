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
        "The kind or the flags of a frame are unknown, or a WebSocket message ends inside a frame; "
        "`position` in the stream",
        _CLIENT | _LIBRARY, close=4000,
    ),
    "frame_too_large": ErrorCode(
        "The frame exceeds the limit, which is 64 KiB until the logon is acknowledged; `length`, "
        "`limit`, `position`",
        _CLIENT | _LIBRARY, close=4001,
    ),
    "bad_batch": ErrorCode(
        "A checksum or length in the batch is wrong, or the batch names another client; `position` in "
        "the batch",
        _CLIENT, close=4002,
    ),
    "bad_command": ErrorCode(
        "The command isn't JSON, or one of its fields is missing, unknown or wrong; `field`. Before "
        "logon, it ends the connection",
        _CLIENT, _BAD, 4003,
    ),
    "unknown_command": ErrorCode(
        "The broker doesn't know the command. Before logon, it ends the connection",
        _CLIENT, close=4004,
    ),
    "not_logged_on": ErrorCode("The first command wasn't a logon", _CLIENT, close=4100),
    "bad_logon": ErrorCode(
        "The password, token or version is wrong, or the connection is logged on already. A second logon "
        "doesn't close the connection",
        _CLIENT, close=4101,
    ),
    "bad_client_name": ErrorCode(
        "The client name is invalid, or the user must not use it",
        _CLIENT, _BAD, 4102,
    ),
    "name_taken": ErrorCode(
        "The name belongs to another user, or a client of another user is connected under it; in the "
        "API, the name exists already",
        _CLIENT | _OPERATOR, _CONFLICT, 4103,
    ),
    "logon_timeout": ErrorCode(
        "The client didn't log on within 10 s",
        _CLIENT, close=4104, retry_after_ms=SOON,
    ),
    "heartbeat_timeout": ErrorCode(
        "The client announced heartbeats, but sent and acknowledged no byte for two intervals and one "
        "second",
        _CLIENT, close=4105, retry_after_ms=AT_ONCE,
    ),
    "frame_timeout": ErrorCode(
        "A frame took longer than 60 s plus one second for each KiB",
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
        "A new revision changed your permissions",
        _CLIENT, close=4108, retry_after_ms=SOON,
    ),
    "connections_over_quota": ErrorCode(
        "Your user has reached its quota of connections; `used`, `limit`",
        _CLIENT, close=4110, retry_after_ms=SHORTLY,
    ),
    "transport_closed": ErrorCode(
        "An operator disabled or moved the transport. Reconnect to the same address or another one",
        _CLIENT, close=4109, retry_after_ms=SOON,
    ),
    "link_in_use": ErrorCode(
        "Another link from your instance is already connected, for example from another member of your "
        "group",
        _CLIENT, close=4111, retry_after_ms=SHORTLY,
    ),
    "stale_sequence": ErrorCode(
        "Another client has published under your name since your logon. Log on again and continue after "
        "the new `sequence`",
        _CLIENT, close=4112, retry_after_ms=SOON,
    ),
    # Actions of a policy or an operator, and timeouts.
    "client_replaced": ErrorCode("Another client logged on with your name", _CLIENT, close=4200),
    "slow_client_disk": ErrorCode(
        "The pool's disk limit was exceeded, and you used most of it",
        _CLIENT, close=4201, retry_after_ms=SOON,
    ),
    "slow_client_capacity": ErrorCode(
        "Your spool exceeded its share of the pool's disk limit",
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
        "A rule on your conflated messages was exceeded",
        _CLIENT, close=4209, retry_after_ms=SOON,
    ),
    "slow_client_drain_rate": ErrorCode(
        "You read fewer bytes per second than the rule requires",
        _CLIENT, close=4210, retry_after_ms=SOON,
    ),
    "slow_client_write_blocked": ErrorCode(
        "Your connection accepted no bytes for longer than the rule allows",
        _CLIENT, close=4211, retry_after_ms=SOON,
    ),
    "slow_client_window_full": ErrorCode(
        "Your prefetch window was full for too long, or too often",
        _CLIENT, close=4212, retry_after_ms=SOON,
    ),
    "slow_client_unacked": ErrorCode(
        "You had too many unacknowledged messages, or messages stayed unacknowledged for too long",
        _CLIENT, close=4213, retry_after_ms=SOON,
    ),
    "slow_client_ack_silence": ErrorCode(
        "You acknowledged no message for longer than the rule allows",
        _CLIENT, close=4214, retry_after_ms=SOON,
    ),
    "slow_client_acknowledged_rate": ErrorCode(
        "You acknowledged fewer messages per second than the rule requires",
        _CLIENT, close=4219, retry_after_ms=SOON,
    ),
    "slow_client_pinned": ErrorCode(
        "Your pauses, durable positions or replays retain more of the log than the rule allows",
        _CLIENT, close=4218, retry_after_ms=SOON,
    ),
    "slow_client_resource_error": ErrorCode(
        "A subscription exceeded its depth, age or count (Qpid's 506)",
        _CLIENT, close=4215, retry_after_ms=SOON,
    ),
    "spool_failed": ErrorCode(
        "The broker couldn't write your backlog to disk",
        _CLIENT, close=4217, retry_after_ms=SOON,
    ),
    "name_refused": ErrorCode(
        "A policy temporarily refuses this client name",
        _CLIENT, close=4216, retry_after_ms=SOON,
    ),
    "lease_expired": ErrorCode(
        "The client didn't renew a subscription within its lease; in `cancelled`",
        _CLIENT,
    ),
    # Failures of the broker itself.
    "shutting_down": ErrorCode("The broker is stopping", _CLIENT, close=4300, retry_after_ms=SOON),
    "journal_failed": ErrorCode(
        "The broker can't write or read its journal. No record after that point is stored",
        _CLIENT | _OPERATOR, _FAILED, 4301, SOON,
    ),
    "journal_taken": ErrorCode(
        "Another process removed, moved, replaced or cut the journal's lock or its current segment; `path`",
        _CLIENT | _OPERATOR, close=4304, retry_after_ms=SOON,
    ),
    "disk_full": ErrorCode(
        "The disk is full",
        _CLIENT | _OPERATOR, HTTPStatus.INSUFFICIENT_STORAGE, 4302, SOON,
    ),
    "input_full": ErrorCode(
        "Unprocessed input exceeds 4 MiB before logon, 256 MiB of unfinished frames after it, or 1 GiB in "
        "all. The broker closes a client of the user or address with the most unfinished input",
        _CLIENT, close=4305, retry_after_ms=SOON,
    ),
    "no_quorum": ErrorCode(
        "The group's log service accepts no records from this broker. As far as the broker knows, none "
        "of the records was stored",
        _CLIENT | _OPERATOR, HTTPStatus.SERVICE_UNAVAILABLE, 4306, SOON,
    ),
    "behind": ErrorCode(
        "This member of the group may lack records of the log, so another member must serve you; "
        "`addresses` of `closing` lists the other members",
        _CLIENT | _LIBRARY | _OPERATOR, _AWAY, 4307, SOON,
    ),
    "internal_error": ErrorCode(
        "The broker failed unexpectedly; its log has the cause",
        _CLIENT | _OPERATOR, _FAILED, 4303, SOON,
    ),
    # Commands.
    "bad_topic": ErrorCode("Clients can't publish to this topic", _CLIENT | _OPERATOR, _BAD),
    "bad_pattern": ErrorCode("The topic pattern is invalid; `column`", _CLIENT | _OPERATOR, _BAD),
    "bad_filter": ErrorCode("The filter is invalid; `column`", _CLIENT | _OPERATOR, _BAD),
    "bad_selector": ErrorCode("The selector over headers is invalid; `column`", _CLIENT | _OPERATOR, _BAD),
    "not_supported": ErrorCode(
        "This broker doesn't support a feature of other STOMP brokers; `header` or `destination`",
        _CLIENT,
    ),
    "bad_transaction": ErrorCode(
        "STOMP: the transaction is unknown, exists already, or is too large, or the connection has too "
        "many transactions",
        _CLIENT,
    ),
    "bad_bookmark": ErrorCode(
        "The bookmark is invalid, or names no record of this log",
        _CLIENT | _OPERATOR, _BAD,
    ),
    "not_entitled": ErrorCode(
        "You must not publish or subscribe to this topic; `topic` of a publish",
        _CLIENT, _FORBIDDEN,
    ),
    "not_journaled": ErrorCode(
        "A bookmark, a durable subscription, a resume or a queue needs a journaled topic, and the topic "
        "isn't journaled; `topic` of a publish",
        _CLIENT, _BAD,
    ),
    "unknown_subscription": ErrorCode(
        "The client has no such subscription, or the command doesn't apply to its type",
        _CLIENT, _NOT_FOUND,
    ),
    "too_many_subscriptions": ErrorCode("A client can have at most 1,000 subscriptions", _CLIENT),
    "over_quota": ErrorCode(
        "You or your user have reached a quota; `quota`, `used`, `limit`, `unit`",
        _CLIENT,
    ),
    "publish_paced": ErrorCode(
        "A notice: you publish faster than a quota allows, so the broker reads more slowly from your "
        "connection; `wait_ms`",
        _CLIENT,
    ),
    "not_in_a_group": ErrorCode(
        "Brokers in a group don't support shared subscriptions and queues",
        _CLIENT,
    ),
    "refused_before": ErrorCode(
        "An earlier message was refused on this connection. Send `skip` before you publish more; "
        "`refused` is the last refused sequence",
        _CLIENT,
    ),
    "too_many_repeats": ErrorCode(
        "10,000 acknowledgements of repeated messages are waiting for the disk",
        _CLIENT, retry_after_ms=SOON,
    ),
    "bad_ack": ErrorCode(
        "The client acknowledged a message that the broker hasn't sent; `sent` is the number of messages "
        "sent",
        _CLIENT,
    ),
    "durable_differs": ErrorCode("The durable subscription has another topic or filter", _CLIENT),
    "durable_in_use": ErrorCode(
        "Another subscription already uses the durable subscription",
        _CLIENT, retry_after_ms=SOON,
    ),
    "too_many_durables": ErrorCode("The instance has reached its limit of durable subscriptions", _CLIENT),
    "not_kept": ErrorCode(
        "The broker can't write the file of durable subscriptions and managed replays",
        _CLIENT | _OPERATOR, _FAILED, retry_after_ms=SHORTLY,
    ),
    "bad_key": ErrorCode("The key is invalid. Use `topic`, or fields such as /id", _CLIENT),
    "snapshot_too_large": ErrorCode("The snapshot has more than 100,000 keys", _CLIENT),
    "bad_resume_token": ErrorCode(
        "The resume token belongs to another instance, client or subscription, or is damaged",
        _CLIENT,
    ),
    "resume_token_expired": ErrorCode(
        "The resume token has expired: resume tokens are valid for 24 hours",
        _CLIENT,
    ),
    "bad_rate": ErrorCode("The rate is invalid", _CLIENT, _BAD),
    "bad_interval": ErrorCode("The interval is invalid", _CLIENT, _BAD),
    "bad_conflation": ErrorCode("The conflation is invalid: its key is missing or wrong", _CLIENT, _BAD),
    "not_steerable": ErrorCode("The subscription has no bookmark, or has durability `live`", _CLIENT),
    "replay_of_another": ErrorCode("The managed replay belongs to another client", _CLIENT),
    "replay_in_use": ErrorCode(
        "Another subscription already uses the managed replay",
        _CLIENT, retry_after_ms=SOON,
    ),
    "replay_differs": ErrorCode("The managed replay has another topic or filter", _CLIENT),
    "too_many_replays": ErrorCode(
        "The instance has reached its limit of managed replays",
        _CLIENT, _CONFLICT,
    ),
    "replay_cancelled": ErrorCode(
        "The managed replay was cancelled; this also ends its subscription",
        _CLIENT,
    ),
    "replay_completed": ErrorCode("The managed replay has reached its end", _CLIENT),
    "bookmark_gone": ErrorCode(
        "Records after the bookmark were removed, and the subscription requested `on_gap=\"error\"`; "
        "`from`, `to`, `oldest`",
        _CLIENT | _OPERATOR, HTTPStatus.GONE,
    ),
    "bookmark_unknown": ErrorCode("A notice: these bookmarks were never in this log; `unknown`", _CLIENT),
    "fully_durable_is_persisted": ErrorCode(
        "A notice: the policy lists no sync member or destination, so `fully_durable` is the same as "
        "`persisted`",
        _CLIENT,
    ),
    "not_stored": ErrorCode(
        "A notice: the broker couldn't store records that it delivered with durability `live`; `from`, "
        "`to`. Or the disk refused a message that an operator published",
        _CLIENT | _OPERATOR, _FAILED,
    ),
    "no_longer_journaled": ErrorCode(
        "A notice, over STOMP an ERROR: the policy no longer journals a topic of the subscription; `id`, "
        "`topic`, `extent` (`all` or `part`)",
        _CLIENT,
    ),
    "narrowed": ErrorCode(
        "A notice: you are entitled to only a part of the pattern; `topics` lists that part",
        _CLIENT,
    ),
    # Codes of the client library itself.
    "acknowledged_missing": ErrorCode(
        "A notice: the broker's log lacks records that it acknowledged to this client; `known`, "
        "`acknowledged`",
        _LIBRARY,
    ),
    "session_forgotten": ErrorCode(
        "A notice: the broker has removed this client's publisher session, so it may store "
        "unacknowledged messages twice; `messages`",
        _LIBRARY,
    ),
    "bad_address": ErrorCode("The address of the transport is missing or invalid", _LIBRARY),
    "bad_groups": ErrorCode(
        "Two groups have the same topic, instance or store, so the client can't choose between them",
        _LIBRARY,
    ),
    "bad_store": ErrorCode("The file isn't a store of this type", _LIBRARY),
    "bad_subscription": ErrorCode("A subscription with that id exists already", _LIBRARY),
    "callback_would_wait": ErrorCode(
        "A callback of a blocking client called a method of the same client that waits",
        _LIBRARY,
    ),
    "client_closed": ErrorCode("The client isn't started or is closed", _LIBRARY),
    "client_started": ErrorCode("A client can be started only once", _LIBRARY),
    "damaged_delivery": ErrorCode(
        "A delivery was damaged between the broker and the client",
        _LIBRARY, retry_after_ms=AT_ONCE,
    ),
    "broker_silent": ErrorCode(
        "The broker sent and acknowledged no byte for two heartbeats",
        _LIBRARY, retry_after_ms=AT_ONCE,
    ),
    "unsent_messages": ErrorCode(
        "The client closed with unacknowledged messages that no file stores; `messages`, `bytes`",
        _LIBRARY,
    ),
    "no_acks": ErrorCode("The subscription doesn't use acknowledgements", _LIBRARY),
    "no_bookmark_store": ErrorCode("`MOST_RECENT` needs a bookmark store", _LIBRARY),
    "no_group_for_topic": ErrorCode("No group serves the topic", _LIBRARY),
    "other_instance": ErrorCode(
        "The instance already has records with these publisher sequences, and would discard your new "
        "messages as duplicates",
        _LIBRARY,
    ),
    "store_failed": ErrorCode("The client can't write or repair the file of a store", _LIBRARY),
    "store_full": ErrorCode("The bookmark store has reached its limit of positions", _LIBRARY),
    "store_locked": ErrorCode("Another process is using the store", _LIBRARY),
    "store_of_another_client": ErrorCode("The publish store contains another client's messages", _LIBRARY),
    "too_many_undone": ErrorCode(
        "The application received too many batches without marking them as done",
        _LIBRARY,
    ),
    # Requests of operators and programs.
    "bad_request": ErrorCode(
        "A field is missing, unknown or wrong; `fields` lists the fields",
        _OPERATOR, _BAD,
    ),
    "parse_error": ErrorCode("The body doesn't match its content type", ErrorAudience(0), _BAD),
    "bad_action": ErrorCode("The action is invalid; `part` names the wrong part", _OPERATOR, _BAD),
    "bad_age": ErrorCode("The age is invalid. Use an age such as 7d", _OPERATOR, _BAD),
    "bad_grant": ErrorCode("The grant is invalid", _OPERATOR, _BAD),
    "bad_idempotency_key": ErrorCode(
        "An `Idempotency-Key` can have up to 200 printable characters",
        ErrorAudience(0), _BAD,
    ),
    "bad_if_match": ErrorCode("`If-Match` isn't an ETag of this resource", _OPERATOR, _BAD),
    "bad_import": ErrorCode("The file isn't a valid configuration of that system", _OPERATOR, _BAD),
    "nothing_imported": ErrorCode(
        "The file contains no setting that a policy can express; `left_out`",
        _OPERATOR, _BAD,
    ),
    "bad_kind": ErrorCode("The type of statistics is unknown", _OPERATOR, _BAD),
    "bad_lifetime": ErrorCode("A token's lifetime is at most 366 days", _OPERATOR, _BAD),
    "bad_name": ErrorCode("The name is invalid", _OPERATOR, _BAD),
    "bad_networks": ErrorCode("A token can't be bound to these addresses or networks", _OPERATOR, _BAD),
    "bad_number": ErrorCode("An option of an action isn't a number within its limits", _OPERATOR, _BAD),
    "bad_option": ErrorCode("The pipeline job has no such option or value", _OPERATOR, _BAD),
    "bad_parameters": ErrorCode("The parameters of the request are invalid", _OPERATOR, _BAD),
    "bad_policy": ErrorCode("The policy is invalid; `problems`", _OPERATOR, _BAD),
    "bad_moment": ErrorCode(
        "The time is invalid, in the future, or older than the retained data",
        _OPERATOR, _BAD,
    ),
    "bad_range": ErrorCode("`from` must be before `to`", _OPERATOR, _BAD),
    "bad_rollout": ErrorCode("The rollout is invalid", _OPERATOR, _BAD),
    "outside_roots": ErrorCode(
        "A directory of the policy is outside SLUICE_DIRECTORY_ROOTS",
        _OPERATOR, _BAD,
    ),
    "bad_spool_path": ErrorCode("The broker can't write spools to that directory; `path`", _OPERATOR, _BAD),
    "bad_schedule": ErrorCode("The schedule is invalid", _OPERATOR, _BAD),
    "bad_scope": ErrorCode("A token can't have these permissions", _OPERATOR, _BAD),
    "bad_sort": ErrorCode("The list can't be sorted by that column", _OPERATOR, _BAD),
    "message_too_long": ErrorCode("The message of a step exceeds the limit of actions", _OPERATOR, _BAD),
    "parameter_missing": ErrorCode(
        "The request lacks parameters of the action; `missing`",
        _OPERATOR, _BAD,
    ),
    "reason_needed": ErrorCode(
        "A reason is required, because the broker sends it to the client",
        _OPERATOR, _BAD,
    ),
    "topic_refused": ErrorCode("Topics that start with $ are reserved for the broker", _OPERATOR, _BAD),
    "message_too_large": ErrorCode(
        "An operator's message can have at most 1 MiB",
        _OPERATOR, HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    ),
    "body_too_large": ErrorCode(
        "The body of a request can have at most 4 MiB",
        ErrorAudience(0), HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    ),
    "uri_too_long": ErrorCode(
        "The request line can have at most 16 KiB",
        ErrorAudience(0), HTTPStatus.REQUEST_URI_TOO_LONG,
    ),
    "authentication_failed": ErrorCode(
        "The token or session is invalid",
        ErrorAudience(0), HTTPStatus.UNAUTHORIZED,
    ),
    "second_factor_needed": ErrorCode(
        "The password is right, but the login also requires `code`",
        ErrorAudience(0), HTTPStatus.UNAUTHORIZED,
    ),
    "bad_code": ErrorCode(
        "The code isn't the current code of the authenticator app, or was used already",
        _OPERATOR, HTTPStatus.UNAUTHORIZED,
    ),
    "bad_password": ErrorCode(
        "The password isn't that of the account that sent the request",
        _OPERATOR, HTTPStatus.UNPROCESSABLE_ENTITY,
    ),
    "login_too_old": ErrorCode(
        "The account has no password here, so this change requires a login within the last 15 minutes",
        _OPERATOR, _FORBIDDEN,
    ),
    "not_authenticated": ErrorCode(
        "The request isn't authenticated",
        ErrorAudience(0), HTTPStatus.UNAUTHORIZED,
    ),
    "permission_denied": ErrorCode(
        "Your account lacks the permission, or the CSRF token is missing",
        ErrorAudience(0), _FORBIDDEN,
    ),
    "second_factor_missing": ErrorCode(
        "Sluice requires a second factor, and this account has none",
        ErrorAudience(0), _FORBIDDEN,
    ),
    "not_allowed": ErrorCode("Your role or token lacks a permission; `permission`", _OPERATOR, _FORBIDDEN),
    "own_run": ErrorCode("An account can't approve a run that it requested", _OPERATOR, _FORBIDDEN),
    "not_found": ErrorCode("No page or resource has this address", ErrorAudience(0), _NOT_FOUND),
    "unknown_action": ErrorCode("The action doesn't exist", _OPERATOR, _NOT_FOUND),
    "unknown_client": ErrorCode("No client with that name is connected", _OPERATOR, _NOT_FOUND),
    "unknown_alert": ErrorCode("The alert doesn't exist", _OPERATOR, _NOT_FOUND),
    "unknown_draft": ErrorCode("The draft doesn't exist", _OPERATOR, _NOT_FOUND),
    "unknown_durable": ErrorCode("The client has no such durable subscription", _OPERATOR, _NOT_FOUND),
    "unknown_entry": ErrorCode("The draft has no such entry", _OPERATOR, _NOT_FOUND),
    "unknown_grant": ErrorCode("The grant doesn't exist", ErrorAudience(0), _NOT_FOUND),
    "unknown_instance": ErrorCode("The instance doesn't exist", _OPERATOR, _NOT_FOUND),
    "unknown_job": ErrorCode("The pipeline job doesn't exist", _OPERATOR, _NOT_FOUND),
    "unknown_journal": ErrorCode("The segment doesn't exist", _OPERATOR, _NOT_FOUND),
    "unknown_path": ErrorCode("No enabled action has that path", _OPERATOR, _NOT_FOUND),
    "unknown_person": ErrorCode("No account has that name", _OPERATOR, _NOT_FOUND),
    "unknown_replay": ErrorCode("The managed replay doesn't exist", _OPERATOR, _NOT_FOUND),
    "unknown_revision": ErrorCode("The revision doesn't exist", _OPERATOR, _NOT_FOUND),
    "unknown_run": ErrorCode("The run doesn't exist", _OPERATOR, _NOT_FOUND),
    "unknown_token": ErrorCode("Your account has no such valid token", ErrorAudience(0), _NOT_FOUND),
    "unknown_transport": ErrorCode("The transport doesn't exist", _OPERATOR, _NOT_FOUND),
    "method_not_allowed": ErrorCode(
        "The address doesn't support this method",
        ErrorAudience(0), HTTPStatus.METHOD_NOT_ALLOWED,
    ),
    "not_acceptable": ErrorCode(
        "The response isn't available in that format",
        ErrorAudience(0), HTTPStatus.NOT_ACCEPTABLE,
    ),
    "unsupported_media_type": ErrorCode(
        "The body's content type isn't supported",
        ErrorAudience(0), HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
    ),
    "immutable": ErrorCode("Recorded rows can't be changed or deleted", _OPERATOR, _CONFLICT),
    "second_factor_on": ErrorCode(
        "The account already has a second factor. Switch it off before you create another",
        _OPERATOR, _CONFLICT,
    ),
    "last_administrator": ErrorCode("No account that can grant access would remain", _OPERATOR, _CONFLICT),
    "no_rollout": ErrorCode("No rollout is in progress", _OPERATOR, _CONFLICT),
    "not_awaiting": ErrorCode("The run doesn't wait for approval", _OPERATOR, _CONFLICT),
    "not_live": ErrorCode("The client's delivery isn't live", _OPERATOR, _CONFLICT),
    "not_repeatable": ErrorCode("The run can't be repeated in its state", _OPERATOR, _CONFLICT),
    "plan_changed": ErrorCode(
        "The planned changes differ from those of the plan; `hash`",
        _OPERATOR, _CONFLICT,
    ),
    "plan_needed": ErrorCode(
        "The action removes data or disconnects clients, so it requires a plan",
        _OPERATOR, _CONFLICT,
    ),
    "replay_ended": ErrorCode("The managed replay has ended", _OPERATOR, _CONFLICT),
    "replay_exists": ErrorCode("A managed replay with that name exists already", _OPERATOR, _CONFLICT),
    "replay_not_ended": ErrorCode("The managed replay hasn't ended yet", _OPERATOR, _CONFLICT),
    "run_ended": ErrorCode("The run has ended", _OPERATOR, _CONFLICT),
    "run_in_progress": ErrorCode(
        "Another run uses the same resource; `run`",
        _OPERATOR, _CONFLICT, None, SHORTLY,
    ),
    "confirm_needed": ErrorCode(
        "The warnings of the change weren't confirmed; `warnings`, `preview`",
        _OPERATOR, _CONFLICT,
    ),
    "tray_blocked": ErrorCode(
        "A pending change can't be applied in its present form",
        _OPERATOR, _CONFLICT,
    ),
    "tray_full": ErrorCode("The account has reached its limit of pending changes", _OPERATOR, _CONFLICT),
    "nobody_matches": ErrorCode("The filter matches no client that you may change", _OPERATOR, _CONFLICT),
    "too_many_matching": ErrorCode(
        "The filter matches more clients than one change may affect",
        _OPERATOR, _CONFLICT,
    ),
    "too_many_views": ErrorCode(
        "Your account has reached its limit of views of the client table",
        _OPERATOR, _CONFLICT,
    ),
    "view_exists": ErrorCode("Your account already has another view with that name", _OPERATOR, _CONFLICT),
    "too_many_drafts": ErrorCode("The instance has reached its limit of drafts", _OPERATOR, _CONFLICT),
    "draft_changed": ErrorCode(
        "Another user changed the object first; `version`",
        _OPERATOR, HTTPStatus.PRECONDITION_FAILED,
    ),
    "revision_changed": ErrorCode(
        "Another user published a revision first; `revision`",
        _OPERATOR, HTTPStatus.PRECONDITION_FAILED,
    ),
    "rollout_running": ErrorCode(
        "A staged rollout is running: promote or stop it first; `revision`",
        _OPERATOR, _CONFLICT,
    ),
    "revision_withdrawn": ErrorCode(
        "Sluice has withdrawn the staged rollout of this revision automatically",
        _OPERATOR, _CONFLICT,
    ),
    "idempotency_key_reused": ErrorCode(
        "This `Idempotency-Key` was used for another request; `run`",
        ErrorAudience(0), HTTPStatus.UNPROCESSABLE_ENTITY,
    ),
    "if_match_needed": ErrorCode(
        "The change must name the version on which it is based, in `If-Match`",
        ErrorAudience(0), HTTPStatus.PRECONDITION_REQUIRED,
    ),
    "throttled": ErrorCode(
        "The account sent too many requests",
        ErrorAudience(0), HTTPStatus.TOO_MANY_REQUESTS, None, SOON,
    ),
    "request_timeout": ErrorCode(
        "The client didn't send the complete request in time",
        ErrorAudience(0), HTTPStatus.REQUEST_TIMEOUT, None, AT_ONCE,
    ),
    "web_busy": ErrorCode(
        "The address has too many unfinished requests, or request bodies use all of the memory that they "
        "may use",
        ErrorAudience(0), _AWAY, None, SHORTLY,
    ),
    "locked": ErrorCode(
        "Too many logins with this name or from this address have failed",
        ErrorAudience(0), HTTPStatus.TOO_MANY_REQUESTS, None, SHORTLY,
    ),
    "login_busy": ErrorCode(
        "The console is checking too many passwords at the moment",
        _OPERATOR, _AWAY, None, SHORTLY,
    ),
    "error": ErrorCode(
        "The API failed unexpectedly; the log of the web process has the cause",
        ErrorAudience(0), _FAILED,
    ),
    "broker_failed": ErrorCode(
        "The broker closed the connection before it replied, or its reply is invalid. It may have "
        "executed the request",
        _OPERATOR, HTTPStatus.BAD_GATEWAY, None, SHORTLY,
    ),
    "broker_away": ErrorCode("The broker isn't reachable", _LIBRARY | _OPERATOR, _AWAY, None, SHORTLY),
    "broker_unproven": ErrorCode(
        "The broker's certificate isn't from a trusted authority, has expired, or is for another address",
        _LIBRARY | _OPERATOR, _AWAY, None, SHORTLY,
    ),
    "broker_other": ErrorCode(
        "Another broker than the configured one answers at the address",
        _OPERATOR, _AWAY, None, SHORTLY,
    ),
    "control_refused": ErrorCode("The broker rejects the console's token", _OPERATOR, _AWAY, None, SHORTLY),
    "bad_control_link": ErrorCode(
        "The settings of the control link between machines are invalid",
        _OPERATOR, _AWAY, None, SHORTLY,
    ),
    "unknown_member": ErrorCode(
        "The instance has no such member, or its policy doesn't list the member as sync (`listed`)",
        _OPERATOR, HTTPStatus.NOT_FOUND,
    ),
    "member_in_use": ErrorCode(
        "The member is active, or the policy lists it in sync_members, so it can't be removed",
        _OPERATOR,
    ),
    "database_away": ErrorCode(
        "The console can't read or write its database, for example because the disk is full. It may have "
        "made the change nevertheless",
        ErrorAudience(0), _AWAY, None, SHORTLY,
    ),
    "policy_from_disk": ErrorCode(
        "The broker can't read the database, and runs the policy on its own disk. It loads the newest "
        "policy when the database responds",
        _OPERATOR,
    ),
    "policy_unavailable": ErrorCode(
        "The broker has no valid stored policy and can't read the database. It starts when the database "
        "responds",
        _OPERATOR,
    ),
    "policy_file_damaged": ErrorCode(
        "The broker renamed its stored policy, because its checksum, format or instance is wrong; `file`",
        _OPERATOR,
    ),
    "policy_not_stored": ErrorCode(
        "The broker can't store its policy on its disk. It can't start without the database, and rejects "
        "staged revisions",
        _OPERATOR,
    ),
    "policy_set_back": ErrorCode(
        "The database lacks the policy that a broker runs, for example after a restored backup. The "
        "broker retains its policy until an operator decides; `running`, `database`",
        _OPERATOR,
    ),
    "policy_not_set_back": ErrorCode(
        "The database has the policy of each broker that responds, so no decision is required",
        _OPERATOR,
    ),
    "database_locked": ErrorCode(
        "Another session has locked the database or one of its tables",
        _OPERATOR, _AWAY, None, SHORTLY,
    ),
    "database_read_only": ErrorCode("The database is read-only", _OPERATOR, _AWAY, None, SHORTLY),
    "database_full": ErrorCode("The disk of the database is full", _OPERATOR, _AWAY, None, SHORTLY),
    "no_worker": ErrorCode(
        "No worker serves the queue of the broker's machine, so actions on its journal wait",
        _OPERATOR,
    ),
    "queue_away": ErrorCode("The task queue isn't reachable", _OPERATOR, _AWAY, None, SHORTLY),
    "redis_away": ErrorCode("Redis isn't reachable", _OPERATOR, _AWAY, None, SHORTLY),
    # Runs, processes, files.
    "already_up": ErrorCode(
        "Another supervisor is already running Sluice from this home directory",
        _OPERATOR,
    ),
    "audit_failed": ErrorCode("The audit found problems; see its run", _OPERATOR),
    "bad_group": ErrorCode("The broker's group settings are invalid", _OPERATOR),
    "bad_certificate": ErrorCode("The certificate or its key is invalid", _LIBRARY | _OPERATOR, _BAD),
    "bad_columns": ErrorCode("The journal doesn't have these columns", _OPERATOR),
    "bad_job": ErrorCode("A file in the directory of custom pipeline jobs isn't a job", _OPERATOR),
    "bad_kept_positions": ErrorCode(
        "The broker can't read the file of durable subscriptions and managed replays",
        _OPERATOR,
    ),
    "bad_owners": ErrorCode("The broker can't read the file of client names and their users", _OPERATOR),
    "bad_prepared_file": ErrorCode("The prepared file can't replace the segment", _OPERATOR, _CONFLICT),
    "bad_run_directory": ErrorCode("Sluice can't create sockets in the run directory", _OPERATOR),
    "bad_setting": ErrorCode("A pipeline setting is invalid", _OPERATOR),
    "console_elsewhere": ErrorCode(
        "The console runs on another machine, and the resources that both machines share aren't "
        "configured",
        _OPERATOR,
    ),
    "engine_away": ErrorCode(
        "No server of the group's log service answers, or the servers have no quorum",
        _OPERATOR,
    ),
    "engine_behind": ErrorCode(
        "A server of the group's log service is unreachable or behind; a majority is up to date",
        _OPERATOR,
    ),
    "engine_damaged": ErrorCode(
        "An entry of the group's log differs from the entry that was sent; `entry`",
        _OPERATOR,
    ),
    "engine_lost": ErrorCode(
        "The log service has another log, fewer entries or other entries than the member has applied; "
        "`engine`, `applied`, `journal`",
        _OPERATOR,
    ),
    "event_loop": ErrorCode("Actions have triggered each other through events too often", _OPERATOR),
    "folder_refused": ErrorCode("Actions must not use that directory", _OPERATOR, _BAD),
    "group_log_lost": ErrorCode(
        "The member has no journal and the log service has no log, but the control plane knows records "
        "of the group; `known`",
        _OPERATOR,
    ),
    "group_log_other": ErrorCode(
        "The member has no journal, and the control plane doesn't know the log service's log; `engine`, "
        "`known`",
        _OPERATOR,
    ),
    "group_not_installed": ErrorCode(
        "The packages for the group's log service aren't installed",
        _OPERATOR,
    ),
    "java_missing": ErrorCode("Spark requires a newer Java", _OPERATOR),
    "journal_archived": ErrorCode("The segment is already archived", _OPERATOR, _CONFLICT),
    "journal_behind": ErrorCode(
        "The log ends before the last acknowledged record; `found`, `acknowledged`",
        _OPERATOR,
    ),
    "journal_compressed": ErrorCode("The segment is already compressed", _OPERATOR, _CONFLICT),
    "journal_current": ErrorCode("The broker is still writing the segment", _OPERATOR, _CONFLICT),
    "journal_damaged": ErrorCode("A segment or its copy is damaged; `file`, `offset`", _OPERATOR, _FAILED),
    "journal_elsewhere": ErrorCode(
        "The segments aren't in the directory that the policy names",
        _OPERATOR, _CONFLICT,
    ),
    "journal_gap": ErrorCode(
        "Segments can be removed only in order, beginning with the oldest",
        _OPERATOR, _CONFLICT,
    ),
    "journal_in_use": ErrorCode(
        "A reader or the broker still needs the segment; `refused`",
        _OPERATOR, _CONFLICT, None, SHORTLY,
    ),
    "journal_locked": ErrorCode("Another process is using the journal; `pid`", _OPERATOR),
    "journal_other": ErrorCode("The log isn't the log that the instance wrote last; `logs`", _OPERATOR),
    "journal_pinned": ErrorCode(
        "A reader still needs the segment; `needed_by`",
        _OPERATOR, _CONFLICT, None, SHORTLY,
    ),
    "journal_reseeding": ErrorCode("A reseed was interrupted while it replaced the journal", _OPERATOR),
    "journal_short": ErrorCode("Records are missing inside a segment; `first`, `last`", _OPERATOR),
    "journal_there": ErrorCode("The new member already has a journal", _OPERATOR),
    "lake_busy": ErrorCode("Another job is writing to the lake", _OPERATOR, None, None, SHORTLY),
    "lake_damaged": ErrorCode("A file of the lake differs from its manifest; `file`", _OPERATOR, _FAILED),
    "lake_overlap": ErrorCode("Two files of the lake contain the same record", _OPERATOR),
    "lake_unwritable": ErrorCode("Sluice can't write to the lake; `directory`", _OPERATOR),
    "log_exists": ErrorCode("The log service already has a log with the group's name; `log`", _OPERATOR),
    "master_unreachable": ErrorCode("Spark can't start on that master; `master`", _OPERATOR),
    "member_behind": ErrorCode(
        "The group's log starts after the next entry that the member needs; `engine`, `applied`",
        _OPERATOR,
    ),
    "member_fenced": ErrorCode("Another process has joined the group with the member's name", _OPERATOR),
    "member_silent": ErrorCode(
        "The other members receive no reports from a member of the group",
        _OPERATOR,
    ),
    "link_away": ErrorCode("A link to another site isn't forwarding records", _OPERATOR),
    "link_refused": ErrorCode(
        "The destination of a link rejects a record. The link forwards no later record until the "
        "destination accepts it",
        _OPERATOR,
    ),
    "link_to_itself": ErrorCode("The address of a link is that of its own broker or group", _OPERATOR),
    "link_elsewhere": ErrorCode("The address of a link now belongs to a different instance", _OPERATOR),
    "link_gap": ErrorCode(
        "The destination has records of this instance that this log lacks: the log was replaced or "
        "truncated; `there`, `here`",
        _OPERATOR,
    ),
    "no_link_secret": ErrorCode(
        "The broker can't use the file of link secrets, or other users can read it",
        _OPERATOR,
    ),
    "no_group": ErrorCode("The broker isn't in a group", _OPERATOR),
    "no_archive": ErrorCode("The instance has no archive directory", _OPERATOR, _CONFLICT),
    "no_file_system": ErrorCode("Sluice can't examine a directory", _OPERATOR, _CONFLICT),
    "no_history": ErrorCode(
        "The job requires the hourly history of clients, but client-history hasn't written any",
        _OPERATOR,
    ),
    "no_journal": ErrorCode(
        "The journal or archive directory doesn't exist, or has no journal of that instance",
        _OPERATOR,
    ),
    "no_log": ErrorCode("The text log doesn't exist", _OPERATOR, _CONFLICT),
    "no_memory_figure": ErrorCode("The host doesn't report its amount of memory", _OPERATOR),
    "no_redis": ErrorCode("No Redis is configured, and Sluice can't start one", _OPERATOR),
    "no_source": ErrorCode("No healthy journal is available for the new member", _OPERATOR),
    "no_transport": ErrorCode("The demo needs an enabled TCP transport", _OPERATOR),
    "not_the_groups": ErrorCode(
        "The member's journal ends with records that aren't in the group's log; `last`",
        _OPERATOR,
    ),
    "not_here": ErrorCode("This broker can't stop its own process", _OPERATOR, _CONFLICT),
    "other_log": ErrorCode(
        "Two different logs have the name of this instance, and the broker found the wrong one; `found`, "
        "`expected`",
        _CLIENT | _OPERATOR, close=4308, retry_after_ms=SHORTLY,
    ),
    "other_origin": ErrorCode("Another instance accepted the record", _OPERATOR),
    "pipeline_failed": ErrorCode("The pipeline job failed; `returncode`", _OPERATOR),
    "port_taken": ErrorCode("The broker can't listen on an address", _OPERATOR, _CONFLICT),
    "replica_diverged": ErrorCode(
        "The member's journal differs from those of the other members; `members`, `entry`",
        _OPERATOR,
    ),
    "run_failed": ErrorCode("The run failed unexpectedly; the log of the worker has the cause", _OPERATOR),
    "segment_missing": ErrorCode(
        "The file of a segment is neither in the journal nor in the archive",
        _OPERATOR,
    ),
    "spark_not_started": ErrorCode("Spark or Java can't start on this machine", _OPERATOR),
    "spool_damaged": ErrorCode("A client's spool is damaged", _OPERATOR, _FAILED),
    "too_many_groups": ErrorCode("The result would have too many rows", _OPERATOR),
    "too_many_keys": ErrorCode("The state has more keys than a run can process", _OPERATOR),
    "unknown_operator": ErrorCode("No operator has that name", _OPERATOR),
    "oidc_failed": ErrorCode("The login at the identity provider failed", _OPERATOR),
    "account_closed": ErrorCode("The account is closed", _OPERATOR),
    "call_refused": ErrorCode(
        "Too many calls to unresponsive hosts are still running",
        _OPERATOR, _AWAY, retry_after_ms=SHORTLY,
    ),
    "webhook_failed": ErrorCode(
        "The host of the webhook didn't respond, or responded with an error; `status`",
        _OPERATOR, retry_after_ms=SHORTLY,
    ),
    "webhook_refused": ErrorCode("Webhooks must not call that address", _OPERATOR, _BAD),
    "wrong_stream": ErrorCode(
        "The log service, or its stream with the group's name, can't carry the group's log",
        _OPERATOR,
    ),
    "worker_lost": ErrorCode("The worker of the run stopped reporting", _OPERATOR, retry_after_ms=AT_ONCE),
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
