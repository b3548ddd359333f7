"""How somebody wants the clients' table: columns, and views with a name. A view is its address."""

from __future__ import annotations

from typing import Final
from urllib.parse import parse_qs, urlencode

from django.db import IntegrityError, transaction

from broker_core.documents import client_columns
from broker_core.documents.clients import DeliveryState, Health
from broker_core.errors import OperatorError
from console.models import ClientColumns, SavedClientView
from console.services.actors import Actor

MAX_VIEWS: Final = 20
"""Of one person: they stand beside one another above the table."""
MAX_SEARCH: Final = 64


def canonical_query(query: str) -> str:
    """The part of an address that a view is: filter, order and columns, each if it is one; the rest is left out."""
    given = {key: values[-1] for key, values in parse_qs(query.lstrip("?"), max_num_fields=50).items()}
    sort = given.get("sort", "")
    kept = {
        "q": given.get("q", "").strip()[:MAX_SEARCH],
        "delivery": given["delivery"] if given.get("delivery") in list(DeliveryState) else "",
        "health": given["health"] if given.get("health") in list(Health) else "",
        "sort": sort
        if sort.removeprefix("-") in client_columns.sort_fields() and sort != client_columns.DEFAULT_SORT
        else "",
        "columns": ",".join(valid_columns(given.get("columns", "").split(","))),
    }
    return urlencode({key: text for key, text in kept.items() if text}, safe=",")


def valid_columns(keys: list[str]) -> list[str]:
    """Those of the keys that can be chosen, each once, in the table's order."""
    return [one.key for one in client_columns.optional_columns() if one.key in keys]


def columns_for_user(user_id: int | None) -> list[str]:
    """What somebody chose besides the usual ones."""
    found = ClientColumns.objects.filter(user_id=user_id).first() if user_id is not None else None
    return valid_columns(found.keys.split(",")) if found is not None else []


def save_columns(actor: Actor, keys: list[str]) -> None:
    """Keep a choice in place of the one before."""
    ClientColumns.objects.update_or_create(
        user_id=actor.account_id, defaults={"keys": ",".join(valid_columns(keys))}
    )


def views_for_user(user_id: int | None) -> list[SavedClientView]:
    """Somebody's views, the oldest first."""
    return list(SavedClientView.objects.filter(owner_id=user_id)[:MAX_VIEWS]) if user_id is not None else []


def save_view(actor: Actor, name: str, query: str) -> SavedClientView:
    """Keep a view, in place of the one of that name. Raises OperatorError too_many_views."""
    rows = SavedClientView.objects.filter(owner_id=actor.user_id)
    with transaction.atomic():
        if rows.count() >= MAX_VIEWS and not rows.filter(name=name).exists():
            raise OperatorError("too_many_views", f"You have {MAX_VIEWS} views.", "Delete one of them.")
        view, _ = SavedClientView.objects.update_or_create(
            owner_id=actor.user_id, name=name, defaults={"query": canonical_query(query)}
        )
    return view


def rename_view(actor: Actor, view_id: int, name: str) -> None:
    """Give a view another name. One that is gone is left gone. Raises OperatorError view_exists."""
    try:
        with transaction.atomic():
            SavedClientView.objects.filter(owner_id=actor.user_id, pk=view_id).update(name=name)
    except IntegrityError:
        raise OperatorError(
            "view_exists", f"You have a view “{name}” already.", "Choose another name."
        ) from None


def delete_view(actor: Actor, view_id: int) -> SavedClientView | None:
    """Delete one; returns what it was, None when it was gone."""
    found = SavedClientView.objects.filter(owner_id=actor.user_id, pk=view_id).first()
    if found is not None:
        SavedClientView.objects.filter(pk=found.pk).delete()
    return found
