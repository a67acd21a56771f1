// Blue is good or honest, orange is bad or dishonest: told apart by nearly everybody.

const STOPS = {
  light: [[179, 64, 10], [244, 236, 217], [31, 95, 191]],
  dark: [[240, 138, 75], [62, 64, 68], [106, 168, 255]],
};
const LINES = {
  light: ["#1f5fbf", "#b3400a", "#1a7f37", "#8250df", "#57606a", "#a0156b"],
  dark: ["#6aa8ff", "#f08a4b", "#56c271", "#b794f6", "#a9b4c0", "#f178b6"],
};
const DASHES = ["", "7 3", "2 3"];

const prefersDark = window.matchMedia("(prefers-color-scheme: dark)");

export function theme() {
  return prefersDark.matches ? "dark" : "light";
}

export function onTheme(call) {
  prefersDark.addEventListener("change", call);
}

export function scale(value, mode = theme()) {
  const stops = STOPS[mode];
  const at = Math.min(Math.max(value, 0), 1) * 2;
  const i = Math.min(Math.floor(at), 1);
  return stops[i].map((low, c) => Math.round(low + (at - i) * (stops[i + 1][c] - low)));
}

export function css(rgb) {
  return `rgb(${rgb.join(" ")})`;
}

export function luminance(rgb) {
  const [r, g, b] = rgb.map((c) => (c / 255 <= 0.04045 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}

// Of black and white the one that is read better: at least 4.58 to 1 on any colour.
export function ink(rgb) {
  return luminance(rgb) > 0.179 ? "#000" : "#fff";
}

// Every line has a colour and a dash of its own, so that colour is not the only difference.
export function line(i, mode = theme()) {
  const colours = LINES[mode];
  return { colour: colours[i % colours.length], dash: DASHES[Math.floor(i / colours.length) % DASHES.length] };
}
