// Clients by rounds as colours on a canvas that fills in from the left; arrow keys move a cursor that is read aloud.

import { css, ink, scale } from "./colour.js";
import { el, say } from "./dom.js";

const BELOW = 34;
const LETTERS = 22; // of a name; a node id of Flower has 20

// cells(row, round index) -> {value: 0..1 or null, mark: "dot", "ring" or nothing}; move: called with a new cursor
export function heatmap(title, { move }) {
  const canvas = el("canvas", { tabindex: 0, role: "application", "aria-roledescription": "heatmap" });
  const root = el("figure", { class: "heat" }, el("figcaption", {}, title), el("div", { class: "picture" }, canvas));
  let shape = { names: [], columns: 0, last: 1, cells: () => ({ value: null }) };
  let cursor = null;

  const left = () => 12 + 6.6 * Math.max(6, ...shape.names.map((n) => Math.min(n.length, LETTERS)));
  const side = (width) => (width - left() - 4) / Math.max(shape.last, 1);
  const tall = () => Math.min(16, Math.max(3, Math.floor(320 / Math.max(shape.names.length, 1))));

  function draw() {
    const width = Math.max(200, canvas.parentElement.clientWidth || 400);
    const height = shape.names.length * tall() + BELOW;
    const ratio = window.devicePixelRatio || 1;
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
    const pen = canvas.getContext("2d");
    pen.scale(ratio, ratio);
    const style = getComputedStyle(canvas);
    pen.fillStyle = style.getPropertyValue("--hollow");
    pen.fillRect(left(), 0, side(width) * shape.last, shape.names.length * tall());
    paint(pen, width, style);
    letters(pen, width, style);
    axes(pen, width, style);
    outline(pen, width, style);
  }

  function paint(pen, width, style) {
    const w = side(width);
    const h = tall();
    const gap = w >= 8 ? 1 : 0;
    for (let t = 0; t < shape.columns; t += 1) {
      for (let k = 0; k < shape.names.length; k += 1) {
        const cell = shape.cells(k, t);
        const rgb = cell.value === null ? null : scale(cell.value);
        if (rgb) {
          pen.fillStyle = css(rgb);
          pen.fillRect(left() + t * w, k * h, w - gap, h - (h >= 5 ? 1 : 0));
        }
        if (cell.mark && w >= 4 && h >= 5) {
          pen.fillStyle = pen.strokeStyle = rgb ? ink(rgb) : style.color;
          pen.beginPath();
          pen.arc(left() + (t + 0.5) * w - gap / 2, (k + 0.5) * h - 0.5, Math.min(w, h) / 5, 0, 7);
          if (cell.mark === "dot") pen.fill();
          else pen.stroke();
        }
      }
    }
  }

  function letters(pen, width, style) {
    pen.fillStyle = style.color;
    pen.font = `11px ${style.fontFamily}`;
    pen.textBaseline = "middle";
    const every = Math.max(1, Math.ceil(11 / tall()));
    pen.textAlign = "right";
    shape.names.forEach((name, k) => {
      if (k % every === 0) pen.fillText(short(name), left() - 5, (k + 0.5) * tall(), left() - 6);
    });
    pen.textAlign = "center";
    for (const t of ticks(shape.last, width - left())) {
      pen.fillText(String(t), left() + (t - 0.5) * side(width), shape.names.length * tall() + 10);
    }
  }

  // what the axes are, below the names and the rounds
  function axes(pen, width, style) {
    pen.fillStyle = style.getPropertyValue("--muted");
    pen.textAlign = "right";
    pen.fillText("client", left() - 5, shape.names.length * tall() + 10);
    pen.textAlign = "center";
    pen.fillText("round", left() + (side(width) * shape.last) / 2, shape.names.length * tall() + 26);
  }

  function outline(pen, width, style) {
    if (!cursor) return;
    pen.strokeStyle = style.color;
    pen.lineWidth = 2;
    pen.strokeRect(left() + cursor.t * side(width), cursor.k * tall(), Math.max(side(width), 3), tall());
  }

  function go(k, t) {
    if (!shape.columns || !shape.names.length) return;
    move({ k: clamp(k, shape.names.length), t: clamp(t, shape.columns) });
  }

  canvas.addEventListener("keydown", (event) => {
    const { k, t } = cursor ?? { k: 0, t: shape.columns - 1 };
    const steps = {
      ArrowUp: [k - 1, t], ArrowDown: [k + 1, t], ArrowLeft: [k, t - 1], ArrowRight: [k, t + 1],
      Home: [k, 0], End: [k, shape.columns - 1], PageUp: [0, t], PageDown: [shape.names.length - 1, t],
    };
    if (!(event.key in steps) || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    go(...(cursor ? steps[event.key] : [k, t]));
  });
  canvas.addEventListener("pointermove", (event) => {
    const box = canvas.getBoundingClientRect();
    const t = Math.floor((event.clientX - box.left - left()) / side(box.width));
    const k = Math.floor((event.clientY - box.top) / tall());
    if (t >= 0 && t < shape.columns && k >= 0 && k < shape.names.length) go(k, t);
  });
  new ResizeObserver(draw).observe(canvas.parentElement);

  return {
    root,
    canvas,
    draw,
    // names: of the rows; columns: rounds so far; last: rounds in the end; cells: see above
    update(next, description) {
      shape = { ...next, last: Math.max(next.last, next.columns, 1) };
      canvas.setAttribute("aria-label", `${title}. ${description} Arrow keys move through clients and rounds.`);
      draw();
    },
    point(next) {
      cursor = next;
      draw();
    },
    caption(text) {
      say(root.querySelector("figcaption"), text);
    },
  };
}

// Names of machines often differ only at their ends.
function short(name) {
  return name.length > LETTERS ? `${name.slice(0, 7)}…${name.slice(8 - LETTERS)}` : name;
}

function clamp(value, size) {
  return Math.min(Math.max(value, 0), size - 1);
}

function ticks(last, width) {
  const room = Math.max(2, Math.floor(width / 60));
  const step = [1, 2, 5, 10, 20, 25, 50, 100, 200, 250, 500, 1000].find((s) => last / s <= room) ?? Math.ceil(last / room);
  const list = [1];
  for (let t = step; t <= last; t += step) if (t > 1 && t - list.at(-1) >= step / 2) list.push(t);
  return list;
}
