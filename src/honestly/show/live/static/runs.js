// Lists of runs: those at work, those that failed, and all of them with a choice for comparing.

import { label } from "./axes.js";
import { chosen, choose } from "./chosen.js";
import { el, foreign, keyed, say, set } from "./dom.js";
import { count, duration, roundsOf, share } from "./format.js";
import { age } from "./state.js";

const MOST = 4;
const MOST_ROWS = 100;

export function runHref(run) {
  return `#/run/${encodeURIComponent(run.id)}`;
}

// The runs at work, each with a bar.
export function working() {
  const list = el("ul", { class: "runs" });
  const more = el("p", { class: "muted" });
  const root = el("section", { "aria-labelledby": "working" }, el("h2", { id: "working" }, "Running now"), list, more);
  return {
    root,
    update(runs, axes, kind) {
      const active = runs.filter((run) => run.status === "running");
      set(root, "hidden", active.length === 0);
      keyed(list, active.slice(0, MOST), (run) => run.id, working.item, (node, run) => node.fill(run, axes, kind));
      say(more, active.length > MOST ? `and ${count(active.length - MOST, "more run")}` : "");
    },
  };
}

working.item = () => {
  const name = el("a");
  const bar = el("span", { class: "bar", "aria-hidden": "true" }, el("span"));
  const news = el("span", { class: "muted" });
  const node = el("li", {}, name, bar, news);
  node.fill = (run, axes, kind) => {
    set(name, "href", runHref(run));
    if (name.textContent !== label(run, axes, kind)) name.replaceChildren(foreign(label(run, axes, kind)));
    bar.firstChild.style.width = run.of ? `${(100 * run.rounds) / run.of}%` : "0";
    const parts = [roundsOf(run)];
    if (run.accuracy !== undefined) parts.push(`accuracy ${share(run.accuracy)}`);
    if (run.asr !== undefined) parts.push(`ASR ${share(run.asr)}`);
    if (run.attempts > 1) parts.push(`attempt ${run.attempts}`);
    if (run.updated && age(run.updated) > 30) parts.push(`no news for ${duration(age(run.updated))}`);
    say(news, parts.join(" · "));
  };
  return node;
};

// Runs that failed or were given up, with the reason.
export function troubled() {
  const list = el("ul", { class: "runs" });
  const more = el("p", { class: "muted" });
  const title = el("h2", { id: "troubled" }, "Failed");
  const root = el("section", { "aria-labelledby": "troubled" }, title, list, more);
  return {
    root,
    update(runs, axes, kind) {
      const troubles = runs.filter((run) => run.status === "failed" || run.error);
      set(root, "hidden", troubles.length === 0);
      keyed(list, troubles.slice(0, MOST), (run) => run.id, troubled.item, (node, run) => node.fill(run, axes, kind));
      say(more, troubles.length > MOST ? `and ${count(troubles.length - MOST, "more run")}` : "");
    },
  };
}

troubled.item = () => {
  const name = el("a");
  const first = el("span", { class: "bad" });
  const whole = el("pre", { tabindex: 0 });
  const rest = el("details", {}, el("summary", {}, "the whole message"), whole);
  const node = el("li", {}, name, first, rest);
  node.fill = (run, axes, kind) => {
    set(name, "href", runHref(run));
    if (name.textContent !== label(run, axes, kind)) name.replaceChildren(foreign(label(run, axes, kind)));
    const lines = (run.error || "no reason given").trim().split("\n");
    say(first, lines.at(-1));
    say(whole, run.error ?? "");
    set(rest, "hidden", lines.length < 2 && lines[0].length < 160);
  };
  return node;
};

// Every run, found by typing a part of its name; a tick puts it into the comparison.
export function everyRun() {
  const body = el("tbody");
  const search = el("input", { type: "search", id: "search", input: () => draw(), autocomplete: "off", spellcheck: "false" });
  const tally = el("p", { class: "muted", role: "status" });
  const heads = ["compare", "run", "status", "rounds", "accuracy", "ASR"].map((name) => el("th", { scope: "col" }, name));
  const table = el("table", { class: "list" }, el("thead", {}, el("tr", {}, ...heads)), body);
  const field = el("p", { class: "field" }, el("label", { for: "search" }, "find"), search);
  const root = el("details", { class: "all" }, el("summary", {}, el("h2", {}, "All runs")), field, tally, el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "All runs" }, table));
  root.addEventListener("toggle", () => draw());
  let current = { runs: [], axes: new Map(), kind: "study" };

  function draw() {
    if (!root.open) return; // 700 rows cost nothing while nobody looks
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const fits = current.runs.filter((run) => {
      const text = `${label(run, current.axes, current.kind)} ${run.status} ${run.id}`.toLowerCase();
      return words.every((word) => text.includes(word));
    });
    const many = fits.length > MOST_ROWS ? `, the first ${MOST_ROWS} are shown` : "";
    say(tally, `${count(fits.length, "run")}${many}`);
    keyed(body, fits.slice(0, MOST_ROWS), (run) => run.id, everyRun.row, (node, run) => node.fill(run, current));
  }

  return {
    root,
    update(runs, axes, kind) {
      current = { runs, axes, kind };
      draw();
    },
  };
}

everyRun.row = (run) => {
  const tick = el("input", { type: "checkbox", change: () => choose(run.id, tick.checked) });
  const name = el("a", { href: runHref(run) });
  const cells = Array.from({ length: 4 }, () => el("td"));
  const node = el("tr", {}, el("td", {}, tick), el("th", { scope: "row" }, name), ...cells);
  node.fill = (now, { axes, kind }) => {
    const text = label(now, axes, kind);
    if (name.textContent !== text) name.replaceChildren(foreign(text));
    tick.checked = chosen().includes(now.id);
    set(tick, "aria-label", `compare ${text}`);
    const values = [now.status, now.of ? `${now.rounds} / ${now.of}` : now.rounds, share(now.accuracy), share(now.asr)];
    cells.forEach((cell, i) => say(cell, values[i]));
  };
  return node;
};
