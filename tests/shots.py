"""`make shots`: take screenshots of every page, made from small real runs, at two widths, in light and dark mode.

python tests/shots.py OUT            all pages and their pictures
python tests/shots.py OUT demo run   some of them: demo, run, bench, aggregate, stress, federation, site
"""

from __future__ import annotations

import contextlib
import io
import subprocess
import sys
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from browser import Browser

from honestly.cli import main
from honestly.federation.history import History
from honestly.federation.record import Round
from honestly.result import ClientId

WIDTHS, SCHEMES, HEIGHT = (1280, 390), ("light", "dark"), 800
COMMON = ["dataset=digits", "epochs=1"]


def demo(out: Path) -> list[Path]:
    assert main(["demo", "--out", str(out / "demo"), "--quiet"]) == 0
    return [out / "demo" / "report.html"]


def simulate(out: Path) -> list[Path]:
    """A run with a backdoor, one with a rule that judges nobody, one where updates overflow, one of many clients."""
    runs = {
        "backdoor": ["rounds=12", "clients=12", "rule=bayesian", "attack=backdoor", "malicious=4", "dynamic=true"],
        "median": ["rounds=6", "clients=8", "rule=median", "attack=sign_flip", "malicious=2"],
        "quiet": ["rounds=22", "clients=10", "rule=bayesian", "attack=none", "malicious=0"],
        "overflow": ["rounds=8", "clients=20", "rule=bayesian", "attack=sign_flip", "attack.gamma=1e30", "malicious=8"],
        "many": ["rounds=5", "clients=120", "rule=bayesian", "attack=sign_flip", "malicious=30"],
    }
    for name, words in runs.items():
        assert main(["simulate", *COMMON, *words, "--out", str(out / "runs" / name), "--quiet"]) == 0
    return [out / "runs" / name / "report.html" for name in runs]


STUDY = """
name = "small"
[base]
dataset = "digits"
clients = 8
epochs = 1
rounds = 4
malicious = 3
[axes]
attack = ["sign_flip", "label_flip"]
rule = [
    { label = "FedAvg", rule = "mean" },
    { label = "Median", rule = "median" },
    { label = "Ours", rule = "bayesian" },
]
seed = [0, 1]
"""


def bench(out: Path) -> list[Path]:
    """A study of twelve runs, and the page of one of them."""
    folder = out / "study"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "small.toml").write_text(STUDY, encoding="utf-8")
    assert main(["bench", str(folder / "small.toml"), "--out", str(folder / "store"), "--quiet"]) == 0
    assert main(["report", str(folder / "store"), "--out", str(folder / "report"), "--quiet"]) == 0
    return [folder / "report" / "index.html", sorted((folder / "report" / "runs").iterdir())[0]]


def aggregate(out: Path) -> list[Path]:
    """Nine files: one lies in one layer, one in all, one is broken."""
    from safetensors.numpy import save_file

    folder = out / "files"
    folder.mkdir(parents=True, exist_ok=True)
    names = ["conv1.weight", "conv1.bias", "block.0.attention.query.weight", "block.0.attention.key.weight",
             "block.1.mlp.up_proj.weight", "head.weight", "head.bias"]  # fmt: skip
    rng = np.random.default_rng(0)
    base = {name: rng.normal(size=(40, 30) if "weight" in name else (40,)) for name in names}
    for k in range(9):
        model = {name: (w + 0.1 * rng.normal(size=w.shape)).astype(np.float32) for name, w in base.items()}
        if k == 6:
            model["head.bias"][3] = np.nan
        if k == 7:
            model["block.1.mlp.up_proj.weight"] *= -1
        if k == 8:
            model = {name: (-3 * w).astype(np.float32) for name, w in model.items()}
        save_file(model, folder / f"hospital-{k}.safetensors")
    files = [str(path) for path in sorted(folder.iterdir())]
    page = out / "aggregate.html"
    assert main(["aggregate", *files, "-o", str(out / "mean.safetensors"), "--report", str(page), "--quiet"]) == 3
    return [page]


def stress(out: Path) -> list[Path]:
    words = ["--rules", "mean", "bayesian", "median", "multi_krum", "geometric_median", "--populations", "isotropic",
             "digits", "--malicious", "0,4,8", "--attacks", "fixed"]  # fmt: skip
    with contextlib.redirect_stdout(io.StringIO()):
        assert main(["stress", *words, "--out", str(out / "stress")]) == 0
    return [out / "stress" / "index.html"]


def federation(out: Path) -> list[Path]:
    """Twelve rounds of a federation with names as servers know them."""
    folder = out / "federation"
    written = History(folder, run="hospitals-spring")
    rng = np.random.default_rng(0)
    clients = [f"hospital-{city}" for city in ("aachen", "bern", "cordoba", "dresden", "eindhoven", "faro")]
    for t in range(1, 13):
        honesty: dict[ClientId, float] = {name: float(rng.uniform(0.93, 1)) for name in clients}
        honesty["hospital-dresden"] = 0.02 if t > 2 else 0.6
        broken: dict[ClientId, str] = {"hospital-faro": f"tensor 'conv.weight' at flat index {t} is NaN"}
        excluded = broken if t in (4, 5, 6) else {}
        evaluation = {"accuracy": 0.95 - 0.7 * 0.7**t}
        status = "refused: no majority" if t == 9 else "converged"
        written.add(Round(t, tuple(clients), honesty, None, excluded, t == 9, status, t == 9, evaluation=evaluation))
    written.write()
    assert main(["report", str(folder), "--quiet"]) == 0
    return [folder / "report" / "index.html"]


MAKERS = {"demo": demo, "run": simulate, "bench": bench, "aggregate": aggregate, "stress": stress,
          "federation": federation}  # fmt: skip


def pages(out: Path, names: list[str]) -> Iterator[tuple[str, str]]:
    """(name, address) of the written pages."""
    for name in names:
        begun = time.perf_counter()
        for path in MAKERS[name](out):
            stem = "-".join(path.relative_to(out).with_suffix("").parts)
            yield stem.replace("-index", "").replace("-report", ""), path.resolve().as_uri()
        print(f"{name}: {time.perf_counter() - begun:.0f} s", flush=True)


def site(out: Path) -> list[tuple[str, str]]:
    """Pages of the documentation with prose, code, mathematics and wide tables."""
    folder = out / "site"
    subprocess.run([sys.executable, ROOT / "docs" / "build.py", "--out", folder], check=True)
    names = ("index", "tutorial", "explanation/bayesian", "reference/cli", "results/leaderboard")
    return [(f"site-{name.replace('/', '-')}", (folder / f"{name}.html").as_uri()) for name in names]


@contextmanager
def live(out: Path) -> Generator[list[tuple[str, str]]]:
    """The views of the live page of the study, while it is served."""
    from watch_server import watched

    with watched(out / "study" / "store", interval=0.2) as server:
        first = next((out / "study" / "report" / "runs").iterdir()).stem
        several = ",".join(sorted(path.stem for path in (out / "study" / "report" / "runs").iterdir())[:3])
        yield [
            ("live", server.url),
            ("live-run", f"{server.url}#/run/{first}"),
            ("live-compare", f"{server.url}#/compare/{several}"),
        ]


def shoot(browser: Browser, name: str, address: str, out: Path) -> None:
    """Four pictures of a page."""
    for width in WIDTHS:
        for scheme in SCHEMES:
            browser.size(width, HEIGHT)
            browser.media(scheme=scheme, reduced=True)
            browser.goto("about:blank")
            browser.goto(address)
            browser.until("document.querySelector('.page, td[data-status], .maps .plot, .md-content')")
            height = browser.script("return document.documentElement.scrollHeight")
            browser.size(width, min(height, 8000))
            browser.screenshot(out / f"{name}-{width}-{scheme}.png")
            for text in findings(browser):
                print(f"{name}, {width} px, {scheme}: {text}")


ROOT = Path(__file__).resolve().parents[1]
AXE = ROOT / "node_modules" / "axe-core" / "axe.min.js"
MISSING = "the accessibility check needs axe-core: npm install --no-save --no-package-lock axe-core@4.10.3"


def findings(browser: Browser) -> list[str]:
    """What axe-core finds serious or critical in the page that is open, with everything unfolded."""
    if not AXE.is_file():
        raise RuntimeError(MISSING)
    browser.script("for (const d of document.querySelectorAll('details')) d.open = true;")
    browser.script(AXE.read_text(encoding="utf-8"))
    found = browser.wait_for("axe.run(document, {resultTypes: ['violations']}).then((r) => r.violations)")
    return [
        f"{one['id']} ({one['impact']}): {one['help']}; {one['nodes'][0]['html'][:200]}"
        for one in found
        if one["impact"] in ("serious", "critical")
    ]


def run(out: Path, names: list[str]) -> None:
    """Make the pages and take the pictures."""
    out.mkdir(parents=True, exist_ok=True)
    with Browser() as browser:
        for name, address in pages(out / "pages", [name for name in names if name in MAKERS]):
            shoot(browser, name, address, out)
        if "site" in names:
            for name, address in site(out / "pages"):
                shoot(browser, name, address, out)
        if "bench" in names:
            with live(out / "pages") as found:
                for name, address in found:
                    shoot(browser, name, address, out)
    print(f"{len(list(out.glob('*.png')))} pictures in {out}")


if __name__ == "__main__":
    run(Path(sys.argv[1]), sys.argv[2:] or [*MAKERS, "site"])
