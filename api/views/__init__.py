"""REST views: read the request, call one service or query, shape the answer."""
