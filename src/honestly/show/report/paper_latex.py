"""The paper's six tables in LaTeX, in the paper's layout, with booktabs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from honestly.show.report.origin import READINGS
from honestly.show.report.paper_tables import Found, lines_of
from honestly.show.report.published import (
    ATTACKS,
    DATASETS,
    TABLES,
    TOLERANCE,
    Column,
    Comparison,
    Measurement,
    PaperTable,
    rows_of,
)
from honestly.show.report.results import STATISTICS
from honestly.show.text import for_latex

LATEX_MARKS = {
    "reproduced": r"$=$", "better": r"$\blacktriangle$", "worse": r"$\blacktriangledown$", "half": r"$\frac12$",
}  # fmt: skip
LATEX_SIGNS = {"code": r"$^{\mathrm{c}}$", "equal": r"$^{\mathrm{e}}$", "text": r"$^{\mathrm{t}}$"}


def latex(all_found: Mapping[str, Found]) -> str:
    """The tables with booktabs, in the paper's layout; both statistics."""
    return "\n".join(_latex_table(t, comparisons, s) for s, comparisons in all_found.items() for t in TABLES)


def _latex_table(table: PaperTable, comparisons: Found, statistic: str) -> str:
    columns = table.columns
    spans = _spans(columns)
    last = len(columns) + 2
    rules = rows_of(comparisons)
    note = f"Ours ({STATISTICS[statistic]}; mean $\\pm$ standard deviation over seeds), the published value in brackets"
    words = {"reproduced": f"within {TOLERANCE}", "better": "better", "worse": "worse", "half": "half of the rounds"}
    marks = ", ".join(f"{LATEX_MARKS[verdict]} {word}" for verdict, word in words.items())
    marks += "; " + ", ".join(f"{LATEX_SIGNS[reading]} by {word}" for reading, word in READINGS.items())
    out = [
        r"\begin{table}[t]", r"  \centering\small\setlength{\belowcaptionskip}{4pt}",
        f"  \\caption{{{for_latex(table.caption)} {note}: {marks}.}}",
        f"  \\label{{tab:{table.name}-{statistic.replace('_', '')}}}", r"  \resizebox{\linewidth}{!}{%",
        f"  \\begin{{tabular}}{{ll{'c' * len(columns)}}}", r"    \toprule",
        "    & " + "".join(f"& \\multicolumn{{{b - a + 1}}}{{c}}{{{ATTACKS[t]}}} " for t, a, b in spans) + r"\\",
        "    " + " ".join(f"\\cmidrule(lr){{{a}-{b}}}" for _, a, b in spans),
        "    & " + "".join(f"& $\\alpha={c.alpha}$ " for c in columns) + r"\\",
        "    & " + "".join(f"& {c.metric} " for c in columns) + r"\\",
    ]  # fmt: skip
    before = ""
    for dataset, rule, row in lines_of(comparisons, table):
        first = ""
        if dataset != before:
            out.append(r"    \midrule")
            first = f"\\multirow{{{len(rules)}}}{{*}}{{\\rotatebox{{90}}{{{DATASETS[dataset]}}}}}"
        elif rule == "Ours":
            out.append(f"    \\cmidrule(lr){{2-{last}}}")
        before = dataset
        named = f"\\textbf{{{rule}}}" if rule.startswith("Ours") else f"\\textsc{{{rule}}}"
        out.append(f"    {first} & {named} & " + " & ".join(_latex_cell(one) for one in row) + r" \\")
    return "\n".join([*out, r"    \bottomrule", r"  \end{tabular}}", r"\end{table}", ""])


def _spans(columns: Sequence[Column]) -> list[tuple[str, int, int]]:
    """(attack, first and last column) of each attack; the first two columns are data set and rule."""
    attacks = list(dict.fromkeys(c.attack for c in columns))
    where = {a: [i + 3 for i, c in enumerate(columns) if c.attack == a] for a in attacks}
    return [(a, where[a][0], where[a][-1]) for a in attacks]


def _latex_cell(one: Comparison) -> str:
    if one.counted is None:
        return f"-- ({one.published:.2f})"
    numbers = " ".join(_latex_number(m) for m in (one.counted, one.other_reading) if m is not None)
    return f"{numbers} ({one.published:.2f})\\,{LATEX_MARKS[one.verdict]}"


def _latex_number(m: Measurement) -> str:
    spread = "" if m.seeds.sd is None else f"{{\\scriptsize$\\,\\pm\\,${m.seeds.sd:.3f}}}"
    return f"{m.seeds.mean:.3f}{spread}{LATEX_SIGNS[m.reading]}"
