// A run's heatmaps with one cursor: who really attacked, whom the rule believed, and weights where they tell more.

import { el, say, set } from "./dom.js";
import { heatmap } from "./heatmap.js";
import { mark, ramp } from "./legend.js";

const BELIEF = { honesty: "Probability of being honest", weight: "Weight, relative to the largest of the round" };

export function maps() {
  const readout = el("p", { class: "readout", "aria-live": "polite" });
  let current = null;
  let cursor = null;
  const move = (next) => {
    cursor = next;
    for (const map of all) map.point(cursor);
    say(readout, cursor ? tell(current, cursor) : "");
  };
  const truth = heatmap("Who really attacked", { move });
  const belief = heatmap(BELIEF.honesty, { move });
  const weight = heatmap(BELIEF.weight, { move });
  const all = [truth, belief, weight];
  const none = el("p", { class: "muted" });
  const key = el("ul", { class: "legend key" });
  const root = el("div", {}, el("div", { class: "pair" }, truth.root, belief.root, weight.root), key, none, readout);

  function update(run, detail) {
    current = detail;
    const { head, rounds } = detail;
    const names = head.shown.map((k, i) => head.names?.[i] ?? String(k));
    const last = Math.max(run?.of ?? 0, rounds.length);
    set(truth.root, "hidden", !head.truth);
    set(belief.root, "hidden", !head.belief);
    set(weight.root, "hidden", !head.weights);
    const notes = [];
    if (!head.truth) notes.push("Nobody knows who really attacked in a real federation.");
    if (!head.belief) notes.push("This rule works coordinate by coordinate: it neither weighs nor judges clients.");
    if (head.shown.length < head.clients) notes.push(`${head.shown.length} of ${head.clients} clients are shown.`);
    say(none, notes.join(" "));
    set(none, "hidden", !notes.length);
    const text = meaning(head);
    if (key.dataset.text !== text.join()) key.replaceChildren(ramp(...text), mark("accused"), mark("excluded", "ring"));
    key.dataset.text = text.join();
    set(key, "hidden", !head.truth && !head.belief);
    key.children[1].hidden = !rounds.some((r) => r.accused?.length);
    key.children[2].hidden = !rounds.some((r) => r.excluded);
    const shape = { names, columns: rounds.length, last };
    const attacks = rounds.map((r) => new Set(r.attacked));
    const accused = rounds.map((r) => new Set(r.accused ?? []));
    const excluded = rounds.map((r) => new Set(Object.keys(r.excluded ?? {}).map(Number)));
    const here = rounds.map((r) => (r.here ? new Set(r.here) : null));
    if (head.truth) {
      const total = rounds.reduce((sum, r) => sum + r.attacked.length, 0);
      truth.update({
        ...shape,
        cells: (k, t) => ({ value: here[t] && !here[t].has(head.shown[k]) ? null : attacks[t].has(head.shown[k]) ? 0 : 0.7 }),
      }, `${total} attacks in ${rounds.length} rounds.`);
    }
    if (head.belief) {
      belief.caption(BELIEF[head.belief]);
      belief.update({
        ...shape,
        cells: (k, t) => {
          const client = head.shown[k];
          return { value: part(rounds[t].belief?.[k]), mark: excluded[t].has(client) ? "ring" : accused[t].has(client) ? "dot" : "" };
        },
      }, `${names.length} clients, ${rounds.length} rounds.`);
    }
    if (head.weights) {
      weight.update({
        ...shape,
        cells: (k, t) => ({ value: part(rounds[t].weight?.[k]) }),
      }, `${names.length} clients, ${rounds.length} rounds.`);
    }
    if (cursor && (cursor.t >= rounds.length || cursor.k >= names.length)) move(null);
  }

  return { root, update, draw: () => all.forEach((map) => map.draw()), canvases: () => all.filter((map) => !map.root.hidden).map((map) => map.canvas) };
}

// The server sends 0 to 1000, or null.
function part(value) {
  return value === null || value === undefined ? null : value / 1000;
}

// What orange and blue stand for, in the words of the written pages.
function meaning({ belief, weights }) {
  if (!belief) return ["attacked", "behaved"];
  if (belief === "weight") return ["attacked, or weight 0", "behaved, or full weight"];
  return weights ? ["lies, or weight 0", "honest, or full weight"] : ["lies", "honest"];
}

export function tell({ head, rounds }, { k, t }) {
  const round = rounds[t];
  const client = head.shown[k];
  const parts = [`client ${head.names?.[k] ?? client}, round ${round.round}`];
  const value = round.belief?.[k];
  if (value !== null && value !== undefined) parts.push(`${head.belief} ${(value / 1000).toFixed(3)}`);
  const weight = round.weight?.[k];
  if (weight !== null && weight !== undefined) parts.push(`weight ${(weight / 1000).toFixed(3)} of the largest`);
  if ((value === null || value === undefined) && round.here && !round.here.includes(client)) parts.push("did not take part");
  if (head.truth) parts.push(round.attacked.includes(client) ? "attacked" : "behaved");
  if (round.accused?.includes(client)) parts.push("accused");
  if (round.excluded?.[client] !== undefined) parts.push(`excluded: ${round.excluded[client] || "no reason given"}`);
  return parts.join(", ");
}
