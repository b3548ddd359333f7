"""Table of request handlers, built from the signatures of methods."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any, get_type_hints

from broker_core.documents.requests import Request, answer_type

Handler = Callable[[Any], Awaitable[object]]
"""Coroutine function that takes one type of request and returns its reply."""


def build_request_table(*subjects: object) -> dict[type[Request[Any]], Handler]:
    """Return the handlers of all public coroutine methods of the subjects, by request type.

    Raises:
        TypeError: A method's return type is not its request's reply type, or two methods handle one request
            type.
    """
    handlers: dict[type[Request[Any]], Handler] = {}
    for subject in subjects:
        for name, method in inspect.getmembers(subject, inspect.iscoroutinefunction):
            if not name.startswith("_"):
                request = _find_request_type(method)
                if request in handlers:
                    raise TypeError(f"{request.__name__} is answered twice")
                handlers[request] = method
    return handlers


def _find_request_type(method: Handler) -> type[Request[Any]]:
    """Return the request type that a method handles. Raises TypeError for a wrong return type."""
    hints = get_type_hints(method)
    returned = hints.pop("return", None)
    request: type[Request[Any]]
    (request,) = hints.values()
    if not issubclass(request, Request) or returned != answer_type(request):
        raise TypeError(f"{method.__qualname__} must answer {request.__name__} with {answer_type(request)}")
    return request
