"""Who may log on to a transport, by what proof, and which topics they may publish and read. Pure: no loop, no clock.

`AccessPolicy` is made from a policy document; it answers who a token or a certificate belongs to and what a user may
do, as `Rights`. Checking a password costs tens of milliseconds on purpose, so the caller does it in a thread.
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
from broker_core.access.rights import EVERYTHING, Rights

__all__ = [
    "EVERYTHING",
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
