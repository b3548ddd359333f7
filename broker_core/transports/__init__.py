"""Listeners for clients, and what their sockets have taken."""
