from __future__ import annotations

from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from console.services.actions.variables import expand, expand_bytes, has_reference, initial_variables

AT = datetime(2026, 11, 21, 0, 30, 15, tzinfo=UTC)
names = st.from_regex(r"[A-Z_][A-Z0-9_]{0,20}", fullmatch=True).filter(
    lambda name: not name.startswith("AMPS_BYTE_")
)


def test_a_name_becomes_its_value_and_an_unknown_one_nothing() -> None:
    assert expand("{{AGE}} and {{NOBODY}}.", {"AGE": "7d"}) == "7d and ."


def test_a_byte_is_the_very_byte_in_a_body() -> None:
    assert expand_bytes("8=FIX{{AMPS_BYTE_01}}ü{{AMPS_BYTE_FF}}", {}) == b"8=FIX\x01\xc3\xbc\xff"
    assert expand("{{AMPS_BYTE_0A}}{{AMPS_BYTE_0a}}", {}) == "\n"


def test_every_run_has_its_instance_and_its_moment() -> None:
    made = initial_variables("sluice-1", AT, {"AGE": "7d", "AMPS_INSTANCE_NAME": "another"})
    assert made == {
        "AGE": "7d",
        "AMPS_INSTANCE_NAME": "sluice-1",
        "AMPS_DATETIME": "2026-11-21T00:30:15Z",
        "AMPS_UNIX_TIMESTAMP": "1795221015",
    }


@given(st.text(alphabet=st.characters(blacklist_characters="{}")), st.dictionaries(names, st.text()))
def test_a_text_without_references_stays_as_it_is(text: str, variables: dict[str, str]) -> None:
    assert expand(text, variables) == text
    assert not has_reference(text)


@given(names, st.text(max_size=200))
def test_a_value_is_never_expanded_again(name: str, value: str) -> None:
    assert expand("{{" + name + "}}", {name: value, "OTHER": "secret"}) == value
    assert expand("{{A}}", {"A": "{{" + name + "}}", name: "x"}) in (
        "{{" + name + "}}",
        "x" if name == "A" else "{{" + name + "}}",
    )


@given(
    st.lists(st.one_of(st.text(alphabet="abü {}", max_size=5), names.map(lambda name: "{{" + name + "}}"))),
    st.dictionaries(names, st.text(max_size=9)),
)
def test_text_and_bytes_expand_alike(parts: list[str], variables: dict[str, str]) -> None:
    template = "".join(parts)
    assert expand_bytes(template, variables) == expand(template, variables).encode()
