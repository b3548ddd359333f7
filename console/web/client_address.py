"""Who a request comes from, where proxies stand before the console: SLUICE_TRUSTED_PROXIES says which are believed."""

from __future__ import annotations

from collections.abc import Callable

from django.conf import settings
from django.http import HttpRequest, HttpResponse

from console.access.networks import client_address, is_in_networks


class ClientAddressMiddleware:
    """Makes REMOTE_ADDR the client's own. Everything that asks for an address reads that, and nothing reads the header.

    The header stays, because /metrics takes any as a sign of a proxy.
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
    """The client's address, as django-axes asks for it."""
    return str(request.META.get("REMOTE_ADDR") or "")
