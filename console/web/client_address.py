"""Client addresses behind the proxies in SLUICE_TRUSTED_PROXIES."""

from __future__ import annotations

from collections.abc import Callable

from django.conf import settings
from django.http import HttpRequest, HttpResponse

from console.access.networks import client_address, is_in_networks


class ClientAddressMiddleware:
    """Middleware that sets REMOTE_ADDR to the client's address.

    Other code reads only REMOTE_ADDR, never the header. The header stays in the request, because /metrics
    treats its presence as a sign of a proxy.
    """

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        peer, proxies = str(request.META.get("REMOTE_ADDR") or ""), settings.SLUICE_TRUSTED_PROXIES
        if proxies and not is_in_networks(peer, proxies):
            request.META.pop("HTTP_X_FORWARDED_PROTO", None)
        request.META["REMOTE_ADDR"] = client_address(
            peer, str(request.META.get("HTTP_X_FORWARDED_FOR") or ""), proxies
        )
        return self.get_response(request)


def address_of(request: HttpRequest) -> str:
    """Return the client's address, as django-axes requires it."""
    return str(request.META.get("REMOTE_ADDR") or "")
