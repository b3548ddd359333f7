from __future__ import annotations

from drf_spectacular.generators import SchemaGenerator
from drf_spectacular.validation import validate_schema
from rest_framework.test import APIClient

from api.urls import urlpatterns


def test_schema_is_valid_openapi_and_covers_every_address() -> None:
    schema = SchemaGenerator(api_version="v1").get_schema(request=None, public=True)
    validate_schema(schema)
    described = len(schema["paths"])
    assert described == len(urlpatterns) - 1  # the schema doesn't describe itself


def test_schema_is_served(api: APIClient) -> None:
    answer = api.get("/api/v1/schema")
    assert answer.status_code == 200
    assert b"openapi: 3" in answer.content
