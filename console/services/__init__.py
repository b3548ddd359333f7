"""Writes: one function per operator action.

Each function validates its input, changes the database, sends the change to the broker, and records an
AuditEvent.
"""
