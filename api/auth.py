"""Authentication of API requests by an API token.

Requests with the console's session use DRF's `SessionAuthentication`.
"""

from __future__ import annotations

from django.contrib.auth.models import AbstractBaseUser
from rest_framework.authentication import BaseAuthentication, get_authorization_header
from rest_framework.exceptions import AuthenticationFailed
from rest_framework.request import Request

from console.models import ApiToken
from console.services import operators
from console.services.actors import actor_of

__all__ = ["TokenAuthentication", "actor_of"]


class TokenAuthentication(BaseAuthentication):
    """API token in the Authorization header: `Bearer slc_<prefix>_<secret>`, or `Token …` as DRF's clients
    send it.
    """

    def authenticate(self, request: Request) -> tuple[AbstractBaseUser, ApiToken] | None:
        """Return the token's account and the token, or None when the header has no API token.

        Raises:
            AuthenticationFailed: The header is malformed, the token is unknown, expired or revoked, or its
                address range excludes the caller.
        """
        words = get_authorization_header(request).split()
        if not words or words[0].lower() not in (b"bearer", b"token"):
            return None
        if len(words) != 2:
            raise AuthenticationFailed("The Authorization header must be `Bearer TOKEN`.")
        found = operators.find_token(words[1].decode("ascii", "replace"))
        if found is None:
            raise AuthenticationFailed("The token is unknown, expired or revoked.")
        if not operators.is_address_allowed(found, str(request.META.get("REMOTE_ADDR") or "")):
            raise AuthenticationFailed("The token isn't valid from this address.")
        return found.user, found

    def authenticate_header(self, request: Request) -> str:
        """Return the scheme that a 401 response names in `WWW-Authenticate`."""
        return "Bearer"
