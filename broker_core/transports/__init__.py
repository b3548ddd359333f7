"""Listeners for clients, TCP connections, and the progress of their peers."""
