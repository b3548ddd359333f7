"""Idempotency-Key header: a repeated request returns the run that the first one created."""

from __future__ import annotations

from typing import Any

from rest_framework.request import Request

from console import current_instance
from console.services.runs import IdempotencyKey


def idempotency_key(request: Request, *asked: Any) -> IdempotencyKey | None:
    """Return the request's idempotency key; None without the header.

    The key is bound to the instance, the member and the arguments of the request. Raises OperatorError
    `bad_idempotency_key`.
    """
    return IdempotencyKey.for_request(
        request.headers.get("Idempotency-Key", ""),
        current_instance.instance_name(),
        request.query_params.get("member", ""),
        *asked,
    )
