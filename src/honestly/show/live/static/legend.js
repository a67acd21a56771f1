// What the colours and marks of tables and maps mean.

import { el, svg } from "./dom.js";

export function ramp(low, high) {
  const bar = el("span", { class: "ramp", role: "img", "aria-label": `colours from ${low}, orange, to ${high}, blue` });
  return el("li", {}, low, bar, high);
}

// A dot or a ring, as in the maps.
export function mark(text, kind = "") {
  const circle = svg("circle", { class: `mark ${kind}`.trim(), cx: 7, cy: 7, r: 3 });
  const box = svg("rect", { class: "lo", width: 14, height: 14, rx: 2 });
  return el("li", {}, svg("svg", { width: 14, height: 14, "aria-hidden": "true" }, box, circle), text);
}
