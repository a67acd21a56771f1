// What a run's page offers to save: its rounds as CSV and JSON, the curves as SVG, the maps as PNG.

import { el } from "./dom.js";

const STYLE = "text{font:11px system-ui,sans-serif;fill:#1b1f24}.axis{fill:#57606a}.rule{stroke:#d0d7de}";

// current() -> {head, rounds}; picture() -> the <svg> of the curves; canvases() -> those of the maps, top to bottom
export function saveLinks(current, picture, canvases) {
  const files = {
    "rounds.csv": () => new Blob([csv(current())], { type: "text/csv" }),
    "rounds.json": () => new Blob([JSON.stringify(current(), null, 1)], { type: "application/json" }),
    "curves.svg": () => new Blob([standalone(picture())], { type: "image/svg+xml" }),
    "maps.png": () => png(canvases()),
  };
  const buttons = Object.entries(files).map(([name, make]) =>
    el("button", { type: "button", click: async () => offer(name, await make()) }, name));
  return el("p", { class: "downloads" }, el("span", {}, "Save:"), ...buttons);
}

// One row per round; names of clients are joined by spaces.
export function csv({ head, rounds }) {
  const name = (client) => head.names?.[head.shown.indexOf(client)] ?? String(client);
  const names = (clients) => (clients ?? []).map(name).join(" ");
  const rows = rounds.map((r) => [
    r.round, r.accuracy ?? "", r.asr ?? "", names(r.attacked), names(r.accused), names(Object.keys(r.excluded ?? {}).map(Number)),
  ]);
  const columns = ["round", "accuracy", "asr", "attacked", "accused", "excluded"];
  return [columns, ...rows].map((row) => row.map(cell).join(",") + "\n").join("");
}

// A spreadsheet must not take a stranger's name for a formula.
function cell(value) {
  const text = typeof value === "string" && /^[=+\-@\t\r]/.test(value) ? `'${value}` : String(value);
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

function standalone(picture) {
  const copy = picture.cloneNode(true);
  copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  const style = document.createElementNS("http://www.w3.org/2000/svg", "style");
  style.textContent = STYLE;
  copy.prepend(style);
  return new XMLSerializer().serializeToString(copy);
}

function png(canvases) {
  const all = document.createElement("canvas");
  all.width = Math.max(1, ...canvases.map((one) => one.width));
  all.height = Math.max(1, canvases.reduce((sum, one) => sum + one.height, 0));
  const pen = all.getContext("2d");
  pen.fillStyle = getComputedStyle(document.body).backgroundColor;
  pen.fillRect(0, 0, all.width, all.height);
  canvases.reduce((down, one) => (pen.drawImage(one, 0, down), down + one.height), 0);
  return new Promise((resolve) => { all.toBlob(resolve, "image/png"); });
}

function offer(name, blob) {
  const link = el("a", { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
