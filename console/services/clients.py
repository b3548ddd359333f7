"""Operators' commands for a client: disconnect, pause, resume, offline; delete a durable subscription.

Without a database that stores the audit's event, each is refused before the broker gets it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import msgspec

from broker_core.documents import requests
from broker_core.documents.clients import DisconnectReply, OfflineReply, PauseReply
from broker_core.documents.replays import DeletedDurable
from broker_core.errors import OperatorError, SluiceError
from console.broker_link import link_to
from console.choices import AuditResult
from console.queries.policies import instance_named
from console.services import audit
from console.services.actors import Actor


def disconnect(actor: Actor, name: str, reason: str, instance_name: str | None = None) -> DisconnectReply:
    """Disconnect a client. The broker sends the reason to the client.

    Raises:
        OperatorError: `unknown_client` or `reason_needed`.
        BrokerUnavailable: the broker doesn't answer.
    """
    instance, stripped = instance_named(instance_name), reason.strip()
    target = f"{instance.name}: client {name}"
    if not stripped:
        raise OperatorError(
            "reason_needed",
            "A reason is required: the broker sends it to the client.",
            "Send it in `reason`.",
        )
    audit.require_database()
    try:
        result = link_to(instance.name).call(requests.DisconnectClient(name=name, reason=stripped[:500]))
    except SluiceError as problem:
        audit.record(
            actor,
            "client.disconnect",
            target,
            reason=stripped,
            result=AuditResult.FAILED,
            message=problem.sentence,
        )
        raise
    audit.record(actor, "client.disconnect", target, after=msgspec.to_builtins(result), reason=stripped)
    return result


ControlRequest = requests.PauseClient | requests.ResumeClient | requests.OfflineClient
CONTROL_REQUESTS: Mapping[str, type[ControlRequest]] = {
    "pause": requests.PauseClient,
    "resume": requests.ResumeClient,
    "offline": requests.OfflineClient,
}
"""Request class of each command for a connected client, by the command's name in addresses and forms."""


def control_client(
    actor: Actor, request: ControlRequest, reason: str = "", instance_name: str | None = None
) -> PauseReply | OfflineReply:
    """Pause a client, resume it (one subscription or all), or offline it.

    Raises:
        OperatorError: `unknown_client`, `unknown_subscription`, `not_live` or `disk_full`.
        BrokerUnavailable: the broker doesn't answer.
    """
    instance, stripped = instance_named(instance_name), reason.strip()[:500]
    target, word = f"{instance.name}: client {request.name}", requests.request_name(request)
    link = link_to(instance.name)
    audit.require_database()
    try:
        result = link.call(cast("requests.Request[PauseReply | OfflineReply]", request))
    except SluiceError as problem:
        audit.record(
            actor,
            f"client.{word}",
            target,
            reason=stripped,
            result=AuditResult.FAILED,
            message=problem.sentence,
        )
        raise
    audit.record(actor, f"client.{word}", target, after=msgspec.to_builtins(result), reason=stripped)
    return result


def delete_durable(actor: Actor, client: str, name: str, instance_name: str | None = None) -> DeletedDurable:
    """Delete a durable subscription: the broker removes its position and no longer retains records for it.

    Raises:
        OperatorError: `unknown_durable`.
        BrokerUnavailable: the broker doesn't answer.
    """
    instance = instance_named(instance_name)
    target = f"{instance.name}: durable subscription {name} of {client}"
    audit.require_database()
    try:
        result = link_to(instance.name).call(requests.DeleteDurable(client=client, name=name))
    except SluiceError as problem:
        audit.record(
            actor, "client.durable_delete", target, result=AuditResult.FAILED, message=problem.sentence
        )
        raise
    audit.record(actor, "client.durable_delete", target, after=msgspec.to_builtins(result))
    return result
