"""`honestly aggregate` end to end: input files, the output file, the table, reports and exit status."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import honestly as hn
from honestly.cli import main
from honestly.show import aggregate_page as aggregate_report
from honestly.sources.checkpoints import replace


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    """Six honest clients and one that flips a layer."""
    rng = np.random.default_rng(0)
    base = {"a.weight": rng.normal(size=(30, 20)), "b.weight": rng.normal(size=(50, 4)), "b.bias": rng.normal(size=9)}
    found = []
    for k in range(7):
        tensors = {name: (x + 0.01 * rng.normal(size=x.shape)).astype(np.float32) for name, x in base.items()}
        if k == 6:
            tensors["b.weight"] *= -1
        found.append(str(tmp_path / f"client-{k}.safetensors"))
        save_file(tensors, found[-1])
    return found


def run(*arguments: object) -> int:
    return main(["aggregate", *map(str, arguments)])


def test_the_average_and_the_table(files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "global.safetensors"
    assert run(*files, "-o", out) == 0
    expected = hn.aggregate(files).value
    for name, values in load_file(out).items():
        np.testing.assert_array_equal(values, expected[name])
    table = capsys.readouterr().out
    assert "client-6.safetensors" in table
    assert "7 of 7 clients were usable" in table
    assert str(out) in table.replace("\n", "")


@pytest.mark.parametrize(("exclusions", "status"), [("status", 3), ("ok", 0), ("fail", 1)])
def test_an_excluded_client(
    files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], exclusions: str, status: int
) -> None:
    Path(files[2]).write_bytes(b"nothing of use")
    out = tmp_path / "global.safetensors"
    out.write_bytes(b"old")
    assert run(*files, "-o", out, "--exclusions", exclusions) == status
    shown = capsys.readouterr()
    assert "client-2.safetensors" in shown.out
    if status == 1:
        assert out.read_bytes() == b"old"
        assert "--exclusions fail" in shown.err
    else:
        assert len(load_file(out)) == 3
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*(Path(f).name for f in files), out.name])


def test_exclusions_fail_writes_when_all_are_used(files: list[str], tmp_path: Path) -> None:
    assert run(*files, "-o", tmp_path / "out.safetensors", "--exclusions", "fail", "--quiet") == 0
    assert load_file(tmp_path / "out.safetensors")


def test_refusal(files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for file in files[:4]:
        Path(file).write_bytes(b"")
    assert run(*files, "-o", tmp_path / "out.safetensors") == 1
    error = capsys.readouterr().err
    assert "only 3 of 7 clients can be used" in error
    assert "client-3.safetensors" in error
    assert not (tmp_path / "out.safetensors").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--rule", "nonsense"], "unknown rule 'nonsense'"),
        (["--rule", "krum:g=3"], "no setting 'g'"),
        (["--rule", "krum:4"], "write settings as krum:key=value"),
        (["--ids", "a,b"], "--ids names 2 clients, but there are 7 files"),
        (["--ids", "a,b,c,d,e,f,a"], "'a' is given twice"),
        (["--report", "x.pdf"], "ends in .html or .json"),
        (["--report", "/no/such/folder/x.html"], "does not exist"),
        (["--reference", "/no/such/file"], "reference: 'file' cannot be opened"),
        (["--rank", "4"], "only lora='svd'"),
        (["--device", "abacus"], "device 'abacus' cannot be used"),
        (["--device", "meta"], "device 'meta' cannot be used: it holds no values"),
    ],
)
def test_a_wrong_command_line(
    files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert run(*files, "-o", tmp_path / "out.safetensors", *arguments) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out.safetensors").exists()


def test_argparse_errors_are_2(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        run("x.safetensors")
    assert stopped.value.code == 2
    assert "-o/--out" in capsys.readouterr().err


def test_help_documents_the_exit_status(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run("--help")
    text = capsys.readouterr().out
    for word in ("exit status", "  0  ", "  1  ", "  2  ", "  3  ", "130"):
        assert word in text


def test_rules_mixers_ids_sizes_and_reference(
    files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "ids.txt").write_text("\n".join("abcdefg"))
    (tmp_path / "sizes.csv").write_text("\n".join(f"{name},{10 * (k + 1)}" for k, name in enumerate("abcdefg")))
    status = run(
        *files, "-o", tmp_path / "out.safetensors", "--rule", "mean:sizes=trusted", "--ids", f"@{tmp_path / 'ids.txt'}",
        "--sizes", tmp_path / "sizes.csv", "--json",
    )  # fmt: skip
    report = json.loads(capsys.readouterr().out)
    assert status == 0
    assert [client["id"] for client in report["clients"]] == list("abcdefg")
    sizes = dict(zip("abcdefg", range(10, 80, 10), strict=True))
    expected = hn.aggregate(dict(zip("abcdefg", files, strict=True)), hn.make("mean", sizes="trusted"), sizes=sizes)
    assert expected.weights is not None
    np.testing.assert_allclose([client["weight"] for client in report["clients"]], expected.weights)
    settings = ["--rule", "krum:f=2", "--pre", "nnm:f=2", "--reference", files[0], "--quiet"]
    assert run(*files, "-o", tmp_path / "out.safetensors", *settings) == 0
    assert capsys.readouterr().out == ""
    assert len(load_file(tmp_path / "out.safetensors")) == 3


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


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGHUP])
def test_terminated_in_the_midst(files: list[str], tmp_path: Path, how: signal.Signals) -> None:
    """SIGTERM, a closed terminal and Ctrl-C clean up and say so; the output is unchanged."""
    script = (
        "import sys, time; from honestly.sources.checkpoints import writer; put = writer.FileSink.put\n"
        "def slow(self, *args):\n    put(self, *args); print('writing', flush=True); time.sleep(1)\n"
        "writer.FileSink.put = slow\nfrom honestly.cli import main\nsys.exit(main(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", script, "aggregate", *files, "-o", str(tmp_path / "out.safetensors"), "--quiet"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=os.environ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == b"writing\n"
        process.send_signal(how)
        error = process.stderr.read()
        process.wait(30)
    assert process.returncode == 130
    assert b"interrupted" in error
    assert b"Traceback" not in error
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(Path(file).name for file in files)


def test_a_full_disk_is_named(
    files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(replace.os, "posix_fallocate", full)
        assert run(*files, "-o", tmp_path / "out.safetensors") == 1
    assert f"{tmp_path / 'out.safetensors'}: No space left on device" in capsys.readouterr().err
    monkeypatch.setattr(aggregate_report, "write", full)
    assert run(*files, "-o", tmp_path / "out.safetensors", "--report", tmp_path / "r.html") == 1
    error = capsys.readouterr().err
    assert "r.html: the report cannot be written: No space left on device; " in error
    assert "out.safetensors was written nevertheless" in error
    assert (tmp_path / "out.safetensors").exists()


def test_options_end_at_two_dashes(
    files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(files[0]).rename("--quiet.safetensors")
    for words in (
        [files[1], "-o", "out.safetensors", files[2], "--", "--quiet.safetensors"],
        ["-o", "out.safetensors", "--", "--quiet.safetensors", files[1], files[2]],
        [files[1], files[2], "-o", "out.safetensors", "--", "--quiet.safetensors"],
    ):
        assert run(*words) == 0
        assert "--quiet.safetensors" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        run(files[1], "-o", "out.safetensors", files[2], "--nonsense", "--", "--quiet.safetensors")
    assert "unknown option: --nonsense" in capsys.readouterr().err


def test_lora_adapters(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(0)
    folders = []
    for k in range(3):
        folder = tmp_path / f"site-{k}"
        folder.mkdir()
        tensors = {"m.lora_A.weight": rng.normal(size=(2, 9)), "m.lora_B.weight": rng.normal(size=(7, 2))}
        save_file({name: x.astype(np.float32) for name, x in tensors.items()}, folder / "adapter_model.safetensors")
        (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 2, "lora_alpha": 4}))
        folders.append(folder)
    assert run(*folders, "-o", tmp_path / "out", "--rule", "mean", "--lora", "svd", "--rank", "1", "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["lora"]["rank"] == "1"
    assert 0 < report["lora"]["relative_error"] < 1
    assert run(*folders, "-o", tmp_path / "out", "--rule", "mean", "--lora", "factors") == 0
    assert "not the mean of B A" in capsys.readouterr().err


def test_the_output_is_no_client_of_the_next_run(
    files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "global.safetensors"
    assert run(*files, "-o", out, "--quiet") == 0
    first = out.read_bytes()
    assert run(*files, out, "-o", out, "--quiet") == 2
    assert "which is the input" in capsys.readouterr().err
    assert out.read_bytes() == first
    # under another name it is recognised by its metadata: it is excluded, and the answer is the same
    again = tmp_path / "again.safetensors"
    assert run(*files, out, "-o", again, "--json") == 3
    report = json.loads(capsys.readouterr().out)
    assert report["excluded"] == ["global.safetensors"]
    assert "--allow-results" in report["clients"][-1]["reason"]
    assert again.read_bytes() == first
    assert run(*files, out, "-o", again, "--allow-results", "--json") == 0
    assert len(json.loads(capsys.readouterr().out)["clients"]) == 8
    # with the option, the old result is replaced and has no vote
    assert run(*files, out, "-o", out, "--allow-overwrite", "--quiet") == 3
    assert out.read_bytes() == first
    # the usual loop works: the reference may be the file that is replaced
    assert run(*files, "-o", out, "--reference", out, "--quiet") == 0


def spellings(file: Path) -> dict[str, str]:
    """Other names of one file."""
    folder = file.parent
    link, hard = folder / "link.safetensors", folder / "hard.safetensors"
    link.symlink_to(file)
    hard.hardlink_to(file)
    return {
        "the same": str(file),
        "dots": f"{folder}/../{folder.name}/./{file.name}",
        "relative": os.path.relpath(file),
        "link": str(link),
        "hard link": str(hard),
    }


@pytest.mark.parametrize("spelling", ["the same", "dots", "relative", "link", "hard link"])
def test_an_input_is_not_overwritten(
    files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], spelling: str
) -> None:
    before = Path(files[0]).read_bytes()
    out = spellings(Path(files[0]))[spelling]
    for exclusions in ("status", "fail"):
        assert run(*files, "-o", out, "--exclusions", exclusions) == 2
        assert "client-0.safetensors" in capsys.readouterr().err
    with pytest.raises(ValueError, match="allow_overwrite"):
        hn.aggregate(files, out=out)
    assert Path(files[0]).read_bytes() == before
    assert run(*files, "-o", out, "--allow-overwrite", "--quiet") == 0
    assert load_file(out)["b.bias"].shape == (9,)


def test_folders_of_inputs_are_not_overwritten(files: list[str], tmp_path: Path) -> None:
    folders = [tmp_path / f"site-{k}" for k in range(5)]
    for k, folder in enumerate(folders):
        folder.mkdir()
        Path(files[k]).rename(folder / "model.safetensors")
    assert run(*folders, "-o", folders[1]) == 2
    assert run(*folders, "-o", folders[1] / "model.safetensors") == 2
    assert run(*(folder / "model.safetensors" for folder in folders), "-o", folders[1]) == 2
    out = tmp_path / "global"
    assert run(*folders, "-o", out, "--quiet") == 0
    assert run(*folders, f"{out}/", "-o", out, "--quiet") == 2
    assert run(*folders, out, "-o", tmp_path / "next", "--quiet") == 3
    assert run(*folders, out, "-o", tmp_path / "next", "--quiet", "--allow-results") == 0


def test_an_npz_result_is_known_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(0)
    files = [tmp_path / f"client-{k}.npz" for k in range(5)]
    for file in files:
        np.savez(file, w=rng.normal(size=50))
    out = tmp_path / "global.npz"
    assert run(*files, "-o", out, "--quiet") == 0
    assert np.load(out)["w"].shape == (50,)
    assert run(*files, "-o", files[0]) == 2
    assert run(*files, out, "-o", tmp_path / "next.npz", "--json") == 3
    assert json.loads(capsys.readouterr().out)["excluded"] == ["global.npz"]


def test_a_file_is_given_once(files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*files, os.path.relpath(files[0]), "-o", tmp_path / "out.safetensors") == 2
    assert "given twice" in capsys.readouterr().err


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
    names.write_text(json.dumps({"client-6.safetensors": "Uppsala", "client-0.safetensors": "Lund"}))
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
