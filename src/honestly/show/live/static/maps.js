// A run's heatmaps, drawn by the server, with one cursor: it follows the pointer and the arrow keys, and is read aloud.

import { theme } from "./colour.js";
import { el, say, set, svg } from "./dom.js";
import { addressOf, drawing } from "./drawing.js";

export function maps() {
  const readout = el("p", { class: "readout", "aria-live": "polite" });
  const none = el("p", { class: "muted" });
  const pictures = drawing(furnish);
  const root = el("div", { class: "maps" }, pictures.root, none, readout);
  let current = null;
  let cursor = null;

  const plots = () => [...pictures.root.querySelectorAll("svg.plot")];

  // what only a page with a script has: a focus and a cursor
  function furnish() {
    const { head, rounds } = current;
    const size = `${head.shown.length} clients, ${rounds.length} rounds.`;
    for (const plot of plots()) {
      const title = plot.closest("figure").querySelector("figcaption").textContent;
      set(plot, "tabindex", 0);
      set(plot, "role", "application");
      set(plot, "aria-roledescription", "heatmap");
      set(plot, "aria-label", `${title}. ${size} Arrow keys move through clients and rounds.`);
    }
    point();
  }

  function point() {
    for (const plot of plots()) {
      plot.querySelector(".cursor")?.remove();
      if (!cursor) continue;
      const [rows, columns] = shape(plot);
      const percent = (part, whole) => `${(100 * part) / whole}%`;
      plot.append(svg("rect", {
        class: "cursor", x: percent(cursor.t, columns), y: percent(cursor.k, rows), width: percent(1, columns), height: percent(1, rows),
      }));
    }
  }

  function move(next) {
    cursor = next;
    point();
    say(readout, cursor ? tell(current, cursor) : "");
  }

  function follow(event) {
    const plot = event.target.closest("svg.plot");
    if (!plot) return;
    const [rows, columns] = shape(plot);
    const box = plot.getBoundingClientRect();
    const t = Math.floor(((event.clientX - box.left) / box.width) * columns);
    const k = Math.floor(((event.clientY - box.top) / box.height) * rows);
    if (t >= 0 && t < current.rounds.length && k >= 0 && k < current.head.shown.length) move({ k, t });
  }

  pictures.root.addEventListener("pointermove", follow);
  pictures.root.addEventListener("pointerdown", follow);
  pictures.root.addEventListener("keydown", (event) => {
    const [bottom, end] = [current.head.shown.length - 1, current.rounds.length - 1];
    const { k, t } = cursor ?? { k: 0, t: end };
    const steps = {
      ArrowUp: [k - 1, t], ArrowDown: [k + 1, t], ArrowLeft: [k, t - 1], ArrowRight: [k, t + 1],
      Home: [k, 0], End: [k, end], PageUp: [0, t], PageDown: [bottom, t],
    };
    if (!(event.key in steps) || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    const [row, column] = cursor ? steps[event.key] : [k, t];
    move({ k: clamp(row, bottom), t: clamp(column, end) });
  });

  // version: see `versionOf`
  function update(id, detail, version) {
    current = detail;
    const { head, rounds } = detail;
    pictures.update(`${addressOf("maps", [[id, id]])}&theme=${theme()}`, version);
    const notes = [];
    if (!head.truth) notes.push("Nobody knows who really attacked in a real federation.");
    if (!head.belief) notes.push("This rule works coordinate by coordinate: it neither weighs nor judges clients.");
    if (head.shown.length < head.clients) notes.push(`${head.shown.length} of ${head.clients} clients are shown.`);
    say(none, notes.join(" "));
    set(none, "hidden", !notes.length);
    if (cursor && (cursor.t >= rounds.length || cursor.k >= head.shown.length)) move(null);
  }

  return { root, update };
}

// Rows and columns, the rounds to come among them.
function shape(plot) {
  return plot.dataset.shape.split(" ").map(Number);
}

function clamp(value, most) {
  return Math.min(Math.max(value, 0), most);
}

function tell({ head, rounds }, { k, t }) {
  const round = rounds[t];
  const client = head.shown[k];
  const parts = [`client ${head.names?.[k] ?? client}, round ${round.round}`];
  const value = round.belief?.[k];
  if (value !== null && value !== undefined) parts.push(`${head.belief} ${(value / 1000).toFixed(3)}`);
  const weight = round.weight?.[k];
  if (weight !== null && weight !== undefined) parts.push(`weight ${(weight / 1000).toFixed(3)} of the largest`);
  if ((value === null || value === undefined) && round.here && !round.here.includes(client)) parts.push("did not take part");
  if (head.truth) parts.push(round.attacked.includes(client) ? "attacked" : "behaved");
  if (round.accused?.includes(client)) parts.push(round.why?.[client] ? `accused: ${round.why[client]}` : "accused");
  if (round.excluded?.[client] !== undefined) parts.push(`excluded: ${round.excluded[client] || "no reason given"}`);
  return parts.join(", ");
}
