"""Asks console/services/access.py, before every API view, for what the view declares.

    class DisconnectView(APIView):
        needs = {"POST": Permission.ACT_ON_CLIENTS}     # by method; Open.OWN_ACCOUNT and Open.EVERYONE need no role
        scope = {"client": "name"}                      # the URL's `name` is the client that it is about

What a request is about may also stand in its body or in a row: such a view asks again, with `allow`, once it knows.
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
    """The permission class of every view."""

    def has_permission(self, request: Any, view: Any) -> bool:
        """DRF asks this before every view. Raises OperatorError not_allowed."""
        need = declared_need(view, request.method)
        if need is PublicAccess.EVERYONE:
            return True
        if not (request.user and request.user.is_authenticated):
            return False
        if isinstance(need, Permission):
            kwargs = {key: str(view.kwargs[name]) for key, name in getattr(view, "scope", {}).items()}
            whole = getattr(view, "whole_installation", False)
            instance = (
                "" if whole else request.query_params.get("instance") or current_instance.instance_name()
            )
            access.require_permission(actor_of(request), need, **{"instance": instance, **kwargs})
        return True


def declared_need(view: Any, method: str) -> Need:
    """What a method of a view needs. A view that doesn't declare it can be read; changing is for administrators."""
    needs: Mapping[str, Need] = getattr(view, "needs", {})
    asked = "GET" if method in SAFE_METHODS else method
    default = Permission.VIEW if asked == "GET" else Permission.MANAGE_ACCESS
    return needs.get(asked, default)


def check_permission(
    request: Any, permission: Permission, *, client: str = "", topic: str = "", instance: str = ""
) -> None:
    """Ask for what a view learns from the body or from a row. Raises OperatorError not_allowed."""
    about = instance or request.query_params.get("instance") or current_instance.instance_name()
    access.require_permission(actor_of(request), permission, instance=about, client=client, topic=topic)
