"""Exact memory and disk use of clients and pools, and the guard that has clients judged."""
