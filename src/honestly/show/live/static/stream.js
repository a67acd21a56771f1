// One stream of events for a tab that is seen. A hidden tab has none: a browser opens six connections to a server and
// no more, so that a seventh tab would wait for ever.

import { changed, state, takeBeat, takeRounds, takeState } from "./state.js";

const SILENCE = 30000; // three missed beats

let source = null;
let wanted = [];
let cursor = "";
let watchdog = 0;
let again = 0;
let late = 0;

export function watch(runs) {
  const next = [...new Set(runs)].slice(0, 24);
  if (source && next.join("\n") === wanted.join("\n")) return;
  wanted = next;
  connect();
}

function connect() {
  close();
  if (document.hidden) {
    link("paused");
    return;
  }
  const query = new URLSearchParams(wanted.map((run) => ["run", run]));
  if (cursor) query.set("since", cursor);
  source = new EventSource(`/events?${query}`);
  listen("state", takeState);
  listen("rounds", takeRounds);
  listen("beat", takeBeat);
  source.addEventListener("error", () => {
    link("lost");
    // a refusal ends an EventSource for good; a broken connection it mends itself
    if (source?.readyState === EventSource.CLOSED) reconnect(5000);
  });
  feed();
}

function listen(name, take) {
  source.addEventListener(name, (event) => {
    take(JSON.parse(event.data));
    if (event.lastEventId) cursor = event.lastEventId;
    feed();
    state.link = "live";
    // one drawing for all events of a batch
    if (!late) late = requestAnimationFrame(() => ((late = 0), changed()));
  });
}

function feed() {
  clearTimeout(watchdog);
  watchdog = setTimeout(() => {
    link("lost");
    reconnect(1000);
  }, SILENCE);
}

function reconnect(wait) {
  close();
  again = setTimeout(connect, wait);
}

function close() {
  clearTimeout(again);
  clearTimeout(watchdog);
  source?.close();
  source = null;
}

function link(value) {
  state.link = value;
  changed();
}

document.addEventListener("visibilitychange", connect);
// a page in the back/forward cache must not hold a connection
window.addEventListener("pagehide", close);
window.addEventListener("pageshow", (event) => event.persisted && connect());
