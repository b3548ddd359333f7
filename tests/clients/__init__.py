"""Clients of other makers, as people have them, against a real broker."""
