"""Codes of an authenticator app (TOTP) as a second factor: each person's own, kept by django-otp.

A code is good once, and failures make the next try wait (both django-otp's); they also count as failed logins.
"""

from __future__ import annotations

import base64
from typing import Any

import segno
from django.conf import settings
from django.db import transaction
from django_otp.plugins.otp_totp.models import TOTPDevice

from broker_core.errors import OperatorError
from console.services import audit
from console.services.actors import Actor

NAME = "authenticator app"
MOST_CODE = 10


def has_one(user: Any) -> bool:
    """Whether the person has switched it on."""
    return TOTPDevice.objects.filter(user=user, confirmed=True).exists()


def is_asked_of(user: Any) -> bool:
    """Whether a password alone doesn't let the person in."""
    return bool(settings.SLUICE_REQUIRE_TOTP) or has_one(user)


def offered(user: Any) -> TOTPDevice:
    """The key that the person may take into their app: the one that was offered before, until it is confirmed."""
    with transaction.atomic():
        found = TOTPDevice.objects.select_for_update().filter(user=user, confirmed=False).first()
        return found or TOTPDevice.objects.create(user=user, name=NAME, confirmed=False)


def address_of(device: TOTPDevice) -> str:
    """What apps take: otpauth://…"""
    return str(device.config_url)


def picture_of(device: TOTPDevice) -> str:
    """The same as a QR code, an SVG in a `data:` address. Dark on light in both themes: cameras want it so."""
    return str(
        segno.make(address_of(device), error="m").svg_data_uri(scale=4, border=3, dark="#000", light="#fff")
    )


def secret_of(device: TOTPDevice) -> str:
    """The key as apps take it by hand, in fours."""
    text = base64.b32encode(device.bin_key).decode().rstrip("=")
    return " ".join(text[at : at + 4] for at in range(0, len(text), 4))


def confirm(actor: Actor, user: Any, code: str) -> None:
    """Switch it on with a first code of the app. Raises OperatorError bad_code."""
    with transaction.atomic():
        device = TOTPDevice.objects.select_for_update().filter(user=user, confirmed=False).first()
        good = device is not None and _verifies(device, code)
        if good and device is not None:
            TOTPDevice.objects.filter(user=user, confirmed=True).delete()
            device.confirmed = True
            device.save(update_fields=["confirmed"])
            audit.record(actor, "operator.second_factor_on", f"operator {user.get_username()}")
    if not good:
        raise _bad()


def check(user: Any, code: str) -> None:
    """Raise OperatorError bad_code unless it is the app's code of now, for the first time."""
    with transaction.atomic():
        device = TOTPDevice.objects.select_for_update().filter(user=user, confirmed=True).first()
        good = device is not None and _verifies(device, code)
    if not good:
        raise _bad()


def remove(actor: Actor, user: Any) -> None:
    """Switch it off: by the person, or by an administrator when the app is lost."""
    with transaction.atomic():
        gone, _ = TOTPDevice.objects.filter(user=user).delete()
        if gone:
            audit.record(actor, "operator.second_factor_off", f"operator {user.get_username()}")


def _verifies(device: TOTPDevice, code: str) -> bool:
    text = code.replace(" ", "")[:MOST_CODE]
    allowed, _ = device.verify_is_allowed()
    return bool(allowed and text.isascii() and text.isdigit() and device.verify_token(text))


def _bad() -> OperatorError:
    return OperatorError(
        "bad_code",
        "That isn't your app's current code, or it was used already.",
        "Wait for the app's next code; check that this machine's and the phone's clocks are right.",
    )
