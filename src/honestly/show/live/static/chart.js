// Curves between 0 and 1 over the rounds, drawn anew at the width that there is.

import { line } from "./colour.js";
import { el, foreign, say, svg } from "./dom.js";
import { share } from "./format.js";

const HEIGHT = 234;
const LEFT = 34;
const BELOW = 36;

export function chart(title) {
  const picture = el("div", { class: "picture" });
  const legend = el("ul", { class: "legend" });
  const root = el("figure", { class: "chart" }, el("figcaption", {}, title), picture, legend);
  let series = [];
  let last = 1;
  let form = "";

  function draw() {
    const width = Math.max(240, picture.clientWidth || 600);
    const now = JSON.stringify([series, last, width, line(0).colour]);
    if (now === form) return;
    form = now;
    picture.replaceChildren(drawing(title, series, last, width));
    legend.replaceChildren(...series.map((one, i) => entry(one, i)));
  }

  new ResizeObserver(draw).observe(picture);
  return {
    root,
    // series: [{name, points: [[round, value], ...]}]; last: the round at the right end
    update(lines, end) {
      series = lines;
      last = Math.max(end, 1);
      draw();
    },
    draw,
    picture: () => picture.firstElementChild,
    rename(text) {
      title = text;
      say(root.querySelector("figcaption"), text);
    },
  };
}

function drawing(title, series, last, width) {
  const x = (t) => LEFT + ((width - LEFT - 10) * (t - 1)) / Math.max(last - 1, 1);
  const y = (v) => 6 + (HEIGHT - BELOW - 6) * (1 - v);
  const summary = series.map((s) => `${s.name}: ${s.points.length ? share(s.points.at(-1)[1]) : "nothing yet"}`);
  const root = svg("svg", {
    viewBox: `0 0 ${width} ${HEIGHT}`, width, height: HEIGHT, role: "img",
    "aria-label": `${title} over ${last} rounds; now ${summary.join(", ")}`,
  });
  for (const tick of [0, 0.25, 0.5, 0.75, 1]) {
    root.append(svg("line", { class: "rule", x1: LEFT, x2: width - 10, y1: y(tick), y2: y(tick) }));
    root.append(svg("text", { x: LEFT - 6, y: y(tick) + 4, "text-anchor": "end" }, String(tick)));
  }
  for (const t of ticks(last, width)) {
    root.append(svg("text", { x: x(t), y: HEIGHT - 19, "text-anchor": "middle" }, String(t)));
  }
  root.append(svg("text", { class: "axis", x: (LEFT + width - 10) / 2, y: HEIGHT - 4, "text-anchor": "middle" }, "round"));
  series.forEach((one, i) => {
    const { colour, dash } = line(i);
    const points = one.points.map(([t, v]) => `${x(t).toFixed(1)},${y(Math.min(Math.max(v, 0), 1)).toFixed(1)}`);
    root.append(svg("polyline", { points: points.join(" "), fill: "none", stroke: colour, "stroke-width": 2.2, "stroke-dasharray": dash || null }));
    if (points.length) {
      const [cx, cy] = points.at(-1).split(",");
      root.append(svg("circle", { cx, cy, r: 3.5, fill: colour }));
    }
  });
  return root;
}

export function ticks(last, width) {
  const room = Math.max(2, Math.floor(width / 60));
  const step = [1, 2, 5, 10, 20, 25, 50, 100, 200, 250, 500, 1000].find((s) => last / s <= room) ?? Math.ceil(last / room);
  const list = [1];
  for (let t = step; t <= last; t += step) if (t > 1 && t - list.at(-1) >= step / 2) list.push(t);
  return list;
}

function entry(one, i) {
  const { colour, dash } = line(i);
  const key = svg("svg", { width: 26, height: 10, "aria-hidden": "true" });
  key.append(svg("line", { x1: 0, x2: 26, y1: 5, y2: 5, stroke: colour, "stroke-width": 3, "stroke-dasharray": dash || null }));
  const value = one.points.length ? share(one.points.at(-1)[1]) : "–";
  const name = one.href ? el("a", { href: one.href }, foreign(one.name)) : foreign(one.name);
  return el("li", {}, key, name, " ", el("b", {}, value));
}
