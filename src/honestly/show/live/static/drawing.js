// What the server draws, put in place. The browser parses it into a document of its own, which runs no scripts and
// loads nothing; every name in it was escaped by the server, which draws the written pages in the same way.

import { el } from "./dom.js";

function request(address) {
  return new Promise((resolve) => {
    const question = new XMLHttpRequest();
    question.open("GET", address);
    question.responseType = "document";
    question.onload = () => resolve(question.status === 200 ? question.response.body.firstElementChild : null);
    question.onerror = () => resolve(null);
    question.send();
  });
}

// A place for a drawing; it is fetched when its address or its version changes, and never twice at once. `furnish` is
// called when a new one is in place.
export function drawing(furnish = () => {}) {
  const root = el("div");
  let wanted = ["", ""]; // address and version
  let current = wanted;
  let busy = false;

  async function fetchLatest() {
    busy = true;
    const next = wanted;
    const node = await request(next[0]);
    if (node) await Promise.all([...node.querySelectorAll("image")].map(load)); // else the cells would flicker
    busy = false;
    if (!node) return; // tried again with the next event, or with the next look at the clock
    put(root, document.importNode(node, true), furnish);
    current = next;
    if (wanted !== current) fetchLatest();
  }

  return {
    root,
    // version: whatever the drawing depends on, as text
    update(address, version) {
      if (wanted[0] !== address || wanted[1] !== version) wanted = [address, version];
      if (wanted !== current && !busy) fetchLatest();
    },
  };
}

// An image in the browser's cache, from where a drawing takes it.
async function load(node) {
  const image = new Image();
  image.src = node.getAttribute("href");
  await image.decode().catch(() => {});
}

function put(root, node, furnish) {
  // the policy of the page forbids styles in attributes; a script may set them
  for (const plot of node.querySelectorAll("[data-room]")) plot.style.cssText = plot.dataset.room;
  const focusable = () => [...root.querySelectorAll("a, [tabindex]")];
  const focus = focusable().indexOf(document.activeElement);
  root.replaceChildren(node);
  furnish();
  if (focus >= 0) focusable()[focus]?.focus({ preventScroll: true });
}

// Where the server draws something of runs: [[id, name], ...].
export function addressOf(what, runs) {
  const pairs = runs.flatMap(([id, name]) => [["run", id], ["name", name]]);
  return `/${what}?${new URLSearchParams(pairs)}`;
}
