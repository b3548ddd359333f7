"""OpenID Connect through Authlib: redirects to the provider, and checks the signed token of a returning user.

Imported only where a provider is configured (`checks.check_oidc`): requirements-oidc.txt lists its
dependencies.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from functools import cache
from typing import Any, Final

import requests
from authlib.common.errors import AuthlibBaseError
from authlib.integrations.django_client import DjangoOAuth2App, OAuth
from authlib.integrations.requests_client import OAuth2Session
from django.conf import settings
from joserfc.errors import JoseError
from requests.adapters import HTTPAdapter
from urllib3.exceptions import HTTPError

from broker_core.errors import OperatorError
from console.services.bounded_call import CallSockets, call_within

TIMEOUT_S: Final = 10.0
"""Deadline for one whole call of the provider, in seconds."""
MAX_ANSWER: Final = 1024 * 1024
"""Maximum bytes of an answer of the provider."""
_FAILURES = (AuthlibBaseError, JoseError, requests.RequestException, ValueError, KeyError)


class _BoundedAdapter(HTTPAdapter):
    """HTTP adapter with one deadline for the whole call, and a limit on the answer's size.

    A provider that sends a byte now and then would otherwise hold a thread of the web process.
    """

    def send(self, request: Any, *args: Any, **options: Any) -> Any:
        """Send a request, and return the answer with its content."""

        def call(sockets: CallSockets) -> Any:
            answer = HTTPAdapter.send(self, request, *args, **{**options, "stream": True})
            answer._content, answer._content_consumed = _read_content(answer, sockets), True
            return answer

        try:
            return call_within(TIMEOUT_S, call)
        except TimeoutError as problem:
            raise requests.Timeout(str(problem), request=request) from problem
        except HTTPError as problem:
            raise requests.ConnectionError(problem, request=request) from problem


class _BoundedSession(OAuth2Session):  # type: ignore[misc]  # Authlib has no types
    """Session whose calls have a deadline."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        for scheme in ("https://", "http://"):
            self.mount(scheme, _BoundedAdapter())


class _BoundedApp(DjangoOAuth2App):  # type: ignore[misc]  # Authlib has no types
    """Authlib's client of a provider, with a deadline for each call."""

    client_cls = _BoundedSession


def _read_content(answer: Any, sockets: CallSockets) -> bytes:
    """Read an answer until its end. The call's deadline ends this thread too."""
    content = b""
    with closing(answer):
        while part := answer.raw.read1(65_536, decode_content=True):
            content += part
            sockets.remaining_s()
            if len(content) > MAX_ANSWER:
                raise requests.RequestException(f"the answer has over {MAX_ANSWER} bytes")
    return content


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
        client_cls=_BoundedApp,
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
