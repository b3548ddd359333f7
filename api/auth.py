"""Who is calling: an API token in the Authorization header, or the console's session (DRF's own class)."""

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
    """`Authorization: Bearer slc_<prefix>_<secret>`; also `Token …`, as DRF's own clients send it."""

    def authenticate(self, request: Request) -> tuple[AbstractBaseUser, ApiToken] | None:
        """The token's account, or None when there is no such header."""
        words = get_authorization_header(request).split()
        if not words or words[0].lower() not in (b"bearer", b"token"):
            return None
        if len(words) != 2:
            raise AuthenticationFailed("The Authorization header must be `Bearer TOKEN`.")
        found = operators.find_token(words[1].decode("ascii", "replace"))
        if found is None:
            raise AuthenticationFailed("The token is unknown, expired or revoked.")
        if not operators.is_address_allowed(found, str(request.META.get("REMOTE_ADDR") or "")):
            raise AuthenticationFailed("The token may not be used from this address.")
        return found.user, found

    def authenticate_header(self, request: Request) -> str:
        """What a 401 asks for."""
        return "Bearer"
