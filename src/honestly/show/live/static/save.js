// What a view offers to save: numbers as CSV and JSON, drawings as SVG and PNG.

import { el } from "./dom.js";
import { addressOf } from "./drawing.js";
import { offer, pngOf, toPng } from "./picture.js";

// files: name -> a function that makes a blob, or the promise of one
export function saveLinks(files) {
  const buttons = Object.entries(files).map(([name, make]) =>
    el("button", { type: "button", click: async () => offer(name, await make()) }, name));
  return el("p", { class: "downloads" }, el("span", {}, "Save:"), ...buttons);
}

// details() -> [{name, head, rounds}, ...]; runs() -> [[id, name], ...]; canvases() -> those of the maps
export function roundFiles(details, runs, canvases) {
  return {
    "rounds.csv": () => text(csv(...details()), "text/csv"),
    "rounds.json": () => json(details().length === 1 ? details()[0] : details()),
    "curves.svg": async () => (await fetch(addressOf("curves.svg", runs()))).blob(),
    "maps.png": () => png(canvases()),
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

function png(canvases) {
  const all = document.createElement("canvas");
  all.width = Math.max(1, ...canvases.map((one) => one.width));
  all.height = Math.max(1, canvases.reduce((sum, one) => sum + one.height, 0));
  const pen = all.getContext("2d");
  pen.fillStyle = getComputedStyle(document.body).backgroundColor;
  pen.fillRect(0, 0, all.width, all.height);
  canvases.reduce((down, one) => (pen.drawImage(one, 0, down), down + one.height), 0);
  return pngOf(all);
}
