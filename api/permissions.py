"""Who may do what: everyone who is logged in may look; operators may change, a token only if it was made to."""

from __future__ import annotations

from typing import Any

from rest_framework.permissions import SAFE_METHODS, BasePermission

from console.services.operators import may_change


class OperatorChanges(BasePermission):
    """Reading for all who are logged in; changing for operators."""

    message = "Only an operator may change this."

    def has_permission(self, request: Any, view: Any) -> bool:
        """DRF asks this before every view."""
        if request.method in SAFE_METHODS:
            return bool(request.user and request.user.is_authenticated)
        return may_change(request.user, request.auth)


class LoggedIn(BasePermission):
    """Anyone who is logged in: for what concerns one's own account alone."""

    def has_permission(self, request: Any, view: Any) -> bool:
        """DRF asks this before every view."""
        return bool(request.user and request.user.is_authenticated)
