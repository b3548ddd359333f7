"""Views for password logins (sessions), API tokens (programs) and the caller's account."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.contrib.auth import authenticate, login, logout
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import status
from rest_framework.exceptions import AuthenticationFailed
from rest_framework.request import Request
from rest_framework.response import Response

from api.auth import actor_of
from api.serializers.access import (
    AccountSerializer,
    CreatedTokenSerializer,
    LoginSerializer,
    NewTokenSerializer,
    TokenSerializer,
)
from api.views.base import PagedView, parse_request
from api.views.view import ApiView
from broker_core.errors import OperatorError
from console.access.rights import PublicAccess
from console.choices import Permission
from console.models import ApiToken
from console.services import operators, proof, second_factor
from console.services.access import is_allowed, require_permission
from console.services.actors import access_of, require_user
from console.units.ages import parse_age


class LoginView(ApiView):
    """Login with a password. Accepts only JSON, because a form on another site cannot send JSON."""

    needs = {"POST": PublicAccess.EVERYONE}
    authentication_classes: list[Any] = []
    throttle_classes: list[Any] = []  # console/web/login_gate.py limits login requests before this view

    def get_authenticate_header(self, request: Request) -> str:
        """Return a challenge, so that a wrong password is answered with 401. Without it DRF answers 403."""
        return "Bearer"

    @extend_schema(request=LoginSerializer, responses=AccountSerializer)
    def post(self, request: Request) -> Response:
        """Log in and start a session.

        Too many wrong passwords lock the user name at the caller's address for 15 minutes.
        """
        body = parse_request(LoginSerializer, request.data)
        django_request = request._request
        user = authenticate(django_request, username=body["username"], password=body["password"])
        if user is None:
            raise AuthenticationFailed("The name or the password is wrong.")
        _second_factor(django_request, user, body["code"])
        login(django_request, user)
        return Response(account_document(user, None))


def _second_factor(request: Any, user: Any, code: str) -> None:
    """Check the code of an account that needs a second factor.

    Raises OperatorError `second_factor_missing`, `second_factor_needed`, or that of a wrong code.
    """
    if not second_factor.is_required(user):
        return
    if not second_factor.is_enabled(user):
        raise OperatorError(
            "second_factor_missing",
            "A second factor is required here.",
            "Log in at the console, which shows the key.",
        )
    if not code:
        raise OperatorError(
            "second_factor_needed", "This account uses a second factor.", "Send its `code` as well."
        )
    with proof.counted_guess(request, user.get_username()):
        second_factor.check(user, code)


class LogoutView(ApiView):
    """End of a session."""

    needs = {"POST": PublicAccess.OWN_ACCOUNT}

    @extend_schema(request=None, responses={204: None})
    def post(self, request: Request) -> Response:
        """End the session."""
        logout(request._request)
        return Response(status=status.HTTP_204_NO_CONTENT)


class AccountView(ApiView):
    """Account of the caller."""

    needs = {"GET": PublicAccess.OWN_ACCOUNT}

    @extend_schema(responses=AccountSerializer)
    def get(self, request: Request) -> Response:
        """Return the caller's account, its grants and permissions."""
        return Response(account_document(request.user, request.auth))


class TokensView(PagedView):
    """API tokens of the caller, or of all accounts."""

    needs = {"GET": PublicAccess.OWN_ACCOUNT, "POST": PublicAccess.OWN_ACCOUNT}

    @extend_schema(
        parameters=[
            OpenApiParameter(
                "everyone", enum=["yes"], description="Tokens of all accounts, for administrators."
            )
        ],
        responses=TokenSerializer(many=True),
    )
    def get(self, request: Request) -> Response:
        """List API tokens without their secrets.

        The list has the caller's tokens. With `everyone=yes` it has all tokens, for administrators.
        """
        found = ApiToken.objects.select_related("user")
        if request.query_params.get("everyone") == "yes":
            require_permission(actor_of(request), Permission.MANAGE_ACCESS)
        else:
            found = found.filter(user=require_user(request))
        return self.page(found, TokenSerializer)

    @extend_schema(request=NewTokenSerializer, responses={201: CreatedTokenSerializer})
    def post(self, request: Request) -> Response:
        """Create an API token.

        The response contains the secret, which is never shown again. Requires the caller's own password. A
        request with an API token cannot create tokens.
        """
        if isinstance(request.auth, ApiToken):
            raise OperatorError("not_allowed", "A token can't create tokens.", "Log in with your password.")
        body = parse_request(NewTokenSerializer, request.data)
        proof.prove_person(request._request, body["own_password"])
        token, text = operators.create_token(
            actor_of(request),
            require_user(request),
            body["name"],
            lifetime=timedelta(seconds=parse_age(body["lifetime"])),
            scope=body["scope"],
            networks=body["networks"],
        )
        return Response({**TokenSerializer(token).data, "token": text}, status=status.HTTP_201_CREATED)


class TokenView(ApiView):
    """API token of an account."""

    needs = {"DELETE": PublicAccess.OWN_ACCOUNT}

    @extend_schema(responses={204: None})
    def delete(self, request: Request, token_id: int) -> Response:
        """Revoke an API token.

        Accounts may revoke their own tokens, administrators all tokens. A request with an API token may
        only revoke that token.
        """
        found = ApiToken.objects.filter(pk=token_id, revoked_at__isnull=True).first()
        is_owner = found is not None and found.user_id == request.user.pk
        theirs = found if is_owner or is_allowed(actor_of(request), Permission.MANAGE_ACCESS) else None
        if theirs is None or (isinstance(request.auth, ApiToken) and request.auth.pk != theirs.pk):
            raise OperatorError(
                "unknown_token", f"You have no valid token {token_id}.", "See /api/v1/tokens."
            )
        operators.revoke_token(actor_of(request), theirs)
        return Response(status=status.HTTP_204_NO_CONTENT)


def account_document(user: Any, token: Any) -> dict[str, Any]:
    """Return an account as the API's JSON: its permissions and grants.

    With `token` the permissions are limited to the token's scope.
    """
    access = access_of(user, token)
    return {
        "username": user.get_username(),
        "permissions": [str(one) for one in Permission if one in access.permissions],
        "grants": [
            {
                "role": grant.role,
                "instance": grant.instance.name if grant.instance else None,
                "client_pattern": grant.client_pattern,
                "topic_pattern": grant.topic_pattern,
            }
            for grant in user.grants.select_related("instance")
        ],
        "token": token.name if isinstance(token, ApiToken) else None,
    }
