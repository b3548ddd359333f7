"""REST API under /api/v1 and the console's live feed.

Calls services and queries only; `broker_websocket` runs in the broker.
"""
