"""Grouping of decisions into incidents by cause; each decision belongs to one incident."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from console.models import Decision
from console.queries.incidents import GAP, MIN_DECISIONS, decision_timeline, group_incidents, logon_storms
from tests.support.fake_broker import make_client

NOW = datetime(2026, 11, 22, 12, tzinfo=UTC)


def act(
    minutes: float,
    client: str,
    action: str = "disconnect",
    reason: str = "slow_client_age",
    mode: str = "enforce",
) -> Decision:
    """Return a decision made `minutes` before NOW."""
    return Decision(
        at=NOW - timedelta(minutes=minutes), client=client, action=action, reason=reason, rule="r", mode=mode
    )


def test_many_disconnects_of_one_cause_are_one_incident() -> None:
    found = group_incidents([act(10 - n / 10, f"c{n}") for n in range(40)] + [act(1, "x", reason="other")])
    (one,) = found
    assert (one.acts, len(one.clients), one.flapping) == (40, 40, False)
    assert one.first == NOW - timedelta(minutes=10)


def test_a_client_that_comes_back_again_and_again_flaps() -> None:
    (one,) = group_incidents([act(n, "tape", "offline") for n in (9, 6, 3)])
    assert one.flapping and one.clients == {"tape": 3}


def test_a_silence_ends_an_incident_and_shadow_is_another() -> None:
    acts = [act(60 + n, f"a{n}") for n in range(3)] + [act(n, f"b{n}") for n in range(3)]
    assert [sorted(one.clients) for one in group_incidents(acts)] == [["b0", "b1", "b2"], ["a0", "a1", "a2"]]
    assert group_incidents([act(1, "a"), act(1, "b"), act(1, "c", mode="shadow")]) == []


@given(
    st.lists(
        st.tuples(st.integers(0, 60), st.sampled_from("abc"), st.sampled_from(["offline", "disconnect"])),
        max_size=40,
    )
)
def test_no_act_is_in_two_and_none_is_small_or_torn(made: list[tuple[int, str, str]]) -> None:
    acts = [act(minutes, client, action) for minutes, client, action in made]
    found = group_incidents(acts)
    assert sum(one.acts for one in found) <= len(acts)
    for one in found:
        assert one.acts >= MIN_DECISIONS
        inside = sorted(
            each.at for each in acts if each.action == one.action and one.first <= each.at <= one.last
        )
        assert len(inside) == one.acts
        assert all(later - earlier <= GAP for earlier, later in pairwise(inside))


def test_the_picture_has_a_cell_for_each_quarter_with_acts() -> None:
    cells = decision_timeline([act(1, "a"), act(2, "b"), act(600, "c", "offline"), act(3_000, "d")], NOW)
    assert [(cell.x, cell.height, cell.severe) for cell in cells] == [
        (560.0, 20.0, False),
        (950.0, 40.0, True),
    ]
    assert decision_timeline([], NOW) == []


def test_logons_at_once_are_one_storm_with_what_they_share() -> None:
    at = int(NOW.timestamp() * 1_000) - 600_000
    crowd = [
        make_client(f"web-{n}", connected_at=at + 900 * n, transport="websocket", remote=f"10.0.0.9:{n}")
        for n in range(30)
    ]
    others = [make_client(f"desk-{n}", connected_at=at - 60_000 * (n + 2)) for n in range(20)]
    cut = [act(11, "web-3"), act(11, "web-4", mode="shadow"), act(11, "desk-1")]
    (storm,) = logon_storms([*others, *crowd], [NOW - timedelta(hours=3)], cut, NOW)
    assert (len(storm.clients), storm.restart, storm.cut_off) == (30, None, 1)
    assert ("address", "10.0.0.9") in storm.shared and ("transport", "websocket") in storm.shared
    (storm,) = logon_storms(crowd, [NOW - timedelta(minutes=11)], [], NOW)
    assert storm.restart == NOW - timedelta(minutes=11)
