// What the server has told so far, and who wants to know of changes.

export const state = { head: {}, runs: new Map(), details: new Map(), link: "connecting", ready: false, skew: 0 };

const listeners = new Set();

export function onChange(call) {
  listeners.add(call);
}

export function changed() {
  for (const call of listeners) call();
}

export function takeState(data) {
  if (data.anew) {
    state.runs.clear();
    state.details.clear();
  }
  if (data.head) state.head = data.head;
  for (const run of data.runs ?? []) state.runs.set(run.id, run);
  state.ready = true;
}

export function takeRounds(data) {
  const detail = state.details.get(data.run) ?? { head: null, rounds: [] };
  if (data.head) detail.head = data.head;
  detail.rounds.length = Math.min(detail.rounds.length, data.start);
  detail.rounds.push(...data.rounds);
  if (detail.head) state.details.set(data.run, detail);
}

export function takeBeat(data) {
  state.skew = Date.now() / 1000 - data.now;
}

export function age(time) {
  return Date.now() / 1000 - state.skew - time;
}
