"""An operator's settings of the table of clients: columns, and named views.

A view is the query string of its URL.
"""

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
"""Maximum views per operator. They are shown beside each other above the table."""
MAX_SEARCH: Final = 64


def canonical_query(query: str) -> str:
    """Return the parts of a query string that make a view: filter, sort order and columns.

    Drops invalid values.
    """
    parameters = {key: values[-1] for key, values in parse_qs(query.lstrip("?"), max_num_fields=50).items()}
    sort = parameters.get("sort", "")
    valid = {
        "q": parameters.get("q", "").strip()[:MAX_SEARCH],
        "delivery": parameters["delivery"] if parameters.get("delivery") in list(DeliveryState) else "",
        "health": parameters["health"] if parameters.get("health") in list(Health) else "",
        "sort": sort
        if sort.removeprefix("-") in client_columns.sort_fields() and sort != client_columns.DEFAULT_SORT
        else "",
        "columns": ",".join(valid_columns(parameters.get("columns", "").split(","))),
    }
    return urlencode({key: text for key, text in valid.items() if text}, safe=",")


def valid_columns(keys: list[str]) -> list[str]:
    """Return the given keys of optional columns, without duplicates, in the table's order."""
    return [one.key for one in client_columns.optional_columns() if one.key in keys]


def columns_for_user(user_id: int | None) -> list[str]:
    """Return the columns that an operator added to the default ones."""
    found = ClientColumns.objects.filter(user_id=user_id).first() if user_id is not None else None
    return valid_columns(found.keys.split(",")) if found is not None else []


def save_columns(actor: Actor, keys: list[str]) -> None:
    """Store an operator's choice of columns."""
    ClientColumns.objects.update_or_create(
        user_id=actor.account_id, defaults={"keys": ",".join(valid_columns(keys))}
    )


def views_for_user(user_id: int | None) -> list[SavedClientView]:
    """Return an operator's saved views, oldest first."""
    return list(SavedClientView.objects.filter(owner_id=user_id)[:MAX_VIEWS]) if user_id is not None else []


def save_view(actor: Actor, name: str, query: str) -> SavedClientView:
    """Store a view, or replace the one of that name. Raises OperatorError `too_many_views`."""
    rows = SavedClientView.objects.filter(owner_id=actor.user_id)
    with transaction.atomic():
        if rows.count() >= MAX_VIEWS and not rows.filter(name=name).exists():
            raise OperatorError(
                "too_many_views", f"You have reached the limit of {MAX_VIEWS} views.", "Delete a view."
            )
        view, _ = SavedClientView.objects.update_or_create(
            owner_id=actor.user_id, name=name, defaults={"query": canonical_query(query)}
        )
    return view


def rename_view(actor: Actor, view_id: int, name: str) -> None:
    """Rename a view. Does nothing when it no longer exists. Raises OperatorError `view_exists`."""
    try:
        with transaction.atomic():
            SavedClientView.objects.filter(owner_id=actor.user_id, pk=view_id).update(name=name)
    except IntegrityError:
        raise OperatorError(
            "view_exists", f"You already have a view “{name}”.", "Choose another name."
        ) from None


def delete_view(actor: Actor, view_id: int) -> SavedClientView | None:
    """Delete a view and return it, or None when it no longer existed."""
    found = SavedClientView.objects.filter(owner_id=actor.user_id, pk=view_id).first()
    if found is not None:
        SavedClientView.objects.filter(pk=found.pk).delete()
    return found
