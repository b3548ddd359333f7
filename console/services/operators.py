"""Operators' accounts and API tokens."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Collection, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import redis
from django.contrib.auth import get_user_model
from django.contrib.auth.models import User
from django.core.exceptions import ValidationError
from django.db import IntegrityError, transaction
from django.utils import timezone

from broker_core.errors import OperatorError
from console.access import last_used
from console.access.login_limit import hashing_slot
from console.access.networks import is_in_networks, parse_networks
from console.choices import TOKEN_PERMISSIONS, Permission, Role
from console.models import ApiToken, Grant
from console.models.access import check_networks
from console.services import audit, second_factor, sessions
from console.services.actors import SYSTEM, Actor, access_of

MAX_TOKEN_AGE = timedelta(days=366)


def create_account(actor: Actor, name: str) -> tuple[User, str]:
    """Create an account with a random password, and return both. The password is stored only as a hash.

    Raises:
        OperatorError: `name_taken`.
    """
    users = get_user_model()
    taken = OperatorError(
        "name_taken", f"The operator {name!r} exists already.", "Choose another name, or use --reset."
    )
    password = secrets.token_urlsafe(12)
    try:
        with transaction.atomic():
            if users.objects.filter(username=name).exists():
                raise taken
            user = users.objects.create_user(username=name, password=password)
            audit.record(actor, "operator.create", f"operator {name}")
    except IntegrityError as twice:
        raise taken from twice
    return user, password


def create_operator(name: str, actor: Actor = SYSTEM, role: Role = Role.ADMINISTRATOR) -> tuple[User, str]:
    """Create an account with a role on everything, for `manage.py createoperator`.

    Returns:
        The account and its random password, which is stored only as a hash.

    Raises:
        OperatorError: `name_taken`.
    """
    with transaction.atomic():
        user, password = create_account(actor, name)
        Grant.objects.create(user=user, role=role, created_by=actor.name[:200])
        audit.record(actor, "grant.create", f"operator {name}", after={"role": role})
    return user, password


def reset_password(name: str, actor: Actor = SYSTEM) -> str:
    """Set a new random password for an operator, and return it. Their sessions and tokens end.

    A password is reset because another person may know it, and that person can have made tokens.

    Raises:
        OperatorError: `unknown_operator`.
    """
    with transaction.atomic():
        user = get_user_model().objects.select_for_update().filter(username=name).first()
        if user is None:
            raise OperatorError(
                "unknown_operator", f"The operator {name!r} doesn't exist.", "Create it without --reset."
            )
        password = secrets.token_urlsafe(12)
        user.set_password(password)
        user.save(update_fields=["password"])
        audit.record(
            actor, "operator.reset_password", f"operator {name}", after={"tokens_ended": end_access(user)}
        )
    return password


def remove_second_factor(name: str, reason: str, actor: Actor = SYSTEM) -> None:
    """Remove an operator's second factor.

    A command on the host calls this when the authenticator app is lost.

    Raises:
        OperatorError: `unknown_operator`, `reason_needed` or `second_factor_missing`.
    """
    if not reason.strip():
        raise OperatorError("reason_needed", "A reason is required for the audit log.", "Say why.")
    user = get_user_model().objects.filter(username=name).first()
    if user is None:
        raise OperatorError("unknown_operator", f"The operator {name!r} doesn't exist.", "Check the name.")
    if not second_factor.remove(actor, user, reason.strip()):
        raise OperatorError(
            "second_factor_missing",
            f"The operator {name!r} has no second factor.",
            "No change is needed.",
        )


def change_password(actor: Actor, form: Any) -> None:
    """Store the account's new password from a valid PasswordChangeForm. The account's other sessions end.

    Raises:
        OperatorError: `bad_password` if the account was closed, or got another password, after the form was
            checked.
    """
    former = form.user.password
    with hashing_slot():
        form.save(commit=False)
    with transaction.atomic():
        # Hashing takes a while. Only the password is written, and only over the one that was checked.
        rows = get_user_model().objects.filter(pk=form.user.pk, is_active=True, password=former)
        if not rows.update(password=form.user.password):
            raise OperatorError(
                "bad_password",
                "Your account was changed in the meantime, and your password wasn't.",
                "Log in again.",
            )
        audit.record(actor, "operator.change_password", f"operator {form.user.get_username()}")


def has_operator() -> bool:
    """Whether an active, unrestricted administrator exists, who can log in and give others access."""
    found = Grant.objects.filter(role=Role.ADMINISTRATOR, instance=None, client_pattern="", topic_pattern="")
    return found.filter(user__is_active=True).exists()


def create_token(
    actor: Actor,
    user: User,
    name: str,
    *,
    lifetime: timedelta,
    scope: Collection[Permission | str],
    networks: Sequence[str] = (),
    now: datetime | None = None,
) -> tuple[ApiToken, str]:
    """Create an API token, and return its row and its text. The text can't be shown again.

    Args:
        actor: The operator, for the audit.
        user: Account that owns the token.
        name: Label of the token.
        lifetime: At most `MAX_TOKEN_AGE`.
        scope: Permissions of the token.
        networks: Addresses or networks from which it may be used; empty for everywhere.
        now: The present time; by default the clock's.

    Raises:
        OperatorError: `bad_lifetime`, `bad_scope`, `bad_networks`, `not_allowed` for a scope beyond the
            account's own permissions, or `bad_password` if the account was closed, or got another password,
            after `user` was read.
    """
    if not timedelta(0) < lifetime <= MAX_TOKEN_AGE:
        raise OperatorError(
            "bad_lifetime", "A token's lifetime is at most 366 days.", "Use an age between 1s and 366d."
        )
    # A permission that tokens can't have is missing here, so the lengths differ and the request is refused.
    permissions = [str(one) for one in TOKEN_PERMISSIONS if one in scope]
    if not permissions or len(permissions) != len(set(scope)):
        raise OperatorError(
            "bad_scope",
            "A token can't have these permissions.",
            f"Select permissions from {', '.join(TOKEN_PERMISSIONS)}.",
        )
    if beyond := set(permissions) - set(map(str, access_of(user).permissions)):
        raise OperatorError(
            "not_allowed",
            f"{user.get_username()} has no role with {', '.join(sorted(beyond))}.",
            "Request fewer permissions.",
        )
    bound = [one.strip() for one in networks if one.strip()]
    try:
        check_networks(bound)
    except ValidationError as problem:
        raise OperatorError(
            "bad_networks",
            " ".join(problem.messages),
            "Use networks such as 10.1.0.0/16, or addresses such as 10.1.2.3.",
        ) from problem
    # The prefix finds the row; only a digest of the secret is stored.
    prefix, secret = secrets.token_hex(4), secrets.token_urlsafe(32)
    digest = _digest(secret)
    with transaction.atomic():
        accounts = get_user_model().objects.select_for_update()
        if not accounts.filter(pk=user.pk, is_active=True, password=user.password).exists():
            raise OperatorError("bad_password", "Your account was changed in the meantime.", "Log in again.")
        token = ApiToken.objects.create(
            name=name[:100],
            user=user,
            prefix=prefix,
            digest=digest,
            scope=permissions,
            networks=bound,
            expires_at=(now or timezone.now()) + lifetime,
        )
        audit.record(
            actor,
            "token.create",
            f"token {prefix}",
            after={"name": token.name, "user": user.get_username(), "scope": permissions, "networks": bound},
        )
    return token, f"slc_{prefix}_{secret}"


def end_access(user: User, now: datetime | None = None) -> int:
    """End all sessions and revoke all tokens of an account; return the number of tokens.

    They stay ended when a closed account is opened again.
    """
    tokens = ApiToken.objects.filter(user=user, revoked_at__isnull=True)
    sessions.end_sessions(user.pk)
    return tokens.update(revoked_at=now or timezone.now())


def revoke_token(actor: Actor, token: ApiToken, now: datetime | None = None) -> None:
    """Make a token invalid immediately."""
    with transaction.atomic():
        token.revoked_at = now or timezone.now()
        token.save(update_fields=["revoked_at"])
        audit.record(actor, "token.revoke", f"token {token.prefix}")


def find_token(text: str, now: datetime | None = None) -> ApiToken | None:
    """Return the valid token with this text, or None. Records its use. Compares in constant time."""
    scheme, _, remainder = text.partition("_")
    prefix, _, secret = remainder.partition("_")
    if scheme != "slc" or not secret:
        return None
    moment = now or timezone.now()
    token = ApiToken.objects.select_related("user").filter(prefix=prefix).first()
    if token is None or not hmac.compare_digest(token.digest, _digest(secret)):
        return None
    if token.revoked_at is not None or token.expires_at <= moment or not token.user.is_active:
        return None
    last_used.record_token_use(token.pk, moment.timestamp())
    return token


def is_address_allowed(token: ApiToken, address: str) -> bool:
    """Whether a token may be used from this IP address."""
    return not token.networks or is_in_networks(address, parse_networks(token.networks))


def store_token_uses() -> int:
    """Move the times of tokens' last use from Redis to the database, and return how many.

    Times that Redis loses before that stay unknown.
    """
    try:
        found = last_used.take_token_uses()
    except redis.RedisError:
        return 0
    for token_id, second in found.items():
        ApiToken.objects.filter(pk=token_id).update(used_at=datetime.fromtimestamp(second, UTC))
    return len(found)


def _digest(secret: str) -> str:
    # The secret has 256 random bits, so a plain hash is as good as a slow one, and each call can afford it.
    return hashlib.sha256(secret.encode()).hexdigest()
