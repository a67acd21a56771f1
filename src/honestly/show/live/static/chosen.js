// The runs that are to be compared: part of the address, so that a comparison can be bookmarked, and kept for the tab.

import { changed } from "./state.js";

export const MOST = 12;

let ids = JSON.parse(sessionStorage.getItem("chosen") ?? "[]");

export function chosen() {
  return ids;
}

export function setChosen(next) {
  ids = [...new Set(next)].slice(0, MOST);
  sessionStorage.setItem("chosen", JSON.stringify(ids));
}

export function choose(id, wanted) {
  setChosen(wanted ? [...ids, id] : ids.filter((other) => other !== id));
  changed();
}

export function compareHref(list) {
  return `#/compare/${list.slice(0, MOST).map(encodeURIComponent).join(",")}`;
}
