"""People: their accounts and roles. Used by administrators."""

from __future__ import annotations

from typing import Any

from django.contrib.auth import get_user_model
from django.contrib.auth.models import User
from django.core.exceptions import ValidationError
from django.db import IntegrityError, transaction

from broker_core.errors import OperatorError
from console.choices import Role
from console.models import Grant
from console.queries.policies import instance_named
from console.services import audit, operators
from console.services.actors import Actor


def get_person(name: str) -> User:
    """Return the account of this name. Raises OperatorError `unknown_person`."""
    found = get_user_model().objects.filter(username=name).first()
    if found is None:
        raise OperatorError(
            "unknown_person", f"The account {name[:150]!r} doesn't exist.", "See /api/v1/people."
        )
    return found


def create(actor: Actor, name: str) -> tuple[User, str]:
    """Create an account without a role, and return it with its random first password.

    The password is stored only as a hash. Raises OperatorError `bad_name` or `name_taken`.
    """
    try:
        get_user_model().username_validator(name)
    except ValidationError as problem:
        raise OperatorError("bad_name", " ".join(problem.messages), "Choose another name.") from problem
    return operators.create_account(actor, name[:150])


def grant(
    actor: Actor,
    user: User,
    role: str,
    *,
    instance: str = "",
    client_pattern: str = "",
    topic_pattern: str = "",
) -> Grant:
    """Give an account a role, limited to an instance, a client pattern or a topic pattern if given.

    Raises:
        OperatorError: `bad_grant`, `unknown_instance`, or `name_taken` when the account has that role
            already.
    """
    made = Grant(
        user=user,
        role=role,
        instance=instance_named(instance) if instance else None,
        client_pattern=client_pattern,
        topic_pattern=topic_pattern,
        created_by=actor.name[:200],
    )
    try:
        made.full_clean(validate_constraints=False)
        with transaction.atomic():
            made.save()
            audit.record(actor, "grant.create", _target(user), after=_facts(made))
    except ValidationError as problem:
        sentence = "; ".join(f"{key}: {' '.join(texts)}" for key, texts in problem.message_dict.items())
        raise OperatorError("bad_grant", sentence, f"Roles are {', '.join(Role)}.") from problem
    except IntegrityError as twice:
        raise OperatorError(
            "name_taken", f"{user.get_username()} already has that role in this scope.", "Check the list."
        ) from twice
    return made


def revoke(actor: Actor, found: Grant) -> None:
    """Remove a role from an account. Raises OperatorError `last_administrator`."""
    with transaction.atomic():
        user, facts = found.user, _facts(found)
        found.delete()
        audit.record(actor, "grant.revoke", _target(user), before=facts)
        _require_remaining_administrator()


def set_active(actor: Actor, user: User, active: bool) -> None:
    """Close an account, which ends its sessions and tokens for good, or open it again.

    Raises:
        OperatorError: `last_administrator`.
    """
    with transaction.atomic():
        before, user.is_active = user.is_active, active
        user.save(update_fields=["is_active"])
        if not active:
            operators.end_access(user)
        audit.record(
            actor, "person.open" if active else "person.close", _target(user), before=before, after=active
        )
        _require_remaining_administrator()


def _require_remaining_administrator() -> None:
    """Raise OperatorError `last_administrator` unless one is left.

    The error rolls the caller's transaction back.
    """
    if not operators.has_operator():
        raise OperatorError(
            "last_administrator",
            "No account would be left that can grant access.",
            "Make another account an administrator first.",
        )


def _target(user: Any) -> str:
    return f"operator {user.get_username()}"


def _facts(one: Grant) -> dict[str, str]:
    return {
        "role": one.role,
        "instance": one.instance.name if one.instance else "",
        "client_pattern": one.client_pattern,
        "topic_pattern": one.topic_pattern,
    }
