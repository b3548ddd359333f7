"""The Idempotency-Key header: the same request sent again gives the run that the first one made."""

from __future__ import annotations

from typing import Any

from rest_framework.request import Request

from console.services.runs import IdempotencyKey


def idempotency_key(request: Request, *asked: Any) -> IdempotencyKey | None:
    """The request's key, with what is asked; None without one. Raises OperatorError bad_idempotency_key."""
    return IdempotencyKey.for_request(
        request.headers.get("Idempotency-Key", ""), request.query_params.get("instance", ""), *asked
    )
