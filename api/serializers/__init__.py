"""Serializers of API requests and responses, from which drf-spectacular generates the OpenAPI document."""
