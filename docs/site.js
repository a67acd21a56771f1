// What scrolls sideways can be reached, and so scrolled, by keyboard.
function reachable() {
  for (const box of document.querySelectorAll(".equation, .md-typeset pre > code, .md-typeset__scrollwrap")) {
    if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;
    else box.removeAttribute("tabindex");
  }
}
addEventListener("load", reachable);
addEventListener("resize", reachable);
