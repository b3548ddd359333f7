"""Views of accounts, grants and passwords, for administrators. A token's scope cannot include them."""

from __future__ import annotations

from django.contrib.auth import get_user_model
from drf_spectacular.utils import extend_schema
from rest_framework import status
from rest_framework.request import Request
from rest_framework.response import Response

from api.auth import actor_of
from api.serializers.people import (
    GrantSerializer,
    NewGrantSerializer,
    NewPersonSerializer,
    PasswordResetSerializer,
    PasswordSerializer,
    PersonChangeSerializer,
    PersonSerializer,
)
from api.views.base import PagedView, parse_request
from api.views.view import ApiView
from broker_core.errors import OperatorError
from console.choices import Permission
from console.models import Grant
from console.services import operators, people, proof

MANAGE = Permission.MANAGE_ACCESS


class PeopleView(PagedView):
    """Accounts of the installation."""

    needs = {"GET": MANAGE, "POST": MANAGE}
    whole_installation = True

    @extend_schema(responses=PersonSerializer(many=True))
    def get(self, request: Request) -> Response:
        """List accounts by name, with their grants."""
        everyone = get_user_model().objects.order_by("username").prefetch_related("grants__instance")
        return self.page(everyone, PersonSerializer)

    @extend_schema(request=NewPersonSerializer, responses={201: PasswordSerializer})
    def post(self, request: Request) -> Response:
        """Create an account without any role.

        The response contains its password, which is never shown again.
        """
        user, password = people.create(
            actor_of(request), parse_request(NewPersonSerializer, request.data)["username"]
        )
        return _password(user.get_username(), password, status.HTTP_201_CREATED)


class PersonView(ApiView):
    """Account of the installation."""

    needs = {"GET": MANAGE, "PATCH": MANAGE}
    whole_installation = True

    @extend_schema(responses=PersonSerializer)
    def get(self, request: Request, name: str) -> Response:
        """Return an account with its grants."""
        return Response(PersonSerializer(people.get_person(name)).data)

    @extend_schema(request=PersonChangeSerializer, responses=PersonSerializer)
    def patch(self, request: Request, name: str) -> Response:
        """Deactivate an account, which ends its sessions and tokens, or reactivate it.

        Reactivating requires the caller's own password.
        """
        body, user = parse_request(PersonChangeSerializer, request.data), people.get_person(name)
        if body["is_active"]:
            proof.prove_person(request._request, body["own_password"])
        people.set_active(actor_of(request), user, body["is_active"])
        return Response(PersonSerializer(user).data)


class PersonPasswordView(ApiView):
    """Password of an account."""

    needs = {"POST": MANAGE}
    whole_installation = True

    @extend_schema(request=PasswordResetSerializer, responses=PasswordSerializer)
    def post(self, request: Request, name: str) -> Response:
        """Reset an account's password, and end its sessions and tokens.

        The response contains the new password, which is never shown again. Requires the caller's own
        password.
        """
        proof.prove_person(
            request._request, parse_request(PasswordResetSerializer, request.data)["own_password"]
        )
        user = people.get_person(name)
        password = operators.reset_password(user.get_username(), actor_of(request))
        return _password(user.get_username(), password, status.HTTP_200_OK)


class PersonGrantsView(ApiView):
    """Grants of an account."""

    needs = {"POST": MANAGE}
    whole_installation = True

    @extend_schema(request=NewGrantSerializer, responses={201: GrantSerializer})
    def post(self, request: Request, name: str) -> Response:
        """Grant an account a role, everywhere or within a scope.

        Requires the caller's own password.
        """
        body = parse_request(NewGrantSerializer, request.data)
        proof.prove_person(request._request, body.pop("own_password"))
        made = people.grant(actor_of(request), people.get_person(name), **body)
        return Response(GrantSerializer(made).data, status=status.HTTP_201_CREATED)


class GrantView(ApiView):
    """Grant of an account."""

    needs = {"DELETE": MANAGE}
    whole_installation = True

    @extend_schema(responses={204: None})
    def delete(self, request: Request, grant_id: int) -> Response:
        """Revoke a grant. The last administrator's grant cannot be revoked."""
        found = Grant.objects.select_related("user", "instance").filter(pk=grant_id).first()
        if found is None:
            raise OperatorError(
                "unknown_grant", f"The grant {grant_id} doesn't exist.", "See /api/v1/people."
            )
        people.revoke(actor_of(request), found)
        return Response(status=status.HTTP_204_NO_CONTENT)


def _password(name: str, password: str, code: int) -> Response:
    """Return a response with a new password, which must not be cached."""
    answer = Response({"username": name, "password": password}, status=code)
    answer["Cache-Control"] = "no-store"
    return answer
