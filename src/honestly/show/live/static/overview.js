// The study as a whole: how far it is, what runs, what failed, and the tables filling in.

import { axesOf, choose, named } from "./axes.js";
import { compareHref } from "./chosen.js";
import { el, foreign, say, select, set } from "./dom.js";
import { count, duration, percent } from "./format.js";
import { METRICS, grids } from "./grid.js";
import { ramp } from "./legend.js";
import { everyRun, runHref, troubled, working } from "./runs.js";
import { resultFiles, saveLinks } from "./save.js";
import { state } from "./state.js";

const known = (value) => value !== null && value !== undefined;
const PARTS = ["done", "running", "stopped", "failed", "pending"];

export function overview() {
  const title = el("h1", {}, "Overview");
  const meter = progressMeter();
  const [busy, bad, all] = [working(), troubled(), everyRun()];
  const tables = grids((runs) => {
    if (runs.length === 1) location.hash = runHref(runs[0]);
    else if (runs.length) location.hash = compareHref(runs.map((run) => run.id));
  });
  const controls = el("div", { class: "controls", role: "group", "aria-label": "What the tables show" });
  const results = el("section", { "aria-labelledby": "results" }, el("h2", { id: "results" }, "Results so far"), controls, key(), tables.root);
  const save = saveLinks(resultFiles(() => [...state.runs.values()]));
  const root = el("div", {}, title, meter.root, busy.root, bad.root, results, all.root, save);
  const chosen = { row: "", column: "", metric: "accuracy", filters: {} };
  let form = "";

  function update() {
    const runs = [...state.runs.values()];
    const { kind, name } = state.head;
    const axes = axesOf(runs);
    if (title.textContent !== (name ?? "Overview")) title.replaceChildren(foreign(name ?? "Overview"));
    meter.update(state.head.progress);
    const layout = { ...choose(axes, chosen.row, chosen.column), axes, metric: chosen.metric };
    const metrics = Object.entries(METRICS).filter(([id]) => id === "accuracy" || runs.some((run) => known(run[id])));
    const next = JSON.stringify([[...axes], chosen, metrics.length]);
    if (next !== form) buildControls(axes, layout, metrics);
    form = next;
    busy.update(runs, axes, kind);
    bad.update(runs, axes, kind);
    set(results, "hidden", runs.length === 0);
    set(save, "hidden", !runs.some((run) => known(run.accuracy)));
    tables.update(runs, layout, chosen.filters);
    all.update(runs, axes, kind);
  }

  function buildControls(axes, { row, column, rest }, metrics) {
    const names = [...axes.keys()].filter((axis) => axis !== "seed").map((axis) => [axis, axis]);
    const focused = controls.contains(document.activeElement) ? document.activeElement.previousSibling?.textContent : null;
    const fields = [select("show", metrics.map(([id, m]) => [id, m.name]), chosen.metric, (v) => change("metric", v))];
    if (names.length > 1) {
      fields.push(select("rows", names, row, (v) => change("row", v)), select("columns", names, column, (v) => change("column", v)));
    }
    for (const axis of Object.keys(chosen.filters)) if (!rest.includes(axis)) delete chosen.filters[axis];
    for (const axis of rest) {
      const options = [["", "all"], ...axes.get(axis).map((v) => [v, named(axis, v)])];
      fields.push(select(axis, options, chosen.filters[axis] ?? "", (v) => {
        chosen.filters[axis] = v;
        update();
      }));
    }
    controls.replaceChildren(...fields);
    if (focused) [...controls.querySelectorAll("label")].find((l) => l.textContent === focused)?.nextSibling.focus();
  }

  function change(what, value) {
    chosen[what] = value;
    update();
  }

  return { root, update, wanted: () => [] };
}

function key() {
  const items = [["done", "done"], ["running", "running"], ["stopped", "stopped ‖"], ["failed", "failed ✕"], ["pending", "to come ·"]];
  const marks = items.map(([status, text]) => el("li", {}, el("span", { class: "swatch", "data-status": status, "aria-hidden": "true" }), text));
  marks.push(ramp("bad", "good"));
  const text = "Arrow keys move in a table, Enter opens a cell, row or column.";
  return el("div", { class: "key" }, el("ul", { class: "legend" }, ...marks), el("p", { class: "muted" }, text));
}

function progressMeter() {
  const headline = el("p", { class: "headline" });
  const parts = Object.fromEntries(PARTS.map((name) => [name, el("span", { "data-status": name })]));
  const bar = el("div", { class: "meter", role: "progressbar", "aria-valuemin": 0, "aria-label": "finished runs" }, ...PARTS.map((p) => parts[p]));
  const line = el("p", { class: "muted" });
  const root = el("section", { "aria-label": "Progress" }, headline, bar, line);
  return {
    root,
    update(progress) {
      set(root, "hidden", !progress);
      if (!progress) return;
      const { counts, runs } = progress;
      say(headline, spoken(progress));
      set(bar, "aria-valuemax", runs);
      set(bar, "aria-valuenow", counts.done);
      set(bar, "aria-valuetext", spoken(progress));
      for (const name of PARTS) parts[name].style.flexGrow = String(counts[name]);
      const tally = PARTS.filter((name) => counts[name]).map((name) => `${counts[name]} ${name}`);
      if (progress.of) tally.push(`${progress.rounds.toLocaleString("en")} of ${count(progress.of, "round")} (${percent(progress.rounds, progress.of)})`);
      say(line, tally.join(" · "));
    },
  };
}

export function spoken({ counts, runs, left }) {
  const parts = [`${counts.done} of ${count(runs, "run")} done`];
  if (counts.failed) parts.push(`${counts.failed} failed`);
  if (left !== null) parts.push(`about ${duration(left)} left`);
  else if (counts.done + counts.failed < runs && !counts.running) parts.push("nobody is working on it now");
  return parts.join(", ");
}
