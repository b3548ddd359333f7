"""REST views. Each reads a request, calls one service or query, and returns its result."""
