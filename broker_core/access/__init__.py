"""Who may log on to a transport, by what proof, and which topics they may publish and read. Pure: no loop, no clock.

`AccessPolicy` is made from a policy document; it answers who a token or a certificate belongs to and what a user may
do, as `Rights`. Checking a password costs tens of milliseconds on purpose, so the caller does it in a thread.
"""

from __future__ import annotations

from broker_core.access.attempts import Attempts
from broker_core.access.policy import AccessPolicy
from broker_core.access.proven import Proven
from broker_core.access.refusals import Refusals, Refused
from broker_core.access.rights import EVERYTHING, Rights
from broker_core.access.secrets import hash_password, hash_token, make_token, password_matches

__all__ = [
    "EVERYTHING",
    "AccessPolicy",
    "Attempts",
    "Proven",
    "Refusals",
    "Refused",
    "Rights",
    "hash_password",
    "hash_token",
    "make_token",
    "password_matches",
]
