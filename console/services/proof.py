"""Proofs that an account's owner sends a form, not somebody with a stolen session.

One law for every form that compares a password or a code: ask the lock first, compare second, count a failure
third.
A locked name therefore gets the same answer to a right and to a wrong secret.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from axes.handlers.proxy import AxesProxyHandler
from django.contrib.auth.signals import user_login_failed
from django.core import signing
from django.http import HttpRequest
from django.utils.crypto import constant_time_compare, salted_hmac

from broker_core.errors import OperatorError
from console.access.login_limit import LOCK_FIX, LOCK_S, LOCKED_NAME, hashing_slot
from console.services.actors import require_user
from console.services.sessions import LOGIN_AT

PROOF_S = 300
"""Seconds between the password and the first code of a new authenticator app."""
RECENT_LOGIN_S = 900
"""Seconds after its login in which a session of an account without a password needs no new login."""
COUNTED = frozenset({"bad_password", "bad_code"})
_SALT = "console.second-factor"


@contextmanager
def counted_guess(request: HttpRequest, name: str) -> Iterator[None]:
    """Ask the lock of a name before the block compares a secret, and count a wrong one as a failed login.

    Raises OperatorError locked, and whatever the block raises; `bad_password` and `bad_code` are counted.
    """
    refuse_if_locked(request, name)
    try:
        yield
    except OperatorError as problem:
        if problem.code in COUNTED:
            count_failure(request, name)
        raise


def refuse_if_locked(request: HttpRequest, name: str) -> None:
    """Raise OperatorError locked while too many wrong secrets were sent for this name from this address."""
    if AxesProxyHandler.is_allowed(request, {"username": name}):
        return
    count_failure(request, name)
    raise OperatorError("locked", LOCKED_NAME, LOCK_FIX, retry_after_ms=LOCK_S * 1_000)


def count_failure(request: HttpRequest, name: str) -> None:
    """Count a wrong password or code as a failed login of this name and address."""
    user_login_failed.send(__name__, credentials={"username": name}, request=request)


def prove_password(request: HttpRequest, password: str) -> None:
    """Raise OperatorError locked or bad_password unless it is the password of the account that sends the
    request."""
    user: Any = request.user
    with counted_guess(request, user.get_username()):
        with hashing_slot():
            right = user.check_password(password)
        if not right:
            raise OperatorError("bad_password", "That isn't your password.", "Type your own password.")


def prove_person(request: HttpRequest, password: str) -> None:
    """Ask for the sender's own password; for an account without one, for a login of the last minutes.

    Raises OperatorError locked, bad_password or login_too_old.
    """
    if require_user(request).has_usable_password():
        prove_password(request, password)
    elif time.time() - float(request.session.get(LOGIN_AT, 0)) > RECENT_LOGIN_S:
        raise OperatorError(
            "login_too_old",
            f"Your login is more than {RECENT_LOGIN_S // 60} minutes old.",
            "Log out, log in at the identity provider, and do it again.",
        )


def sign_device(request: HttpRequest, device_id: int) -> str:
    """Return the proof that this session gave the password and was shown the key of this device."""
    return signing.dumps({"device": device_id, "session": _session_digest(request)}, salt=_SALT)


def read_device(request: HttpRequest, proof: str) -> int | None:
    """Return the device of a proof that this session was given in the last minutes.

    None for any other text.
    """
    try:
        found = signing.loads(proof, salt=_SALT, max_age=PROOF_S)
    except signing.BadSignature:
        return None
    if not constant_time_compare(found["session"], _session_digest(request)):
        return None
    return int(found["device"])


def _session_digest(request: HttpRequest) -> str:
    # The hash of the password is part of it: a new password ends every proof.
    user: Any = request.user
    value = f"{request.session.session_key}|{user.pk}|{user.get_session_auth_hash()}"
    return salted_hmac(_SALT, value).hexdigest()
