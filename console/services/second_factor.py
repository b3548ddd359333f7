"""Codes of an authenticator app (TOTP) as a second factor. django-otp stores one device per account.

django-otp accepts a code once, and makes each try after a failure wait. The login lock counts failures too.
"""

from __future__ import annotations

import base64
from typing import Any

import segno
from django.conf import settings
from django.contrib.auth import get_user_model
from django.db import transaction
from django_otp.plugins.otp_totp.models import TOTPDevice

from broker_core.errors import OperatorError
from console.services import audit
from console.services.actors import Actor

NAME = "authenticator app"
MAX_CODE = 10


def is_enabled(user: Any) -> bool:
    """Whether the account has a confirmed authenticator app."""
    return bool(TOTPDevice.objects.filter(user=user, confirmed=True).exists())


def is_required(user: Any) -> bool:
    """Whether a login of the account needs a code besides the password."""
    return bool(settings.SLUICE_REQUIRE_TOTP) or is_enabled(user)


def offer_device(user: Any) -> TOTPDevice:
    """Create an unconfirmed device with a new key. Earlier keys that were never confirmed become invalid.

    Raises:
        OperatorError: `second_factor_on` when a device is in use; switch that off first.
    """
    with transaction.atomic():
        _lock_account(user)
        if is_enabled(user):
            raise _is_on()
        TOTPDevice.objects.filter(user=user, confirmed=False).delete()
        return TOTPDevice.objects.create(user=user, name=NAME, confirmed=False)


def find_offered(user: Any, device_id: int | None) -> TOTPDevice | None:
    """Return the account's device with this id while the device is unconfirmed, or None."""
    return TOTPDevice.objects.filter(user=user, pk=device_id, confirmed=False).first()


def otpauth_url(device: TOTPDevice) -> str:
    """Return the `otpauth://` address that authenticator apps read."""
    return str(device.config_url)


def qr_code(device: TOTPDevice) -> str:
    """Return the `otpauth://` address as a QR code: an SVG in a `data:` URL.

    The code is dark on light in both colour themes, because cameras need that.
    """
    return str(
        segno.make(otpauth_url(device), error="m").svg_data_uri(scale=4, border=3, dark="#000", light="#fff")
    )


def format_key(device: TOTPDevice) -> str:
    """Return the device's key in groups of four characters, for typing into an app."""
    text = base64.b32encode(device.bin_key).decode().rstrip("=")
    return " ".join(text[at : at + 4] for at in range(0, len(text), 4))


def confirm(actor: Actor, user: Any, device_id: int, code: str) -> None:
    """Confirm an offered device with a first code of the app, and record it in the audit.

    Raises:
        OperatorError: `bad_code` or `second_factor_on`.
    """
    with transaction.atomic():
        _lock_account(user)
        if is_enabled(user):
            raise _is_on()
        device = find_offered(user, device_id)
        good = device is not None and _verifies(device, code)
        if good and device is not None:
            device.confirmed = True
            device.save(update_fields=["confirmed"])
            audit.record(actor, "operator.second_factor_on", f"operator {user.get_username()}")
    if not good:
        raise _bad()


def check(user: Any, code: str) -> None:
    """Raise OperatorError `bad_code` unless `code` is the app's current code and was not used before."""
    with transaction.atomic():
        device = TOTPDevice.objects.select_for_update().filter(user=user, confirmed=True).first()
        good = device is not None and _verifies(device, code)
    if not good:
        raise _bad()


def remove(actor: Actor, user: Any, reason: str = "") -> bool:
    """Remove the account's devices, and return whether the second factor was on.

    Callers are the account's owner, an administrator when the app is lost, and a command on the host.
    """
    with transaction.atomic():
        was_on = is_enabled(user)
        deleted, _ = TOTPDevice.objects.filter(user=user).delete()
        if deleted:
            audit.record(
                actor, "operator.second_factor_off", f"operator {user.get_username()}", reason=reason
            )
    return was_on


def _lock_account(user: Any) -> None:
    """Lock the account's row until the transaction ends, so that two devices can't both be confirmed."""
    get_user_model().objects.select_for_update().get(pk=user.pk)


def _is_on() -> OperatorError:
    return OperatorError(
        "second_factor_on", "The account already has a second factor.", "Switch it off first, with its code."
    )


def _verifies(device: TOTPDevice, code: str) -> bool:
    text = code.replace(" ", "")[:MAX_CODE]
    allowed, _ = device.verify_is_allowed()
    return bool(allowed and text.isascii() and text.isdigit() and device.verify_token(text))


def _bad() -> OperatorError:
    return OperatorError(
        "bad_code",
        "The code isn't your app's current code, or was used already.",
        "Wait for the next code. Check the clocks of this machine and of the phone.",
    )
