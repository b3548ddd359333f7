"""Serializers of accounts and their grants."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from api.serializers.access import OwnPasswordSerializer
from api.serializers.policies import StrictSerializer
from console.choices import Role
from console.models import Grant


class GrantSerializer(serializers.ModelSerializer[Grant]):
    """Role granted to an account, and its scope. A null instance and an empty pattern mean no restriction."""

    # DRF removes declared fields from the class, so the base class's attribute of that name stays.
    instance = serializers.CharField(  # type: ignore[assignment]
        source="instance.name", default=None, allow_null=True
    )

    class Meta:
        model = Grant
        fields = ["id", "role", "instance", "client_pattern", "topic_pattern", "created_at", "created_by"]


class PasswordResetSerializer(OwnPasswordSerializer):
    """Password of the administrator who resets another account's password."""


class NewGrantSerializer(OwnPasswordSerializer):
    """Request to grant a role."""

    role = serializers.ChoiceField(Role.choices)
    instance = serializers.CharField(max_length=64, required=False, default="", allow_blank=True)
    client_pattern = serializers.CharField(
        max_length=64,
        required=False,
        default="",
        allow_blank=True,
        help_text="Pattern such as desk-*; empty means every client.",
    )
    topic_pattern = serializers.CharField(
        max_length=255,
        required=False,
        default="",
        allow_blank=True,
        help_text="Pattern such as flights.>; empty means every topic.",
    )


class PersonSerializer(serializers.Serializer[Any]):
    """Account and its grants."""

    username = serializers.CharField()
    is_active = serializers.BooleanField()
    last_login = serializers.DateTimeField(allow_null=True)
    grants = GrantSerializer(many=True)


class NewPersonSerializer(StrictSerializer):
    """Request to create an account."""

    username = serializers.CharField(max_length=150)


class PersonChangeSerializer(OwnPasswordSerializer):
    """Request to deactivate or reactivate an account. Reactivating requires the caller's own password."""

    is_active = serializers.BooleanField()


class PasswordSerializer(serializers.Serializer[Any]):
    """New password of an account. It is never shown again."""

    username = serializers.CharField()
    password = serializers.CharField()
