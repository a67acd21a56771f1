// Rules against attacks, a table for every combination of the other axes; cells fill in and open with Enter.

import { named } from "./axes.js";
import { css, ink, scale } from "./colour.js";
import { el, foreign, keyed, say, set } from "./dom.js";
import { count, share } from "./format.js";

export const METRICS = {
  accuracy: { name: "accuracy, last round", good: (v) => v },
  mean20: { name: "accuracy, mean of the last 20 rounds", good: (v) => v },
  asr: { name: "attack success rate", good: (v) => 1 - v },
};
const SIGNS = { pending: "·", running: "…", failed: "✕", stopped: "‖", missing: "" };

// layout: {row, column, rest, axes, metric}; filters: axis -> value
export function grids(open) {
  const started = el("div", { class: "grids" });
  const later = el("div", { class: "grids" });
  const many = el("span");
  const rest = el("details", {}, el("summary", {}, many), later);
  let form = "";
  return {
    root: el("div", {}, started, rest),
    update(runs, layout, filters) {
      const groups = grouped(runs, layout, filters);
      const next = JSON.stringify([layout.row, layout.column, layout.rest, [...layout.axes]]);
      if (next !== form) {
        // other axes make other tables
        started.replaceChildren();
        later.replaceChildren();
        rest.open = !groups.some((group) => group.started);
      }
      form = next;
      const fill = (node, list) =>
        keyed(node, list, (group) => group.key, (group) => section(group, layout, open), (one, group) => one.fill(group, layout));
      // a phone should not have to scroll past tables that are empty
      const empty = groups.filter((group) => !group.started);
      fill(started, groups.filter((group) => group.started));
      fill(later, empty);
      say(many, `${count(empty.length, "table")} to come`);
      set(rest, "hidden", !empty.length);
    },
  };
}

function values(axes, axis) {
  return axis ? axes.get(axis) : [""];
}

function grouped(runs, { row, column, rest, axes }, filters) {
  const groups = new Map();
  for (const run of runs) {
    const at = (axis) => String(run.cell[axis] ?? "");
    if (Object.entries(filters).some(([axis, value]) => value && at(axis) !== value)) continue;
    // a warm-up has no rule and no attack: it stands in the lists, not in a table
    if ((row && !axes.get(row).includes(at(row))) || (column && !axes.get(column).includes(at(column)))) continue;
    const key = JSON.stringify(rest.map(at));
    if (!groups.has(key)) {
      const order = rest.map((axis) => axes.get(axis).indexOf(at(axis)));
      groups.set(key, { key, order, title: rest.filter(at).map((axis) => named(axis, at(axis))).join(" · "), cells: new Map() });
    }
    if (run.status !== "pending") groups.get(key).started = true;
    const place = JSON.stringify([row ? at(row) : "", column ? at(column) : ""]);
    const { cells } = groups.get(key);
    if (!cells.has(place)) cells.set(place, []);
    cells.get(place).push(run);
  }
  const before = (a, b) => a.order.map((n, i) => n - b.order[i]).find((d) => d !== 0) ?? 0;
  return [...groups.values()].sort(before);
}

function section(group, { row, column, axes }, open) {
  const rows = values(axes, row);
  const columns = values(axes, column);
  const heads = columns.map((value) => head("columnheader", column, value));
  const corner = el("th", { scope: "col", class: "corner" }, row ?? "");
  const top = el("tr", {}, corner, ...heads);
  const table = el("table", { role: "grid" }, el("thead", {}, top));
  const body = el("tbody");
  const matrix = [[null, ...heads]];
  for (const value of rows) {
    const side = head("rowheader", row, value);
    const cells = columns.map(() => el("td", { role: "gridcell", tabindex: -1 }, el("span", { class: "value" })));
    body.append(el("tr", {}, side, ...cells));
    matrix.push([side, ...cells]);
  }
  table.append(body);
  const title = group.title ? el("h3", {}, foreign(group.title)) : null;
  const node = el("section", { class: "grid" }, title, el("div", { class: "scroll" }, table));
  set(table, "aria-label", [group.title, `${row ?? "run"} by ${column ?? "value"}`].filter(Boolean).join(": "));
  let current = matrix[1][1];
  set(current, "tabindex", 0);
  let latest = group;

  const runsAt = (i, j) => {
    const wide = i ? [i - 1] : rows.map((_, n) => n);
    const long = j ? [j - 1] : columns.map((_, n) => n);
    return wide.flatMap((r) => long.flatMap((c) => latest.cells.get(JSON.stringify([rows[r], columns[c]])) ?? []));
  };
  const place = (cell) => {
    const i = matrix.findIndex((line) => line.includes(cell));
    return i < 0 ? null : [i, matrix[i].indexOf(cell)];
  };
  const focus = (cell) => {
    set(current, "tabindex", -1);
    current = cell;
    set(current, "tabindex", 0);
    current.focus();
  };
  table.addEventListener("keydown", (event) => {
    const at = place(event.target.closest("td, th"));
    if (!at || event.altKey || event.metaKey) return;
    const [i, j] = at;
    const [bottom, end] = [matrix.length - 1, matrix[0].length - 1];
    const steps = {
      ArrowUp: [i - 1, j], ArrowDown: [i + 1, j], ArrowLeft: [i, j - 1], ArrowRight: [i, j + 1],
      Home: event.ctrlKey ? [1, 1] : [i, 1], End: event.ctrlKey ? [bottom, end] : [i, end], PageUp: [1, j], PageDown: [bottom, j],
    };
    if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      open(runsAt(i, j));
    } else if (event.key in steps) {
      event.preventDefault();
      const [r, c] = steps[event.key];
      const next = matrix[Math.min(Math.max(r, 0), bottom)][Math.min(Math.max(c, 0), end)];
      if (next) focus(next);
    }
  });
  table.addEventListener("click", (event) => {
    const cell = event.target.closest("td, th");
    const at = cell && place(cell);
    if (!at) return;
    focus(cell);
    open(runsAt(...at));
  });
  node.fill = (next, layout) => {
    latest = next;
    rows.forEach((r, i) => columns.forEach((c, j) => {
      const runs = next.cells.get(JSON.stringify([r, c])) ?? [];
      fill(matrix[i + 1][j + 1], runs, layout.metric, [row && named(row, r), column && named(column, c)]);
    }));
  };
  return node;
}

function head(role, axis, value) {
  const what = role === "columnheader" ? "column" : "row";
  const scope = what === "column" ? "col" : "row";
  return el("th", { role, scope, tabindex: -1, title: `Compare this ${what}` }, foreign(axis ? named(axis, value) : "runs"));
}

function summarise(runs, metric) {
  const known = runs.map((run) => run[metric]).filter((v) => v !== undefined && v !== null);
  const mean = known.length ? known.reduce((a, b) => a + b, 0) / known.length : null;
  const having = (status) => runs.filter((run) => run.status === status).length;
  const status = !runs.length ? "missing"
    : ["running", "failed", "stopped"].find(having) ?? (having("done") === runs.length ? "done" : "pending");
  const of = runs.reduce((sum, run) => sum + (run.of ?? run.rounds), 0);
  const part = of ? runs.reduce((sum, run) => sum + run.rounds, 0) / of : 0;
  return { mean, status, part, done: having("done"), all: runs.length };
}

function fill(cell, runs, metric, names) {
  const { mean, status, part, done, all } = summarise(runs, metric);
  const text = mean === null ? SIGNS[status] ?? "" : share(mean, 2) + (status === "failed" ? " ✕" : "");
  say(cell.firstChild, text);
  set(cell, "data-status", status);
  const how = all > 1 ? `${done} of ${all} runs done` : status;
  const value = mean === null ? "no value yet" : `${METRICS[metric].name} ${share(mean)}`;
  set(cell, "aria-label", [...names.filter(Boolean), all ? value : "no run", all ? how : ""].filter(Boolean).join(", "));
  set(cell, "title", all ? `${value}, ${how}, ${Math.floor(100 * part)} % of the rounds` : null);
  // a first round says nothing yet: it is not coloured as bad
  const early = status === "running" && runs.every((run) => run.status !== "done" && run.rounds <= 1);
  const rgb = mean === null || early ? null : scale(METRICS[metric].good(mean));
  cell.style.background = rgb ? css(rgb) : "";
  cell.style.color = rgb ? ink(rgb) : "";
  cell.style.setProperty("--part", all ? String(part) : "0");
}
