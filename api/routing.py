"""WebSocket addresses of the web process: the live feed."""

from __future__ import annotations

from django.urls import path

from api.live_feed import LiveFeed

websocket_urlpatterns = [path("live/", LiveFeed.as_asgi())]
