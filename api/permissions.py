"""Permission check before every API view, from what the view declares.

    class DisconnectView(APIView):
        # By method; PublicAccess.OWN_ACCOUNT and PublicAccess.EVERYONE need no role.
        needs = {"POST": Permission.ACT_ON_CLIENTS}
        # The URL's `name` is the client that the request is about.
        scope = {"client": "name"}

A request may also name its subject in the body or in a database row. Such a view calls `check_permission`
once it knows the subject.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rest_framework.permissions import SAFE_METHODS, BasePermission

from console import current_instance
from console.access.rights import Need, PublicAccess
from console.choices import Permission
from console.services import access
from console.services.actors import actor_of


class DeclaredPermission(BasePermission):
    """DRF permission class of every view."""

    def has_permission(self, request: Any, view: Any) -> bool:
        """Return whether the caller may use the view: False for an anonymous caller that must log in.

        Raises:
            OperatorError: `not_allowed`: the account lacks the declared permission.
        """
        need = declared_need(view, request.method)
        if need is PublicAccess.EVERYONE:
            return True
        if not (request.user and request.user.is_authenticated):
            return False
        if isinstance(need, Permission):
            kwargs = {key: str(view.kwargs[name]) for key, name in getattr(view, "scope", {}).items()}
            is_global = getattr(view, "whole_installation", False)
            instance = "" if is_global else current_instance.instance_name()
            access.require_permission(actor_of(request), need, **{"instance": instance, **kwargs})
        return True


def declared_need(view: Any, method: str) -> Need:
    """Return the permission or public access that a view's method declares.

    Undeclared: reading needs `VIEW`, and changing needs `MANAGE_ACCESS` (administrators).
    """
    needs: Mapping[str, Need] = getattr(view, "needs", {})
    verb = "GET" if method in SAFE_METHODS else method
    default = Permission.VIEW if verb == "GET" else Permission.MANAGE_ACCESS
    return needs.get(verb, default)


def check_permission(
    request: Any, permission: Permission, *, client: str = "", topic: str = "", instance: str = ""
) -> None:
    """Require a permission for a subject that the view read from the body or a row.

    `instance` defaults to the request's. Raises OperatorError `not_allowed`.
    """
    about = instance or current_instance.instance_name()
    access.require_permission(actor_of(request), permission, instance=about, client=client, topic=topic)
