"""Writes: one function per operator action. Each validates, changes, tells the broker, and leaves an AuditEvent."""
