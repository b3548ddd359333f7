"""Logging in at an OpenID provider (SLUICE_OIDC_ISSUER): the protocol is Authlib's, the account is ours.

The provider says who somebody is, never what they may do: an account that it brings has no role until an administrator gives it one.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import requests
from authlib.common.errors import AuthlibBaseError
from authlib.integrations.django_client import OAuth
from django.conf import settings
from django.contrib.auth import get_user_model
from django.core.exceptions import ValidationError
from django.db import transaction
from joserfc.errors import JoseError

from broker_core.errors import OperatorError
from console.models import Identity
from console.services import audit
from console.services.actors import SYSTEM

TIMEOUT_S = 10.0
FAILURES = (AuthlibBaseError, JoseError, requests.RequestException, ValueError, KeyError)


def is_configured() -> bool:
    """Whether there is a provider."""
    return bool(settings.SLUICE_OIDC_ISSUER)


def begin(request: Any, back: str) -> Any:
    """The redirect to the provider: with state, nonce and PKCE, which the session keeps. Raises oidc_failed."""
    try:
        return _provider().authorize_redirect(request, back)
    except FAILURES as problem:
        raise _failed(problem) from problem


def finish(request: Any) -> Mapping[str, Any]:
    """What the provider's signed token says of who came back. Raises oidc_failed."""
    client = _provider()
    try:
        token = client.authorize_access_token(request)
    except FAILURES as problem:
        raise _failed(problem) from problem
    claims = token.get("userinfo")
    if not claims or not claims.get("sub"):
        raise _failed("the provider's answer has no signed token")
    return dict(claims)


def account_of(claims: Mapping[str, Any]) -> Any:
    """The account of a subject; made when it comes for the first time. Raises name_taken, bad_name, account_closed."""
    issuer, subject = str(claims.get("iss") or settings.SLUICE_OIDC_ISSUER), str(claims["sub"])
    known = Identity.objects.select_related("user").filter(issuer=issuer, subject=subject).first()
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
        Identity.objects.create(issuer=issuer, subject=subject, user=user)
        audit.record(
            SYSTEM, "operator.create", f"operator {name}", after={"issuer": issuer, "subject": subject}
        )
    return user


def _provider() -> Any:
    return _client(
        settings.SLUICE_OIDC_ISSUER, settings.SLUICE_OIDC_CLIENT_ID, settings.SLUICE_OIDC_CLIENT_SECRET
    )


@cache
def _client(issuer: str, client_id: str, client_secret: str) -> Any:
    oauth = OAuth()
    return oauth.register(
        "provider",
        client_id=client_id,
        client_secret=client_secret,
        server_metadata_url=f"{issuer.rstrip('/')}/.well-known/openid-configuration",
        client_kwargs={
            "scope": "openid profile email",
            "code_challenge_method": "S256",
            "default_timeout": TIMEOUT_S,
        },
    )


def _failed(problem: Any) -> OperatorError:
    return OperatorError(
        "oidc_failed",
        f"The login at the identity provider failed: {str(problem)[:300]}.",
        "Try again; the audit has it too.",
    )
