"""Resume points of clients that reconnect without a bookmark."""

from __future__ import annotations

from broker_core.connections.resume import (
    MAX_POINTS,
    RESUME_POINT_VALID_MS,
    ResumePoints,
    SuspendedSubscription,
)


def interrupted_subscription(position: int, had_upto: int = 0, id: str = "s") -> SuspendedSubscription:
    return SuspendedSubscription(id, "t", None, position, had_upto)


def test_a_place_is_given_back_once_and_to_nobody_else() -> None:
    places = ResumePoints()
    places.save("a", [interrupted_subscription(7, 9)], 0)
    assert places.claim("b", "s", "t", None, 1) is None
    assert places.claim("a", "s", "t", "x = 1", 1) is None
    assert places.claim("a", "s", "t", None, 1) == interrupted_subscription(7, 9)
    assert places.claim("a", "s", "t", None, 1) is None and len(places) == 0


def test_indistinguishable_clients_all_resume_at_the_last_ones_position() -> None:
    places = ResumePoints()
    places.save("a", [interrupted_subscription(7, 9)], 0)
    places.save("a", [interrupted_subscription(90, 95)], 5)
    assert [places.claim("a", "s", "t", None, 6) for _ in range(3)] == [
        interrupted_subscription(7, 95),
        interrupted_subscription(7, 95),
        None,
    ]


def test_a_place_is_forgotten_after_its_time_and_the_oldest_beyond_the_most() -> None:
    places = ResumePoints()
    places.save("a", [interrupted_subscription(7)], 0)
    assert places.claim("a", "s", "t", None, RESUME_POINT_VALID_MS + 1) is None
    places.save("a", [interrupted_subscription(7)], RESUME_POINT_VALID_MS + 1)
    places.save(
        "a",
        [interrupted_subscription(number, id=str(number)) for number in range(MAX_POINTS)],
        RESUME_POINT_VALID_MS + 2,
    )
    assert len(places) == MAX_POINTS and places.claim("a", "s", "t", None, RESUME_POINT_VALID_MS + 2) is None
    places.save("b", [interrupted_subscription(1)], 3 * RESUME_POINT_VALID_MS)
    assert len(places) == 1
