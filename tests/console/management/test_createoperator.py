from __future__ import annotations

from io import StringIO

import pytest
from django.contrib.auth import get_user_model
from django.core.management import CommandError, call_command

pytestmark = pytest.mark.django_db


def said(*words: str) -> str:
    out = StringIO()
    call_command("createoperator", *words, stdout=out)
    return out.getvalue()


def test_first_operator_is_made_once_and_the_password_shown_once() -> None:
    assert "Password:" in said()
    assert said() == ""
    assert get_user_model().objects.get().username == "operator"


def test_named_operator_is_made_beside_the_first() -> None:
    said()
    assert "Operator: otto" in said("otto")
    with pytest.raises(CommandError, match="already"):
        said("otto")


def test_reset_gives_a_new_password() -> None:
    said()
    before = get_user_model().objects.get().password
    assert "Password:" in said("--reset")
    assert get_user_model().objects.get().password != before
    with pytest.raises(CommandError):
        said("nobody", "--reset")
