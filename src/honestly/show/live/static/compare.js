// Several runs side by side: their curves in one picture, their numbers in one table, a heatmap each.

import { axesOf, label } from "./axes.js";
import { MOST, choose, setChosen } from "./chosen.js";
import { el, foreign, keyed, say, set } from "./dom.js";
import { addressOf, drawing } from "./drawing.js";
import { share } from "./format.js";
import { maps } from "./maps.js";
import { versionOf } from "./run.js";
import { runHref } from "./runs.js";
import { roundFiles, saveLinks } from "./save.js";
import { state } from "./state.js";

const COLUMNS = ["run", "rounds", "accuracy", "mean of last 20", "ASR", "falsely accused per round", "missed per round", ""];

export function compareView(ids) {
  if (ids.length) setChosen(ids);
  const title = el("h1", {}, "Comparison");
  const hint = el("p", { class: "muted" });
  const curves = drawing();
  const body = el("tbody");
  const top = COLUMNS.map((name) => el("th", { scope: "col" }, name || el("span", { class: "unseen" }, "remove")));
  const table = el("table", { class: "list" }, el("thead", {}, el("tr", {}, ...top)), body);
  const scroll = el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Numbers of the runs" }, table);
  const pictures = el("div", { class: "several" });
  const details = () => runsOf(ids).filter((run) => state.details.has(run.id)).map((run) => ({ name: label(run, axesFor(ids), state.head.kind), ...state.details.get(run.id) }));
  const named = () => runsOf(ids).map((run) => [run.id, label(run, axesFor(ids), state.head.kind)]);
  const save = saveLinks(roundFiles(details, named));
  const root = el("div", {}, title, hint, curves.root, scroll, pictures, save);

  function update() {
    const runs = runsOf(ids);
    const axes = axesFor(ids);
    const name = (run) => label(run, axes, state.head.kind);
    const empty = state.ready && !runs.length;
    say(hint, empty ? `Choose up to ${MOST} runs: tick them in “All runs”, or open a row or column of a table.` : "");
    for (const part of [curves.root, scroll, save]) set(part, "hidden", !runs.length);
    if (runs.length) curves.update(addressOf("curves", named()), JSON.stringify(runs.map((run) => versionOf(run, state.details.get(run.id)))));
    keyed(body, runs, (run) => run.id, row, (node, run) => node.fill(run, name(run)));
    keyed(pictures, runs.filter((run) => state.details.has(run.id)), (run) => run.id, picture, (node, run) => node.fill(run, name(run)));
  }

  return { root, update, wanted: () => ids };
}

function runsOf(ids) {
  return ids.map((id) => state.runs.get(id)).filter(Boolean);
}

function axesFor(ids) {
  const runs = runsOf(ids);
  return axesOf(runs.length > 1 ? runs : [...state.runs.values()]);
}

function row(run) {
  const name = el("a", { href: runHref(run) });
  const cells = Array.from({ length: 6 }, () => el("td"));
  const remove = el("button", { type: "button", click: () => {
    choose(run.id, false);
    location.hash = "#/compare";
  } }, "remove");
  const node = el("tr", {}, el("th", { scope: "row" }, name), ...cells, el("td", {}, remove));
  node.fill = (now, text) => {
    if (name.textContent !== text) name.replaceChildren(foreign(text));
    set(remove, "aria-label", `remove ${text}`);
    const values = [now.of ? `${now.rounds} / ${now.of}` : now.rounds, ...["accuracy", "mean20", "asr"].map((k) => share(now[k])), ...["false_accusations", "misses"].map((k) => share(now[k], 2))];
    cells.forEach((cell, i) => say(cell, values[i]));
  };
  return node;
}

function picture(run) {
  const title = el("h2");
  const heat = maps();
  const node = el("section", {}, title, heat.root);
  node.fill = (now, text) => {
    if (title.textContent !== text) title.replaceChildren(foreign(text));
    const detail = state.details.get(run.id);
    heat.update(run.id, detail, versionOf(now, detail));
  };
  return node;
}
