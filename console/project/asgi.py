"""Web process: pages and REST over HTTP, live feed over WebSocket. Served by daphne."""

from __future__ import annotations

import gc
import os

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "console.project.settings")

from django.core.asgi import get_asgi_application

http = get_asgi_application()  # loads the apps, which the imports below need

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

# A full collection visits all imported objects. With the snapshots of 10,000 clients, one of 100 ms
# ran every five seconds, which is half of the other costs of an open page. All objects that exist now, with
# all views, live as long as the process: freeze them.
get_resolver().url_patterns  # noqa: B018
gc.collect()
gc.freeze()
