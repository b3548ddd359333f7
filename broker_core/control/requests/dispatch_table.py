"""The table of requests: which method answers which, as their signatures say."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any, get_type_hints

from broker_core.documents.requests import Request, answer_type

Handler = Callable[[Any], Awaitable[object]]
"""Takes one kind of request, and returns what it is answered."""


def build_request_table(*subjects: object) -> dict[type[Request[Any]], Handler]:
    """Every public method of the subjects answers the request it takes. TypeError for one that promises another answer than
    its request's, and for two that answer the same."""
    made: dict[type[Request[Any]], Handler] = {}
    for subject in subjects:
        for name, method in inspect.getmembers(subject, inspect.iscoroutinefunction):
            if not name.startswith("_"):
                request = _request_of(method)
                if request in made:
                    raise TypeError(f"{request.__name__} is answered twice")
                made[request] = method
    return made


def _request_of(method: Handler) -> type[Request[Any]]:
    hints = get_type_hints(method)
    returned = hints.pop("return", None)
    request: type[Request[Any]]
    (request,) = hints.values()
    if not issubclass(request, Request) or returned != answer_type(request):
        raise TypeError(f"{method.__qualname__} must answer {request.__name__} with {answer_type(request)}")
    return request
