"""Reads: what pages and the API show. Nothing here writes."""
