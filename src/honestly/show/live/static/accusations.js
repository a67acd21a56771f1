// Client by client: how often it attacked, was accused, wrongly or rightly, and was excluded, with the last reason.

import { el, foreign, keyed, say, set } from "./dom.js";
import { count } from "./format.js";

const MOST = 50;
const COLUMNS = ["client", "attacked", "accused", "wrongly", "missed", "excluded", "last reason"];
const KEYS = ["name", "attacked", "accused", "wrongly", "missed", "excluded", "reason"];

export function accusations() {
  const body = el("tbody");
  const sum = el("p");
  const top = COLUMNS.map((name) => el("th", { scope: "col" }, name));
  const table = el("table", { class: "list" }, el("thead", {}, el("tr", {}, ...top)), body);
  const scroll = el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Accusations by client" }, table);
  const root = el("section", { "aria-labelledby": "accusations" }, el("h2", { id: "accusations" }, "Accusations"), sum, scroll);
  return {
    root,
    update({ head, rounds }) {
      const counts = tally(head, rounds);
      const judged = rounds.some((r) => r.accused !== null);
      say(sum, counts.length ? summary(head, rounds, judged) : judged ? "Nobody was accused or excluded." : "This rule accuses nobody.");
      set(scroll, "hidden", counts.length === 0);
      // a phone has no room for columns that say nothing
      const excluded = counts.some((one) => one.excluded);
      const reasons = counts.some((one) => one.reason);
      const known = [true, head.truth, judged, head.truth && judged, head.truth && judged, excluded, reasons];
      top.forEach((cell, i) => set(cell, "hidden", !known[i]));
      keyed(body, counts.slice(0, MOST), (one) => one.client, row, (node, one) => node.fill(one, known));
    },
  };
}

export function tally(head, rounds) {
  const clients = head.shown.map((client, i) => ({
    client, name: head.names?.[i] ?? String(client), attacked: 0, accused: 0, wrongly: 0, missed: 0, excluded: 0, reason: "",
  }));
  const at = new Map(clients.map((one) => [one.client, one]));
  for (const round of rounds) {
    const attacked = new Set(round.attacked);
    const accused = new Set(round.accused ?? []);
    for (const k of attacked) {
      at.get(k).attacked += 1;
      if (!accused.has(k)) at.get(k).missed += 1;
    }
    for (const k of accused) {
      at.get(k).accused += 1;
      if (!attacked.has(k)) at.get(k).wrongly += 1;
      if (round.why?.[k]) at.get(k).reason = round.why[k];
    }
    for (const [k, why] of Object.entries(round.excluded ?? {})) {
      at.get(Number(k)).excluded += 1;
      at.get(Number(k)).reason = why;
    }
  }
  const notable = clients.filter((one) => one.attacked || one.accused || one.excluded);
  return notable.sort((a, b) => b.accused + b.excluded - a.accused - a.excluded || a.client - b.client);
}

function summary(head, rounds, judged) {
  const add = (key) => rounds.reduce((total, r) => total + (r[key] ?? 0), 0);
  const accused = rounds.reduce((total, r) => total + (r.accused?.length ?? 0), 0);
  const parts = judged ? [count(accused, "accusation")] : ["This rule accuses nobody"];
  if (head.truth && judged) parts.push(`${add("false")} of them wrong`, `${count(add("missed"), "attack")} missed`);
  const excluded = rounds.reduce((total, r) => total + Object.keys(r.excluded ?? {}).length, 0);
  if (excluded) parts.push(count(excluded, "refusal"));
  return `${parts.join(", ")}, in ${count(rounds.length, "round")}.`;
}

function row() {
  const cells = KEYS.map((key) => (key === "name" ? el("th", { scope: "row" }) : el("td", { class: key })));
  const node = el("tr", {}, ...cells);
  node.fill = (one, known) => {
    cells.forEach((cell, i) => {
      set(cell, "hidden", !known[i]);
      if (cell.textContent !== String(one[KEYS[i]])) cell.replaceChildren(foreign(one[KEYS[i]]));
    });
  };
  return node;
}
