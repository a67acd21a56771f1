// What a view offers to save: numbers as CSV and JSON, drawings as SVG and PNG.

import { el } from "./dom.js";
import { addressOf } from "./drawing.js";
import { offer, toPng } from "./picture.js";

// files: name -> a function that makes a blob, or the promise of one
export function saveLinks(files) {
  const buttons = Object.entries(files).map(([name, make]) =>
    el("button", { type: "button", click: async () => offer(name, await make()) }, name));
  return el("p", { class: "downloads" }, el("span", {}, "Save:"), ...buttons);
}

// details() -> [{name, head, rounds}, ...]; runs() -> [[id, name], ...]; the drawings are the server's
export function roundFiles(details, runs) {
  return {
    "rounds.csv": () => text(csv(...details()), "text/csv"),
    "rounds.json": () => json(details().length === 1 ? details()[0] : details()),
    "curves.svg": async () => (await fetch(addressOf("curves.svg", runs()))).blob(),
    "maps.png": () => toPng(addressOf("maps.svg", runs())),
  };
}

// runs() -> the runs of the overview; the drawing of all results is the server's
export function resultFiles(runs) {
  const keys = ["status", "rounds", "of", "accuracy", "mean20", "asr"];
  const table = () => {
    const axes = [...new Set(runs().flatMap((run) => Object.keys(run.cell)))];
    const rows = runs().map((run) => [run.id, ...axes.map((axis) => run.cell[axis] ?? ""), ...keys.map((key) => run[key] ?? "")]);
    return lines([["run", ...axes, ...keys], ...rows]);
  };
  return {
    "results.csv": () => text(table(), "text/csv"),
    "results.json": () => json(runs()),
    "results.svg": async () => (await fetch("/results.svg")).blob(),
    "results.png": () => toPng("/results.svg"),
  };
}

// One row per round; names of clients are joined by spaces. Of several runs, the first column is their name.
export function csv(...details) {
  const several = details.length > 1;
  const columns = ["round", "accuracy", "asr", "attacked", "accused", "excluded"];
  const rows = details.flatMap(({ name, head, rounds }) => rounds.map((r) => {
    const names = (clients) => (clients ?? []).map((k) => head.names?.[head.shown.indexOf(k)] ?? String(k)).join(" ");
    const clients = [names(r.attacked), names(r.accused), names(Object.keys(r.excluded ?? {}).map(Number))];
    return [...(several ? [name] : []), r.round, r.accuracy ?? "", r.asr ?? "", ...clients];
  }));
  return lines([[...(several ? ["run"] : []), ...columns], ...rows]);
}

function lines(rows) {
  return rows.map((row) => row.map(cell).join(",") + "\n").join("");
}

// A spreadsheet must not take a stranger's name for a formula.
function cell(value) {
  const word = typeof value === "string" && /^[=+\-@\t\r]/.test(value) ? `'${value}` : String(value);
  return /[",\r\n]/.test(word) ? `"${word.replaceAll('"', '""')}"` : word;
}

function text(content, type) {
  return new Blob([content], { type });
}

function json(value) {
  return text(JSON.stringify(value, null, 1), "application/json");
}
