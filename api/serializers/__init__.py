"""The shapes of requests and answers; drf-spectacular makes the OpenAPI document of them."""
