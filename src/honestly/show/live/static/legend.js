// What the colours of tables mean.

import { el } from "./dom.js";

export function ramp(low, high) {
  const bar = el("span", { class: "ramp", role: "img", "aria-label": `colours from ${low}, orange, to ${high}, blue` });
  return el("li", {}, low, bar, high);
}
