// One run: its curves, which clients it believed beside who really attacked, the accusations, its settings.

import { accusations } from "./accusations.js";
import { axesOf, label } from "./axes.js";
import { chosen, choose } from "./chosen.js";
import { el, foreign, keyed, say, set } from "./dom.js";
import { addressOf, drawing } from "./drawing.js";
import { duration, roundsOf, share } from "./format.js";
import { maps } from "./maps.js";
import { roundFiles, saveLinks } from "./save.js";
import { age, state } from "./state.js";

export function runView(id) {
  const title = el("h1");
  const news = el("p", { class: "headline" });
  const bar = el("div", { class: "meter", role: "progressbar", "aria-label": "finished rounds", "aria-valuemin": 0 }, el("span", { "data-status": "done" }), el("span", { "data-status": "pending" }));
  const error = el("pre", { class: "bad", tabindex: 0 });
  const tick = el("input", { type: "checkbox", id: "compare-this", change: () => choose(id, tick.checked) });
  const pick = el("p", {}, tick, " ", el("label", { for: "compare-this" }, "compare this run"));
  const curves = drawing();
  const heat = maps();
  const blame = accusations();
  const notes = el("ul", { class: "notes" });
  const noted = el("section", { "aria-labelledby": "notes" }, el("h2", { id: "notes" }, "Rounds to look at"), notes);
  const settings = el("dl");
  const about = el("details", {}, el("summary", {}, el("h2", {}, "Settings")), settings);
  const save = saveLinks(roundFiles(() => [state.details.get(id)], () => [[id, id]]));
  const parts = [curves.root, el("h2", {}, "Clients by round"), heat.root, blame.root, noted, about, save];
  const body = el("div", {}, ...parts);
  const root = el("div", {}, title, news, bar, error, pick, body);
  let form = "";

  function update() {
    const run = state.runs.get(id);
    const detail = state.details.get(id);
    const kind = state.head.kind;
    const name = run ? label(run, axesOf([...state.runs.values()]), kind) : id;
    if (title.textContent !== name) title.replaceChildren(foreign(name));
    say(news, !state.ready ? "reading" : run ? spoken(run) : "There is no such run.");
    set(pick, "hidden", !run || state.runs.size < 2);
    tick.checked = chosen().includes(id);
    set(error, "hidden", !run?.error);
    say(error, run?.error ?? "");
    set(bar, "hidden", !run?.of);
    if (run?.of) meter(bar, run);
    set(body, "hidden", !detail);
    if (!detail) return;
    const now = versionOf(run, detail);
    curves.update(addressOf("curves", [[id, id]]), now);
    heat.update(id, detail, now);
    if (now !== form) draw(detail); // a round came in
    form = now;
  }

  function draw(detail) {
    const { rounds, head } = detail;
    blame.update(detail);
    const noteworthy = rounds.filter((r) => r.note).slice(-20).reverse();
    set(noted, "hidden", !noteworthy.length);
    keyed(notes, noteworthy, (r) => r.round, () => el("li", {}, el("b"), " ", el("bdi")), (node, r) => {
      say(node.firstChild, `round ${r.round}:`);
      say(node.lastChild, r.note);
    });
    const list = Object.entries(head.settings);
    set(about, "hidden", !list.length);
    keyed(settings, list, ([key]) => key, ([key]) => el("div", {}, el("dt", {}, foreign(key)), el("dd")), (node, [, value]) => {
      if (node.lastChild.textContent !== value) node.lastChild.replaceChildren(foreign(value));
    });
  }

  return { root, update, wanted: () => [id] };
}

// What drawings of a run depend on.
export function versionOf(run, detail) {
  return JSON.stringify([detail?.rounds.length, run?.of, detail?.rounds.at(-1), detail?.head.clients]);
}

function meter(bar, run) {
  set(bar, "aria-valuemax", run.of);
  set(bar, "aria-valuenow", run.rounds);
  bar.firstChild.style.flexGrow = String(run.rounds);
  bar.lastChild.style.flexGrow = String(Math.max(run.of - run.rounds, 0));
}

function spoken(run) {
  const parts = [`${run.status}, ${roundsOf(run)}`];
  if (run.accuracy !== undefined) parts.push(`accuracy ${share(run.accuracy)}`);
  if (run.asr !== undefined) parts.push(`attack success rate ${share(run.asr)}`);
  if (run.status === "running" && run.of && run.seconds) parts.push(`about ${duration((run.of - run.rounds) * run.seconds)} left`);
  if (run.status !== "done" && run.updated && age(run.updated) > 30) parts.push(`no news for ${duration(age(run.updated))}`);
  return parts.join(", ");
}
