"""Base classes of rows that are written once.

Changing or deleting a stored row raises OperatorError `immutable`.
"""

from __future__ import annotations

from typing import Any, NoReturn

from django.db import models

from broker_core.errors import OperatorError


def _refuse(name: str, change: str) -> NoReturn:
    raise OperatorError(
        "immutable",
        f"A {name} can't be {change}.",
        "Create a new row; recorded rows never change.",
    )


class ImmutableQuerySet(models.QuerySet[Any]):
    """Query set that refuses bulk changes, which would bypass `save()` and `delete()`."""

    def update(self, **kwargs: Any) -> int:
        """Raise OperatorError `immutable`."""
        _refuse(self.model._meta.verbose_name or "row", "changed")

    def delete(self) -> tuple[int, dict[str, int]]:
        """Raise OperatorError `immutable`."""
        _refuse(self.model._meta.verbose_name or "row", "deleted")

    def bulk_update(self, *args: Any, **kwargs: Any) -> int:
        """Raise OperatorError `immutable`."""
        _refuse(self.model._meta.verbose_name or "row", "changed")


class ImmutableModel(models.Model):
    """Base class of rows that are written once."""

    objects = ImmutableQuerySet.as_manager()

    class Meta:
        abstract = True
        base_manager_name = "objects"

    def save(self, *args: Any, **kwargs: Any) -> None:
        """Validate and insert the row. Raises OperatorError `immutable` if it is stored already."""
        if not self._state.adding:
            _refuse(str(self._meta.verbose_name), "changed")
        self.full_clean()
        kwargs["force_insert"] = True
        super().save(*args, **kwargs)

    def delete(self, *args: Any, **kwargs: Any) -> tuple[int, dict[str, int]]:
        """Raise OperatorError `immutable`."""
        _refuse(str(self._meta.verbose_name), "deleted")
