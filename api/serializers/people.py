"""People and what was granted to them."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from api.serializers.access import OwnPasswordSerializer
from api.serializers.policies import StrictSerializer
from console.choices import Role
from console.models import Grant


class GrantSerializer(serializers.ModelSerializer[Grant]):
    """A role and where it holds; null and empty mean everywhere."""

    # DRF takes declared fields out of the class: the attribute of its base stays.
    instance = serializers.CharField(  # type: ignore[assignment]
        source="instance.name", default=None, allow_null=True
    )

    class Meta:
        model = Grant
        fields = ["id", "role", "instance", "client_pattern", "topic_pattern", "created_at", "created_by"]


class PasswordResetSerializer(OwnPasswordSerializer):
    """The password of the administrator who asks for somebody's reset."""


class NewGrantSerializer(OwnPasswordSerializer):
    """A role to give."""

    role = serializers.ChoiceField(Role.choices)
    instance = serializers.CharField(max_length=64, required=False, default="", allow_blank=True)
    client_pattern = serializers.CharField(
        max_length=64,
        required=False,
        default="",
        allow_blank=True,
        help_text="Like desk-*; empty is every client.",
    )
    topic_pattern = serializers.CharField(
        max_length=255,
        required=False,
        default="",
        allow_blank=True,
        help_text="Like flights.>; empty is every topic.",
    )


class PersonSerializer(serializers.Serializer[Any]):
    """An account."""

    username = serializers.CharField()
    is_active = serializers.BooleanField()
    last_login = serializers.DateTimeField(allow_null=True)
    grants = GrantSerializer(many=True)


class NewPersonSerializer(StrictSerializer):
    """An account to make."""

    username = serializers.CharField(max_length=150)


class PersonChangeSerializer(OwnPasswordSerializer):
    """Close an account, or open it again, which takes one's own password."""

    is_active = serializers.BooleanField()


class PasswordSerializer(serializers.Serializer[Any]):
    """A new password, which is shown this once."""

    username = serializers.CharField()
    password = serializers.CharField()
