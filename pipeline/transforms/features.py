"""What a client's hours say of how it behaves, and how far an hour is from what that client is used to. Pure.

An hour is a point of FEATURES, amounts as logarithms, since ten times as much is as remarkable at any size. Of each feature the
client's own earlier hours give what is usual (the median) and how far it varies (the median distance from it): neither minds that some of
these hours were bad themselves. An hour's distances are put together by Mahalanobis, which counts features that always move
together once.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Floats = npt.NDArray[np.float64]


class Feature(NamedTuple):
    """One number of an hour. `floor` is the least variation that is taken for usual: a client that never varied may."""

    name: str
    words: str
    floor: float
    log: bool = True


FEATURES: Final = (
    Feature("lag_messages", "messages behind on average", 0.5),
    Feature("lag_ms", "ms behind at worst", 0.7),
    Feature("rate", "messages a second", 0.35),
    Feature("peak_rate", "messages a second at most", 0.5),
    Feature("size", "bytes a message", 0.35),
    Feature("offline", "percent of the time offlined", 0.35),
    Feature("connects", "connections", 0.5),
    Feature("acts", "decisions on it", 0.7),
)
NAMES: Final = tuple(one.name for one in FEATURES)
FLOORS: Final = np.array([one.floor for one in FEATURES])
LEAST_HOURS: Final = 12
"""So many earlier hours are needed to say what is usual."""
MAX_Z: Final = 12.0
"""A distance in one feature counts no more than that."""
SHRUNK: Final = 0.3
"""How much of the correlations is taken away: they are estimated, and their inverse must not make much of little."""


def points_of(hours: pa.Table) -> Floats:
    """A row of FEATURES for each of the hours."""
    value = {name: pc.fill_null(hours.column(name), 0).cast(pa.float64()).to_numpy() for name in hours.column_names
             if name not in ("client", "transport", "hour")}  # fmt: skip
    seconds = np.maximum(value["connected_ms"] / 1_000, 1.0)
    messages = value["delivered_messages"]
    found: Floats = np.log1p(np.column_stack([
        value["lag_messages_mean"],
        value["lag_ms_max"],
        messages / seconds,
        value["rate_max"],
        np.divide(value["delivered_bytes"], messages, out=np.zeros(len(messages)), where=messages > 0),
        np.minimum(value["offline_ms"] / (10.0 * np.maximum(seconds, 60.0)), 100.0),
        value["connects"],
        value["warned"] + value["offlined"] + value["disconnected"] + value["other_acts"],
    ]))  # fmt: skip
    return found


def baseline(points: Floats) -> tuple[Floats, Floats]:
    """(what is usual, how far it varies) of each feature; the second never under its floor."""
    middle = np.median(points, axis=0)
    spread = 1.4826 * np.median(np.abs(points - middle), axis=0)
    return middle, np.maximum(spread, FLOORS)


def distances(points: Floats, middle: Floats, spread: Floats) -> Floats:
    """By how many usual variations each feature is off, with its sign."""
    return np.clip((points - middle) / spread, -MAX_Z, MAX_Z)


def inverse_correlation(correlations: Floats) -> Floats:
    """What Mahalanobis needs of the features' correlations; where a feature never varied it has none."""
    known = np.nan_to_num(correlations, nan=0.0)
    np.fill_diagonal(known, 1.0)
    found: Floats = np.linalg.inv((1 - SHRUNK) * known + SHRUNK * np.eye(len(known))).astype(np.float64)
    return found


def score_features(z: Floats, inverted: Floats) -> tuple[Floats, Floats]:
    """(distance of each row, each feature's share of it in percent)."""
    parts: Floats = z * (z @ inverted)
    squares = np.maximum(parts.sum(axis=1), 0.0)
    positive = np.maximum(parts, 0.0)
    total = np.maximum(positive.sum(axis=1, keepdims=True), 1e-12)
    shares: Floats = 100 * positive / total
    return np.sqrt(squares), shares


def to_plain(values: Floats) -> Floats:
    """Features as one would say them."""
    return np.expm1(values)


def top_features(values: Floats, middle: Floats, z: Floats, shares: Floats, most: int = 3) -> str:
    """The features that say so, the weightiest first."""
    told = []
    for place in np.argsort(-shares)[:most]:
        if shares[place] < 10:
            break
        one = FEATURES[place]
        word = "more" if z[place] > 0 else "less"
        told.append(
            f"{one.words}: {_short(to_plain(values)[place])}, usually {_short(to_plain(middle)[place])} ({abs(z[place]):.0f} times its variation {word})"
        )
    return "; ".join(told)


def _short(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def feature_row(feature: Feature, value: float, middle: float, z: float, share: float) -> dict[str, Any]:
    """One feature of an hour, for a table."""
    return {
        "feature": feature.words, "value": round(float(np.expm1(value)), 3), "usually": round(float(np.expm1(middle)), 3),
        "variations_off": round(float(z), 1), "share_percent": round(float(share), 1),
    }  # fmt: skip
