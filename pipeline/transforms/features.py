"""Features of a client's behaviour in an hour, and the distance of an hour from the client's usual behaviour.

Pure.

An hour is a point of FEATURES. Amounts are logarithms, since a factor of ten is as remarkable at any size.
The client's own earlier hours give the usual value of each feature (median) and its variation (median
distance). Both tolerate that some of these hours were bad. The Mahalanobis distance combines the features,
and counts features that always change together once.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Floats = npt.NDArray[np.float64]


class Feature(NamedTuple):
    """A number of an hour. `floor`: minimum variation, also for a client that never varied."""

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
MIN_HOURS: Final = 12
"""Minimum earlier hours for a baseline."""
MAX_Z: Final = 12.0
"""Maximum distance of one feature."""
SHRINKAGE: Final = 0.3
"""Shrinkage of the correlations: they are estimates, and their inverse must not amplify noise."""


def to_points(hours: pa.Table) -> Floats:
    """Return a row of FEATURES for each hour."""
    value = {
        name: pc.fill_null(hours.column(name), 0).cast(pa.float64()).to_numpy()
        for name in hours.column_names
        if name not in ("client", "transport", "hour")
    }
    seconds = np.maximum(value["connected_ms"] / 1_000, 1.0)
    messages = value["delivered_messages"]
    found: Floats = np.log1p(
        np.column_stack(
            [
                value["lag_messages_mean"],
                value["lag_ms_max"],
                messages / seconds,
                value["rate_max"],
                np.divide(
                    value["delivered_bytes"], messages, out=np.zeros(len(messages)), where=messages > 0
                ),
                np.minimum(value["offline_ms"] / (10.0 * np.maximum(seconds, 60.0)), 100.0),
                value["connects"],
                value["warned"] + value["offlined"] + value["disconnected"] + value["other_acts"],
            ]
        )
    )
    return found


def baseline(points: Floats) -> tuple[Floats, Floats]:
    """Return (usual value, variation) of each feature. The variation is at least its floor."""
    middle = np.median(points, axis=0)
    spread = 1.4826 * np.median(np.abs(points - middle), axis=0)
    return middle, np.maximum(spread, FLOORS)


def distances(points: Floats, middle: Floats, spread: Floats) -> Floats:
    """Return the signed distance of each feature in usual variations."""
    return np.clip((points - middle) / spread, -MAX_Z, MAX_Z)


def inverse_correlation(correlations: Floats) -> Floats:
    """Return the inverse of the shrunk correlations. A feature that never varied correlates with none."""
    known = np.nan_to_num(correlations, nan=0.0)
    np.fill_diagonal(known, 1.0)
    found: Floats = np.linalg.inv((1 - SHRINKAGE) * known + SHRINKAGE * np.eye(len(known))).astype(np.float64)
    return found


def score_features(z: Floats, inverted: Floats) -> tuple[Floats, Floats]:
    """Return (distance of each row, each feature's share of it in percent)."""
    parts: Floats = z * (z @ inverted)
    squares = np.maximum(parts.sum(axis=1), 0.0)
    positive = np.maximum(parts, 0.0)
    total = np.maximum(positive.sum(axis=1, keepdims=True), 1e-12)
    shares: Floats = 100 * positive / total
    return np.sqrt(squares), shares


def to_plain(values: Floats) -> Floats:
    """Convert logarithmic features to plain values."""
    return np.expm1(values)


def top_features(values: Floats, middle: Floats, z: Floats, shares: Floats, max_features: int = 3) -> str:
    """Describe the features that contribute most, in descending order."""
    phrases = []
    for index in np.argsort(-shares)[:max_features]:
        if shares[index] < 10:
            break
        one = FEATURES[index]
        word = "more" if z[index] > 0 else "less"
        phrases.append(
            f"{one.words}: {_short(to_plain(values)[index])}, usually "
            f"{_short(to_plain(middle)[index])} ({abs(z[index]):.0f} times its variation {word})"
        )
    return "; ".join(phrases)


def _short(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def feature_row(feature: Feature, value: float, middle: float, z: float, share: float) -> dict[str, Any]:
    """Return one feature of an hour as a row of a table."""
    return {
        "feature": feature.words,
        "value": round(float(np.expm1(value)), 3),
        "usually": round(float(np.expm1(middle)), 3),
        "variations_off": round(float(z), 1),
        "share_percent": round(float(share), 1),
    }
