// Which view is shown, and what stands around it.

import { chosen, compareHref } from "./chosen.js";
import { onTheme } from "./colour.js";
import { compareView } from "./compare.js";
import { say, set } from "./dom.js";
import { percent } from "./format.js";
import { overview, spoken } from "./overview.js";
import { runView } from "./run.js";
import { changed, onChange, state } from "./state.js";
import { watch } from "./stream.js";

const main = document.getElementById("main");
const LINKS = { live: "live", connecting: "connecting", lost: "connection lost, trying again", paused: "paused" };
const QUIET = 15000; // milliseconds between two announcements
let view = null;
let place = null;
let announced = { at: 0, text: "" };

function route() {
  const [, name = "", rest = ""] = /^#\/([^/]*)\/?(.*)$/.exec(location.hash) ?? [];
  const ids = rest.split(",").filter(Boolean).map(decoded);
  // a folder that holds a single run has no overview
  const only = state.head.kind === "federation" && !name ? [...state.runs.keys()][0] : null;
  if (only) return ["run", [only]];
  if (name === "run" && ids.length) return ["run", ids.slice(0, 1)];
  return name === "compare" ? ["compare", ids.length ? ids : chosen()] : ["overview", []];
}

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

function show() {
  const [name, ids] = route();
  const next = JSON.stringify([name, ids]);
  if (next !== place) {
    const moved = place !== null;
    place = next;
    view = { overview, run: () => runView(ids[0]), compare: () => compareView(ids) }[name]();
    main.replaceChildren(view.root);
    set(document.getElementById("to-overview"), "aria-current", name === "overview" ? "page" : null);
    set(document.getElementById("to-compare"), "aria-current", name === "compare" ? "page" : null);
    watch(view.wanted());
    // a keyboard or a screen reader goes on at the top of the new view
    if (moved && state.ready) main.focus({ preventScroll: true });
    if (moved) window.scrollTo(0, 0);
  }
  view.update();
}

function frame() {
  const { head, link } = state;
  const badge = document.getElementById("link");
  say(badge, LINKS[link]);
  set(badge, "data-state", link);
  const problem = document.getElementById("problem");
  say(problem, head.problem ?? "");
  set(problem, "hidden", !head.problem);
  const list = chosen();
  say(document.getElementById("chosen"), list.length ? ` (${list.length})` : "");
  set(document.getElementById("to-compare"), "href", compareHref(list));
  set(document.getElementById("to-compare"), "hidden", state.runs.size < 2);
  set(document.getElementById("to-overview"), "hidden", head.kind === "federation");
  const { progress } = head;
  const part = progress?.of ? percent(progress.rounds, progress.of) : "";
  document.title = [part, head.name, "honestly watch"].filter(Boolean).join(" · ");
  if (progress) announce(spoken(progress));
}

function announce(text) {
  if (text === announced.text || Date.now() - announced.at < QUIET) return;
  announced = { at: Date.now(), text };
  say(document.getElementById("live"), text);
}

onChange(() => {
  frame();
  show();
});
onTheme(() => view.update());
window.addEventListener("hashchange", () => {
  if (location.hash === "" || location.hash.startsWith("#/")) changed();
});
setInterval(changed, 10000); // "no news for ..." grows without events
changed();
