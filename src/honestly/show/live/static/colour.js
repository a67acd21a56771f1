// Blue is good or honest, orange is bad or dishonest: told apart by nearly everybody.

const prefersDark = window.matchMedia("(prefers-color-scheme: dark)");

export function theme() {
  return prefersDark.matches ? "dark" : "light";
}

export function onTheme(call) {
  prefersDark.addEventListener("change", call);
}

// The colours are the stylesheet's, which the written pages share.
function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

const rgb = (hex) => [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));

const cache = new Map();

function stops() {
  if (!cache.has(theme())) cache.set(theme(), ["low", "middle", "high"].map((name) => rgb(colour(name))));
  return cache.get(theme());
}

export function scale(value) {
  const at = Math.min(Math.max(value, 0), 1) * 2;
  const i = Math.min(Math.floor(at), 1);
  return stops()[i].map((low, c) => Math.round(low + (at - i) * (stops()[i + 1][c] - low)));
}

export function css(rgb) {
  return `rgb(${rgb.join(" ")})`;
}

function luminance(rgb) {
  const [r, g, b] = rgb.map((c) => (c / 255 <= 0.04045 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}

// Of black and white the one that is read better: at least 4.58 to 1 on any colour.
export function ink(rgb) {
  return luminance(rgb) > 0.179 ? "#000" : "#fff";
}
