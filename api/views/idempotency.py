"""Idempotency-Key header: a repeated request returns the run that the first one created."""

from __future__ import annotations

from typing import Any

from rest_framework.request import Request

from console.services.runs import IdempotencyKey


def idempotency_key(request: Request, *asked: Any) -> IdempotencyKey | None:
    """Return the request's idempotency key, bound to the arguments of the request; None without the header.

    Raises OperatorError `bad_idempotency_key`.
    """
    return IdempotencyKey.for_request(
        request.headers.get("Idempotency-Key", ""), request.query_params.get("instance", ""), *asked
    )
