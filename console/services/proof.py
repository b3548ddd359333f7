"""Checks that a form comes from the account's owner, and not from a thief of the session.

Every form that compares a password or a code follows one order: ask the login lock, compare, count a
failure. So a locked name gets the same answer to a right and to a wrong secret.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from axes.handlers.proxy import AxesProxyHandler
from django.contrib.auth import get_user_model
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
    """Guard a block that compares a secret: refuse a locked name first, count a wrong secret afterwards.

    A `bad_password` or `bad_code` that the block raises counts as a failed login of `name`.

    Raises:
        OperatorError: `locked`; also any error that the block raises.
    """
    refuse_if_locked(request, name)
    try:
        yield
    except OperatorError as problem:
        if problem.code in COUNTED:
            count_failure(request, name)
        raise


def refuse_if_locked(request: HttpRequest, name: str) -> None:
    """Raise OperatorError `locked` while too many wrong secrets were sent for this name from this address.

    The refused attempt is audited and counts as a failure of the address, but does not prolong the lock.
    """
    if AxesProxyHandler.is_allowed(request, {"username": name}):
        return
    request.axes_locked_out = True  # type: ignore[attr-defined]  # axes then leaves its lock as it is
    count_failure(request, name)
    raise OperatorError("locked", LOCKED_NAME, LOCK_FIX, retry_after_ms=LOCK_S * 1_000)


def count_failure(request: HttpRequest, name: str) -> None:
    """Count a wrong password or code as a failed login of this name and address.

    While the name is locked there, only the address's failures are counted.
    """
    user_login_failed.send(__name__, credentials={"username": name}, request=request)


def prove_password(request: HttpRequest, password: str) -> None:
    """Check the password of the account that sends the request.

    An account that was closed, or got another password, during the check is refused too.

    Raises:
        OperatorError: `locked` or `bad_password`.
    """
    user: Any = request.user
    with counted_guess(request, user.get_username()):
        with hashing_slot():
            right = user.check_password(password)
        # Hashing takes a while, and the account was read before it.
        stored = get_user_model().objects.filter(pk=user.pk, is_active=True, password=user.password)
        if not (right and stored.exists()):
            raise OperatorError("bad_password", "The password is wrong.", "Enter your own password.")


def prove_person(request: HttpRequest, password: str) -> None:
    """Require the sender's password or, for an account without one, a recent login (`RECENT_LOGIN_S`).

    Raises:
        OperatorError: `locked`, `bad_password` or `login_too_old`.
    """
    if require_user(request).has_usable_password():
        prove_password(request, password)
    elif time.time() - float(request.session.get(LOGIN_AT, 0)) > RECENT_LOGIN_S:
        raise OperatorError(
            "login_too_old",
            f"Your login is more than {RECENT_LOGIN_S // 60} minutes old.",
            "Log out, log in at the identity provider, and repeat the change.",
        )


def sign_device(request: HttpRequest, device_id: int) -> str:
    """Return a signed proof that this session gave the password and has seen the key of this device."""
    return signing.dumps({"device": device_id, "session": _session_digest(request)}, salt=_SALT)


def read_device(request: HttpRequest, proof: str) -> int | None:
    """Return the device id in a proof that this session received at most `PROOF_S` ago, or None."""
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
