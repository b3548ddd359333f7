"""Writes to the policy's rows. Forms, API, drafts, restored revisions and imports all use these functions.

They run the models' checks and report every problem by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.core.exceptions import ValidationError
from django.db.models import Model

from broker_core.config import PolicyDocument
from broker_core.config.instance import GROUP_DEFAULTS
from broker_core.config.transports import TRANSPORT_DEFAULTS
from broker_core.errors import OperatorError
from console.choices import PolicyEntryKind
from console.models import BrokerUser, ClientPolicy, Entitlement, Instance, PolicyEntry, PoolPolicy, Transport
from console.queries import policies as read

USER_FIELDS = ("name", "password", "token", "certificate", "groups", "clients")
ENTITLEMENT_FIELDS = ("who", "transports", "publish", "subscribe", "filter")


def write_document(instance: Instance, document: Mapping[str, Any]) -> None:
    """Replace the instance's rows by a whole document. Call it in a transaction.

    A transport that the document lacks is disabled, not deleted, because clients and history refer to it by
    name.

    Raises:
        OperatorError: `bad_policy`, with every problem in `details["problems"]`.
    """
    complete = PolicyDocument.from_dict(document).to_dict()
    assign_fields(instance, {**GROUP_DEFAULTS, **complete["instance"]}, read.INSTANCE_FIELDS)
    edit_limits(instance, None, complete)
    known = {transport.name: transport for transport in Transport.objects.filter(instance=instance)}
    for name in set(known) - {values["name"] for values in complete["transports"]}:
        assign_fields(known.pop(name), {"enabled": False}, ("enabled",))
    for values in complete["transports"]:
        transport = known.get(values["name"]) or Transport(instance=instance)
        assign_fields(transport, {**TRANSPORT_DEFAULTS, **values}, read.TRANSPORT_COLUMNS)
        edit_limits(instance, transport, values)
    for kind in PolicyEntryKind.values:
        write_entries(instance, kind, complete.get(kind) or [])
    write_access(instance, complete.get("access") or {})


def write_entries(instance: Instance, kind: str, entries: list[dict[str, Any]]) -> None:
    """Replace all entries of one kind. Empty settings are left out."""
    PolicyEntry.objects.filter(instance=instance, kind=kind).delete()
    for index, entry in enumerate(entries):
        filled = {key: value for key, value in entry.items() if value not in (None, "")}
        save_row(PolicyEntry(instance=instance, kind=kind, place=index, settings=filled))


def write_access(instance: Instance, access: Mapping[str, Any]) -> None:
    """Replace the broker's users and their entitlements."""
    BrokerUser.objects.filter(instance=instance).delete()
    Entitlement.objects.filter(instance=instance).delete()
    for user in access.get("users") or ():
        save_row(BrokerUser(instance=instance, **pick_fields(user, USER_FIELDS)))
    for index, entitlement in enumerate(access.get("entitlements") or ()):
        save_row(Entitlement(instance=instance, place=index, **pick_fields(entitlement, ENTITLEMENT_FIELDS)))


def edit_limits(instance: Instance, transport: Transport | None, changes: Mapping[str, Any]) -> None:
    """Change the pool and client limits named in `changes`, for one transport or for the instance (None).

    Raises:
        OperatorError: `bad_policy`.
    """
    where = f"transport {transport.name!r}" if transport else "policy"
    for key, model, fields in (
        ("pool", PoolPolicy, read.POOL_FIELDS),
        ("client_policy", ClientPolicy, read.CLIENT_FIELDS),
    ):
        values = changes.get(key)
        if values is None:
            continue
        check_known_keys(values, fields, f"{where}: {key}")
        row = model.objects.filter(instance=instance, transport=transport).first()
        assign_fields(row or model(instance=instance, transport=transport), values, fields)


def check_known_keys(changes: Any, known: tuple[str, ...], where: str) -> None:
    """Check that `changes` is an object whose keys are all in `known`. `where` begins each problem's text.

    Raises:
        OperatorError: `bad_policy`.
    """
    if not isinstance(changes, Mapping):
        raise bad_policy_error([f"{where} must be an object"])
    if unknown := [key for key in changes if key not in known]:
        raise bad_policy_error([f"{where}: there is no setting {key!r} to change" for key in unknown])


def pick_fields(source: Mapping[str, Any], fields: tuple[str, ...]) -> dict[str, Any]:
    """Return the `fields` that `source` has, with tuples as lists, as a row's JSON columns need them."""
    return {
        key: list(value) if isinstance(value := source[key], tuple) else value
        for key in fields
        if key in source
    }


def assign_fields(row: Any, changes: Mapping[str, Any], fields: tuple[str, ...]) -> None:
    """Set the `fields` that `changes` has on a row, and save it.

    Raises:
        OperatorError: `bad_policy`.
    """
    for name in fields:
        if name in changes:
            setattr(row, name, changes[name])
    save_row(row)


def save_row(row: Model) -> None:
    """Run a row's checks and save it. Every write to the policy's tables goes through this function.

    Raises:
        OperatorError: `bad_policy`, with every problem named.
    """
    try:
        row.full_clean()
    except ValidationError as invalid:
        texts = [(field, " ".join(found)) for field, found in invalid.message_dict.items()]
        raise bad_policy_error(
            [text if field == "__all__" else f"{field}: {text}" for field, text in texts]
        ) from invalid
    row.save()


def bad_policy_error(problems: list[str]) -> OperatorError:
    """Return the error for a policy that can't be used because of `problems`."""
    return OperatorError(
        "bad_policy",
        "The policy is invalid: " + "; ".join(problem.rstrip(".") for problem in problems) + ".",
        "Correct the settings named and save again.",
        problems=problems,
    )
