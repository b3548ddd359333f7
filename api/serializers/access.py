"""Serializers of logins, accounts and API tokens."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from api.serializers.policies import StrictSerializer
from console.choices import TOKEN_PERMISSIONS, Permission, Role
from console.models import ApiToken
from console.models.access import MAX_NETWORKS


class LoginSerializer(serializers.Serializer[Any]):
    """User name, password and, where required, the code of an authenticator app."""

    username = serializers.CharField(max_length=150)
    password = serializers.CharField(max_length=1024, trim_whitespace=False, write_only=True)
    code = serializers.CharField(
        max_length=12,
        required=False,
        default="",
        allow_blank=True,
        write_only=True,
        help_text="Code of the authenticator app, for accounts with a second factor.",
    )


class GrantScopeSerializer(serializers.Serializer[Any]):
    """Role and its scope. A null instance and an empty pattern mean no restriction."""

    role = serializers.ChoiceField(Role.choices)
    instance = serializers.CharField(allow_null=True)
    client_pattern = serializers.CharField(allow_blank=True)
    topic_pattern = serializers.CharField(allow_blank=True)


class AccountSerializer(serializers.Serializer[Any]):
    """Account of the caller, its grants and permissions.

    `permissions` are those that it has on at least one instance, client or topic.
    """

    username = serializers.CharField()
    permissions = serializers.ListField(child=serializers.ChoiceField(Permission.choices))
    grants = GrantScopeSerializer(many=True)
    token = serializers.CharField(allow_null=True)


class TokenSerializer(serializers.ModelSerializer[ApiToken]):
    """API token without its secret."""

    user = serializers.CharField(source="user.username")
    networks = serializers.ListField(child=serializers.CharField())

    class Meta:
        model = ApiToken
        fields = [
            "id",
            "name",
            "user",
            "prefix",
            "scope",
            "networks",
            "created_at",
            "expires_at",
            "revoked_at",
            "used_at",
        ]


class OwnPasswordSerializer(StrictSerializer):
    """Password of the caller, required for changes that a stolen session must not be able to make."""

    own_password = serializers.CharField(
        max_length=1024,
        required=False,
        default="",
        allow_blank=True,
        trim_whitespace=False,
        help_text="The caller's own password. An account without one needs a login of the last 15 minutes.",
    )


class NewTokenSerializer(OwnPasswordSerializer):
    """Request to create an API token."""

    name = serializers.CharField(max_length=100)
    lifetime = serializers.CharField(
        max_length=40, default="90d", help_text="Lifetime such as 90d; at most 366d."
    )
    scope = serializers.ListField(
        child=serializers.ChoiceField([(str(one), one.label) for one in TOKEN_PERMISSIONS]),
        default=lambda: [str(Permission.VIEW)],
        help_text="Maximum permissions of the token. Default: only view.",
    )
    networks = serializers.ListField(
        child=serializers.CharField(max_length=50),
        default=list,
        max_length=MAX_NETWORKS,
        help_text="Addresses and networks from which the token is valid, such as 10.1.0.0/16. Empty: any "
        "address.",
    )


class CreatedTokenSerializer(TokenSerializer):
    """New API token with its secret in `token`. The secret is never shown again."""

    token = serializers.CharField()

    class Meta(TokenSerializer.Meta):
        fields = [*TokenSerializer.Meta.fields, "token"]
