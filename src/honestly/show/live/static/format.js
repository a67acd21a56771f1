// Numbers and times as a person reads them.

export function share(value, digits = 3) {
  return value === null || value === undefined ? "–" : value.toFixed(digits);
}

export function percent(part, whole) {
  return whole ? `${Math.floor((100 * part) / whole)} %` : "–";
}

export function count(n, one, many = `${one}s`) {
  return `${n.toLocaleString("en")} ${n === 1 ? one : many}`;
}

export function duration(seconds) {
  if (seconds < 60) return count(Math.max(1, Math.round(seconds)), "second");
  if (seconds < 5400) return count(Math.round(seconds / 60), "minute");
  if (seconds < 36 * 3600) {
    const hours = Math.floor(seconds / 3600);
    const minutes = Math.round((seconds - hours * 3600) / 60);
    return minutes ? `${hours} h ${minutes} min` : count(hours, "hour");
  }
  return count(Math.round(seconds / 86400), "day");
}

export function roundsOf(run) {
  return run.of ? `round ${run.rounds} of ${run.of}` : count(run.rounds, "round");
}
