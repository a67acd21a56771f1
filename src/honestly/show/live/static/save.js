// What a view offers to save: numbers as CSV and JSON, drawings as SVG and PNG.

import { el } from "./dom.js";
import { offer, pngOf, toPng } from "./picture.js";

const STYLE = "text{font:11px system-ui,sans-serif;fill:#1b1f24}.axis{fill:#57606a}.rule{stroke:#d0d7de}";
const SPACE = "http://www.w3.org/2000/svg";

// files: name -> a function that makes a blob, or the promise of one
export function saveLinks(files) {
  const buttons = Object.entries(files).map(([name, make]) =>
    el("button", { type: "button", click: async () => offer(name, await make()) }, name));
  return el("p", { class: "downloads" }, el("span", {}, "Save:"), ...buttons);
}

// details() -> [{name, head, rounds}, ...]; pictures() -> every <svg> of curves; canvases() -> those of the maps
export function roundFiles(details, pictures, canvases) {
  return {
    "rounds.csv": () => text(csv(...details()), "text/csv"),
    "rounds.json": () => json(details().length === 1 ? details()[0] : details()),
    "curves.svg": () => text(standalone(pictures()), "image/svg+xml"),
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

// The drawings below each other.
function standalone(pictures) {
  const all = document.createElementNS(SPACE, "svg");
  const style = document.createElementNS(SPACE, "style");
  style.textContent = STYLE;
  all.append(style);
  const size = (name) => pictures.map((one) => Number(one.getAttribute(name)));
  all.setAttribute("xmlns", SPACE);
  all.setAttribute("width", Math.max(...size("width")));
  all.setAttribute("height", size("height").reduce((sum, one) => sum + one, 0));
  pictures.reduce((down, one) => {
    const copy = one.cloneNode(true);
    copy.setAttribute("y", down);
    all.append(copy);
    return down + Number(one.getAttribute("height"));
  }, 0);
  return new XMLSerializer().serializeToString(all);
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
