"""Access control: authentication at logon, and permissions to publish and subscribe.

No event loop and no clock.

`AccessPolicy` is compiled from a policy document. It returns the owner of a token or certificate, and a
user's permissions as `Rights`. Verifying a password takes tens of milliseconds on purpose, so callers do it
in a thread.
"""

from __future__ import annotations

from broker_core.access.credential_hashes import hash_password, hash_token, make_token, verify_password
from broker_core.access.logon_attempts import (
    FailedLogonTracker,
    RefusedLogonEntry,
    RefusedLogonLog,
    VerifiedPasswordCache,
)
from broker_core.access.policy import AccessPolicy
from broker_core.access.rights import ALL_RIGHTS, Rights

__all__ = [
    "ALL_RIGHTS",
    "AccessPolicy",
    "FailedLogonTracker",
    "RefusedLogonEntry",
    "RefusedLogonLog",
    "Rights",
    "VerifiedPasswordCache",
    "hash_password",
    "hash_token",
    "make_token",
    "verify_password",
]
