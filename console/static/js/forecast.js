// Where a figure goes if the next minutes are as the last ones were: a line, and the cone that eight of ten ways stay in. Pure.

export const LEAST_MINUTES = 5;
const HISTORY_MINUTES = 15, AHEAD = 45, EIGHT_OF_TEN = 1.2816;

/** How far is looked ahead. */
export const aheadOf = (minute = 60) => AHEAD * minute;

/**
 * points: [[seconds, value]], oldest first. The minutes of the last quarter of an hour each grew by something: their mean is the
 * line. Minutes that differ as much as these did lead apart with the root of the time, and a mean of so few is itself unsure,
 * in step with the time: both together are the cone. Null of less than five minutes. Times are seconds from the newest point on.
 * What grows slower has longer "minutes": so many seconds each, of which points are six.
 */
export function forecast(points, limit, minute = 60) {
  const newest = points.at(-1);
  if (!newest) return null;
  const [now, used] = newest, grew = growths(points, now, minute);
  if (grew.length < LEAST_MINUTES) return null;
  const mean = grew.reduce((sum, one) => sum + one, 0) / grew.length;
  const variance = grew.reduce((sum, one) => sum + (one - mean) ** 2, 0) / (grew.length - 1);
  const spread = (minutes) => EIGHT_OF_TEN * Math.sqrt(variance * (minutes + minutes ** 2 / grew.length));
  const ways = { middle: 0, high: 1, low: -1 };
  const at = (way, seconds) => Math.max(0, used + mean * (seconds / minute) + ways[way] * spread(seconds / minute));
  const steps = Array.from({ length: 2 * AHEAD + 1 }, (_, step) => step * minute / 2);
  const full = (way) => (limit > 0 ? steps.find((seconds) => at(way, seconds) >= limit) ?? null : null);
  return {
    points: steps.map((seconds) => [now + seconds, at("middle", seconds), at("high", seconds), at("low", seconds)]),
    full: full("middle"), soonest: full("high"), latest: full("low"), grows: mean > 0, minutes: grew.length,
  };
}

/** By how much each whole minute before `now` grew; minutes without a sample at both ends are left out. */
function growths(points, now, minute) {
  const ends = new Map(points.map(([at, value]) => [Math.round((now - at) / minute * 6), value])); // by ten seconds, as samples are
  const grew = [];
  for (let end = 0; end + 6 <= HISTORY_MINUTES * 6; end += 6) {
    if (ends.has(end) && ends.has(end + 6)) grew.push(ends.get(end) - ends.get(end + 6));
  }
  return grew;
}
