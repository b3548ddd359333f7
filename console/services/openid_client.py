"""OpenID Connect through Authlib: redirects to the provider, and checks the signed token of a returning user.

Imported only where a provider is configured (`checks.check_oidc`): requirements-oidc.txt lists its
dependencies.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import requests
from authlib.common.errors import AuthlibBaseError
from authlib.integrations.django_client import OAuth
from django.conf import settings
from joserfc.errors import JoseError

from broker_core.errors import OperatorError

TIMEOUT_S = 10.0
_FAILURES = (AuthlibBaseError, JoseError, requests.RequestException, ValueError, KeyError)


def begin(request: Any, back: str) -> Any:
    """Return the redirect to the provider. The session stores state, nonce and the PKCE verifier.

    `back` is the address to which the provider returns. Raises OperatorError `oidc_failed`.
    """
    try:
        return _provider().authorize_redirect(request, back)
    except _FAILURES as problem:
        raise _provider_error(problem) from problem


def finish(request: Any) -> Mapping[str, Any]:
    """Return the claims of the provider's signed token for a returning user.

    Raises OperatorError `oidc_failed`.
    """
    client = _provider()
    try:
        token = client.authorize_access_token(request)
    except _FAILURES as problem:
        raise _provider_error(problem) from problem
    claims = token.get("userinfo")
    if not claims or not claims.get("sub"):
        raise _provider_error("the provider's answer has no signed token")
    return dict(claims)


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


def _provider_error(problem: Any) -> OperatorError:
    return OperatorError(
        "oidc_failed",
        f"The login at the identity provider failed: {str(problem)[:300]}.",
        "Try again. The audit log has the details.",
    )
