"""The tables and reports of `honestly aggregate`: what they name, and what they escape."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from aggregate_command import run
from safetensors.numpy import load_file, save_file


class Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.urls: list[str] = []
        self.drawn: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.urls += [str(value) for name, value in attrs if name in ("src", "href", "action")]

    def handle_data(self, data: str) -> None:
        self.text += data
        if self.tags and self.tags[-1] == "text":
            self.drawn.append(data)


def test_reports_name_the_layer_that_gives_a_liar_away(files: list[str], tmp_path: Path) -> None:
    page, data = tmp_path / "r.html", tmp_path / "r.json"
    assert run(*files, "-o", tmp_path / "out.safetensors", "--report", page, "--report", data, "--quiet") == 0
    report = json.loads(data.read_text())
    liar = report["clients"][6]
    assert liar["verdict"] == "unusual"
    assert liar["layers"][0]["layer"] == "b.weight"
    assert liar["layers"][0]["share"] > 0.99
    assert liar["distance"] > 10 * report["clients"][0]["distance"]
    assert set(report["layers"]) == {"a.weight", "b.weight", "b.bias"}
    before = page.read_bytes(), data.read_bytes(), (tmp_path / "out.safetensors").read_bytes()
    run(*files, "-o", tmp_path / "out.safetensors", "--report", page, "--report", data, "--quiet")
    assert before == (page.read_bytes(), data.read_bytes(), (tmp_path / "out.safetensors").read_bytes())
    parsed = Page()
    parsed.feed(page.read_text())
    assert all(url.startswith("data:") for url in parsed.urls)
    assert "script" not in parsed.tags
    assert "b.weight (100 %)" in parsed.text
    assert "(0 %)" not in parsed.text
    assert {"a.weight", "b.weight", "b.bias"} <= set(parsed.drawn)  # the map names its layers
    assert [name for name in parsed.drawn if name.startswith("client-")] == [f"client-{k}" for k in range(7)]


def test_reports_escape_what_strangers_wrote(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    evil = "<script>alert(1)</script>[red]\x1b[31m"
    names = []
    for k in range(5):
        path = tmp_path / f"<img src=x onerror=alert({k})>.safetensors"
        rng = np.random.default_rng(k)
        save_file({evil: rng.normal(size=(5, 5)).astype(np.float32)}, path)
        names.append(str(path))
    save_file({evil + "more": np.zeros(3)}, tmp_path / "bad.safetensors")
    page = tmp_path / "r.html"
    status = run(*names, tmp_path / "bad.safetensors", "-o", tmp_path / "out.safetensors", "--report", page)
    assert status == 3
    parsed = Page()
    parsed.feed(page.read_text())
    assert not {"script", "img"} & set(parsed.tags)
    assert "<script>alert(1)</script>" in parsed.text
    assert "\x1b" not in capsys.readouterr().out


def test_names_that_are_not_utf8(files: list[str], tmp_path: Path) -> None:
    odd = os.fsencode(tmp_path) + b"/\xff\xfe.safetensors"
    Path(os.fsdecode(odd)).write_bytes(Path(files[0]).read_bytes())
    start = "import sys; from honestly.cli import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", start, "aggregate", *files, odd, "-o", str(tmp_path / "o.safetensors")]
    done = subprocess.run(command, capture_output=True, env=os.environ | {"PYTHONIOENCODING": "ascii"})
    assert done.returncode == 0, done.stderr
    assert b"\\udcff\\udcfe.saf" in done.stdout


def test_excluded_is_not_accused(files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(1)
    for file in files[5:]:  # two clients that err alike
        tensors = {name: (-3 * x).astype(np.float32) for name, x in load_file(files[0]).items()}
        save_file({name: x + 0.001 * rng.normal(size=x.shape).astype(np.float32) for name, x in tensors.items()}, file)
    Path(files[2]).write_bytes(b"nothing of use")
    page = tmp_path / "report.html"
    assert run(*files, "-o", tmp_path / "out.safetensors", "--json", "--report", page) == 3
    report = json.loads(capsys.readouterr().out)
    assert report["excluded"] == ["client-2.safetensors"]
    assert report["accused"] == ["client-5.safetensors", "client-6.safetensors"]
    assert report["malicious"] == 2.0
    assert "accused of lying: client-5, client-6" in page.read_text()
    run(*files, "-o", tmp_path / "out.safetensors")
    assert "clients accused of lying: 2\n" in capsys.readouterr().out


def test_names_for_the_table_and_the_reports(
    files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names, sizes = tmp_path / "names.json", tmp_path / "sizes.json"
    names.write_text(
        json.dumps({"client-6.safetensors": "Uppsala", "client-0.safetensors": "Lund"}), encoding="utf-8-sig"
    )
    sizes.write_text(json.dumps({f"client-{k}.safetensors": 10 + k for k in range(7)}))
    page = tmp_path / "report.html"
    options = ["--names", names, "--sizes", sizes, "--rule", "mean:sizes=trusted", "--report", page]
    assert run(*files, "-o", tmp_path / "out.safetensors", *options) == 0
    assert "Uppsala" in capsys.readouterr().out
    assert "Lund" in page.read_text()
    assert run(*files, "-o", tmp_path / "out.safetensors", *options, "--json") == 0
    clients = json.loads(capsys.readouterr().out)["clients"]
    assert [client["id"] for client in clients[:2]] == ["Lund", "client-1.safetensors"]
    assert clients[6]["file"] == files[6]
    np.testing.assert_allclose([client["weight"] for client in clients], np.arange(10, 17) / np.arange(10, 17).sum())
    names.write_text("[]")
    assert run(*files, "-o", tmp_path / "out.safetensors", *options) == 2
    assert "expected one JSON object" in capsys.readouterr().err


def test_sizes_in_the_table_and_the_report(
    files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = tmp_path / "sizes.json"
    sizes.write_text(json.dumps([1, 100, 100, 100, 100, 100, 1e9]))
    assert run(*files, "-o", tmp_path / "out.safetensors", "--sizes", sizes, "--json") == 0
    clients = json.loads(capsys.readouterr().out)["clients"]
    assert clients[6]["claimed_share"] > 0.99
    assert clients[6]["used_share"] <= 3 * clients[1]["used_share"]
    assert clients[0]["used_share"] == pytest.approx(clients[1]["used_share"] / 100)
    assert run(*files, "-o", tmp_path / "out.safetensors", "--sizes", sizes) == 0
    assert "claimed" in capsys.readouterr().out


def test_the_page_says_how_many_clients_its_map_leaves_out(tmp_path: Path) -> None:
    paths = [tmp_path / f"{k}.safetensors" for k in range(64)]
    for k, path in enumerate(paths):
        save_file({"w": np.random.default_rng(k).normal(size=50)}, path)
    page = tmp_path / "r.html"
    run(*paths[:60], "-o", tmp_path / "out.safetensors", "--report", page, "--quiet")
    assert "clients: those that differ most" not in page.read_text()
    paths[0].write_bytes(b"")
    run(*paths, "-o", tmp_path / "out.safetensors", "--report", page, "--quiet")
    assert "60 of 63 clients: those that differ most" in page.read_text()
