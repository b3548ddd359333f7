"""Login at an OpenID provider (SLUICE_OIDC_ISSUER).

`openid_client` speaks the protocol; this module finds the account.

The provider identifies a person and grants nothing: a new account has no role until an administrator
assigns one.
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
    """Whether an OpenID provider is configured."""
    return bool(settings.SLUICE_OIDC_ISSUER)


def begin(request: Any, back: str) -> Any:
    """Return the redirect to the provider.

    `back` is the address to which the provider returns. Raises `oidc_failed`.
    """
    # Imported late: its dependencies are only installed where a provider is configured.
    from console.services import openid_client

    return openid_client.begin(request, back)


def finish(request: Any) -> Mapping[str, Any]:
    """Return the claims of the provider's signed token for a returning user. Raises `oidc_failed`."""
    from console.services import openid_client

    return openid_client.finish(request)


def account_of(claims: Mapping[str, Any]) -> Any:
    """Return the account of the token's subject; create it at the first login.

    Raises:
        OperatorError: `name_taken`, `bad_name` or `account_closed`.
    """
    issuer, subject = str(claims.get("iss") or settings.SLUICE_OIDC_ISSUER), str(claims["sub"])
    known = ExternalIdentity.objects.select_related("user").filter(issuer=issuer, subject=subject).first()
    user = known.user if known is not None else _new_account(issuer, subject, claims)
    if not user.is_active:
        raise OperatorError(
            "account_closed", "The account is closed.", "Ask an administrator to reopen the account."
        )
    return user


def _new_account(issuer: str, subject: str, claims: Mapping[str, Any]) -> Any:
    """Create an account without a role for a subject of the provider, and record it in the audit.

    Raises:
        OperatorError: `name_taken` or `bad_name`.
    """
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
            # Users may choose their name at the provider: it must never give access to an existing account.
            raise OperatorError(
                "name_taken",
                f"An account {name!r} exists already and doesn't belong to the provider.",
                "Ask an administrator.",
            )
        user = users.objects.create_user(username=name, password=None)
        ExternalIdentity.objects.create(issuer=issuer, subject=subject, user=user)
        audit.record(
            SYSTEM, "operator.create", f"operator {name}", after={"issuer": issuer, "subject": subject}
        )
    return user
