// The axes of a study: what its runs differ in, and how a run is called.

// Axis name -> its values in the order in which the study names them; axes with one value are left out.
export function axesOf(runs) {
  const all = new Map();
  for (const run of runs) {
    for (const [name, value] of Object.entries(run.cell)) {
      if (!all.has(name)) all.set(name, new Map());
      all.get(name).set(String(value), value);
    }
  }
  const axes = new Map();
  for (const [name, values] of all) {
    if (values.size < 2) continue;
    const list = [...values.keys()];
    // numbers in their order, names as they come
    if ([...values.values()].every((v) => typeof v === "number" || /^-?[0-9.]+$/.test(v))) list.sort((a, b) => a - b);
    axes.set(name, list);
  }
  return axes;
}

export function named(axis, value) {
  return /^[-0-9.]*$|^true$|^false$/.test(value) ? `${axis} ${value}` : value;
}

export function label(run, axes, kind = "study") {
  const parts = Object.entries(run.cell)
    .filter(([axis]) => axes.has(axis))
    .sort(([a], [b]) => (a === "seed") - (b === "seed"))
    .map(([axis, value]) => named(axis, String(value)));
  const where = kind === "folder" ? [run.id] : [];
  const all = Object.entries(run.cell).map(([axis, value]) => named(axis, String(value)));
  return [...where, ...(parts.length ? parts : all)].join(" · ") || run.id;
}

// Rows and columns for the tables: the rules against the attacks, or else the axes with most values.
export function choose(axes, rows, columns) {
  const names = [...axes.keys()].filter((name) => name !== "seed");
  const most = (not) => names.filter((n) => n !== not).sort((a, b) => axes.get(b).length - axes.get(a).length)[0];
  const row = axes.has(rows) ? rows : axes.has("rule") && columns !== "rule" ? "rule" : most(columns);
  let column = axes.has(columns) && columns !== row ? columns : null;
  if (!column) column = axes.has("attack") && row !== "attack" ? "attack" : most(row);
  return { row: row ?? null, column: column ?? null, rest: names.filter((n) => n !== row && n !== column) };
}
