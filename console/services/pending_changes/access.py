"""Pending changes that take access away: close an account, revoke a role, revoke a token. See `kinds`.

They need the permission over the whole installation, because accounts belong to no instance.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from django.utils import timezone

from broker_core.errors import OperatorError
from console.choices import PendingChangeKind, Permission
from console.models import ApiToken, Grant, PendingChange
from console.services import operators, people
from console.services.actors import Actor
from console.services.pending_changes.base import ChangeKind, ChangePreview, effect_line

YOU: Final = "This is your own account: you may lose the permission to undo the change."


def _account(item: PendingChange, _: list[str] | None) -> ChangePreview:
    user: Any = people.get_person(item.target)
    tokens = _in_force().filter(user=user).count()
    lines = [
        effect_line(
            f"{item.target} is logged out everywhere immediately, and can’t "
            "log in until the account is opened again."
        ),
        effect_line(
            f"{tokens} token{'' if tokens == 1 else 's'} of this account can’t be used until then; "
            "its roles don’t change."
        ),
    ]
    blocked = [] if user.is_active else [f"The account of {item.target} is closed already."]
    warnings = [YOU] if user.pk == item.owner_id else []
    return ChangePreview(
        f"Close the account of {item.target}", "1 account closed", lines, warnings, blocked, severe=True
    )


def _do_account(actor: Actor, item: PendingChange, _: str) -> str:
    people.set_active(actor, people.get_person(item.target), False)
    return f"The account of {item.target} is closed; its sessions and tokens have ended."


def _grant(item: PendingChange, _: list[str] | None) -> ChangePreview:
    found = _grant_numbered(item.target)
    name = found.user.get_username()
    others = Grant.objects.filter(user=found.user).exclude(pk=found.pk).count()
    remaining = f"{others} other role{'' if others == 1 else 's'} of {name} stay{'s' if others == 1 else ''}."
    lines = [
        effect_line(
            remaining
            if others
            else f"{name} has no other role: the account and its tokens lose all permissions."
        )
    ]
    warnings = [YOU] if found.user_id == item.owner_id else []
    title = f"Revoke {found.get_role_display()} {found.scope_text} of {name}"
    return ChangePreview(title, "1 role revoked", lines, warnings, severe=True)


def _do_grant(actor: Actor, item: PendingChange, _: str) -> str:
    found = _grant_numbered(item.target)
    message = (
        f"{found.user.get_username()} is no longer {found.get_role_display().lower()} {found.scope_text}."
    )
    people.revoke(actor, found)
    return message


def _token(item: PendingChange, _: list[str] | None) -> ChangePreview:
    found = _token_numbered(item.target)
    used = f"last used {found.used_at:%Y-%m-%d %H:%M} UTC" if found.used_at else "never used"
    lines = [
        effect_line(
            f"Programs that use it are refused from their next request on ({used}). The token "
            "can’t be restored."
        )
    ]
    return ChangePreview(
        f"Revoke the token {found.name} of {found.user.get_username()}",
        "1 token revoked",
        lines,
        severe=found.used_at is not None,
    )


def _do_token(actor: Actor, item: PendingChange, _: str) -> str:
    found = _token_numbered(item.target)
    operators.revoke_token(actor, found)
    return f"The token {found.name} is revoked."


def _in_force() -> Any:
    """Return the tokens that are neither revoked nor expired."""
    return ApiToken.objects.filter(revoked_at__isnull=True, expires_at__gt=timezone.now())


def _grant_numbered(number: str) -> Grant:
    """Return the role with this id. Raises OperatorError `unknown_entry`."""
    found = Grant.objects.select_related("user", "instance").filter(pk=int(number)).first()
    if found is None:
        raise OperatorError("unknown_entry", "This role is already revoked.", "Load the page again.")
    return found


def _token_numbered(number: str) -> ApiToken:
    """Return the unrevoked token with this id. Raises OperatorError `unknown_entry`."""
    found = ApiToken.objects.select_related("user").filter(pk=int(number), revoked_at__isnull=True).first()
    if found is None:
        raise OperatorError("unknown_entry", "This token is already revoked.", "Load the page again.")
    return found


ACCESS_CHANGE_KINDS: Mapping[PendingChangeKind, ChangeKind] = {
    PendingChangeKind.ACCOUNT_CLOSE: ChangeKind(
        Permission.MANAGE_ACCESS, _account, _do_account, about_everything=True
    ),
    PendingChangeKind.GRANT_REVOKE: ChangeKind(
        Permission.MANAGE_ACCESS, _grant, _do_grant, about_everything=True
    ),
    PendingChangeKind.TOKEN_REVOKE: ChangeKind(
        Permission.MANAGE_ACCESS, _token, _do_token, about_everything=True
    ),
}
