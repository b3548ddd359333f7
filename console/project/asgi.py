"""The web process: pages and REST over HTTP, the live feed over WebSocket. Served by daphne."""

from __future__ import annotations

import gc
import os

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "console.project.settings")

from django.core.asgi import get_asgi_application

http = get_asgi_application()  # loads the apps; what follows imports models

from channels.auth import AuthMiddlewareStack  # noqa: E402
from channels.routing import ProtocolTypeRouter, URLRouter  # noqa: E402
from django.urls import get_resolver  # noqa: E402

from api.live_feed import SameOriginOnly  # noqa: E402
from api.routing import websocket_urlpatterns  # noqa: E402
from console.database_limits import limit_lock_waits  # noqa: E402

limit_lock_waits()

application = ProtocolTypeRouter(
    {
        "http": http,
        "websocket": SameOriginOnly(AuthMiddlewareStack(URLRouter(websocket_urlpatterns))),
    }
)

# A full collection walks all that was ever imported: with the snapshots of 10,000 clients coming in there is one of 100 ms every
# five seconds, half of what a tab costs besides. What is there now, every view with it, lives as long as the process.
get_resolver().url_patterns  # noqa: B018
gc.collect()
gc.freeze()
