// Values as people read them.

/** A duration as kubectl writes it: 45s, 3m20s, 5h12m, 3d4h. */
export function duration(seconds) {
  const total = Math.max(0, Math.floor(seconds));
  const minutes = Math.floor(total / 60), hours = Math.floor(total / 3600), days = Math.floor(total / 86400);
  if (total < 120) return `${total}s`;
  if (hours < 2) return minutes < 10 ? `${minutes}m${total % 60}s` : `${minutes}m`;
  return days < 2 ? `${hours}h${minutes % 60}m` : `${days}d${hours % 24}h`;
}

/** How long ago a moment was. */
export function since(moment) {
  return moment ? duration((Date.now() - Date.parse(moment)) / 1000) : "";
}

/** A moment in the time zone of the browser. */
export function clock(moment) {
  if (!moment) return "";
  const at = new Date(moment);
  const today = at.toDateString() === new Date().toDateString();
  const time = at.toLocaleTimeString([], { hour12: false });
  return today ? time : `${at.toLocaleDateString()} ${time}`;
}

/** A number in a few characters: 0.213, 812, 12.4k; a dash for none. */
export function short(value) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (size >= 1e6) return `${trim(value / 1e6)}M`;
  if (size >= 1e4) return `${trim(value / 1e3)}k`;
  if (size >= 100 || Number.isInteger(value)) return String(Math.round(value));
  if (size && size < 1e-3) return value.toExponential(1);
  return trim(value);
}

function trim(value) {
  return String(Number(value.toPrecision(3)));
}

export function percent(value) {
  return value === null || value === undefined ? "–" : `${value.toFixed(value < 99.95 ? 1 : 0)} %`;
}
