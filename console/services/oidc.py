"""Logging in at an OpenID provider (SLUICE_OIDC_ISSUER): the protocol is Authlib's (`openid_client`), the account is ours.

The provider says who somebody is, never what they may do: an account that it brings has no role until an administrator gives it one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.conf import settings
from django.contrib.auth import get_user_model
from django.core.exceptions import ValidationError
from django.db import transaction

from broker_core.errors import OperatorError
from console.models import ExternalIdentity
from console.services import audit
from console.services.actors import SYSTEM


def is_configured() -> bool:
    """Whether there is a provider."""
    return bool(settings.SLUICE_OIDC_ISSUER)


def begin(request: Any, back: str) -> Any:
    """The redirect to the provider. Raises oidc_failed."""
    from console.services import openid_client  # what it needs is installed where a provider is configured

    return openid_client.begin(request, back)


def finish(request: Any) -> Mapping[str, Any]:
    """What the provider's signed token says of who came back. Raises oidc_failed."""
    from console.services import openid_client

    return openid_client.finish(request)


def account_of(claims: Mapping[str, Any]) -> Any:
    """The account of a subject; made when it comes for the first time. Raises name_taken, bad_name, account_closed."""
    issuer, subject = str(claims.get("iss") or settings.SLUICE_OIDC_ISSUER), str(claims["sub"])
    known = ExternalIdentity.objects.select_related("user").filter(issuer=issuer, subject=subject).first()
    user = known.user if known is not None else _new_account(issuer, subject, claims)
    if not user.is_active:
        raise OperatorError("account_closed", "The account is closed.", "Ask an administrator to open it.")
    return user


def _new_account(issuer: str, subject: str, claims: Mapping[str, Any]) -> Any:
    users = get_user_model()
    name = str(claims.get(settings.SLUICE_OIDC_NAME_CLAIM) or subject)
    try:
        users.username_validator(name)
    except ValidationError as problem:
        raise OperatorError(
            "bad_name", " ".join(problem.messages), "See SLUICE_OIDC_NAME_CLAIM."
        ) from problem
    if len(name) > 150 or len(issuer) > 255 or len(subject) > 255:
        raise OperatorError(
            "bad_name", "The provider's name for you is too long.", "See SLUICE_OIDC_NAME_CLAIM."
        )
    with transaction.atomic():
        if users.objects.filter(username__iexact=name).exists():
            # Somebody at the provider may choose a name; an account that is there is never theirs for that.
            raise OperatorError(
                "name_taken",
                f"There is an account {name!r} here that isn't the provider's.",
                "Ask an administrator.",
            )
        user = users.objects.create_user(username=name, password=None)
        ExternalIdentity.objects.create(issuer=issuer, subject=subject, user=user)
        audit.record(
            SYSTEM, "operator.create", f"operator {name}", after={"issuer": issuer, "subject": subject}
        )
    return user
