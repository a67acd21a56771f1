"""`honestly aggregate` end to end: input files, the output file, the table, reports and exit status."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
from aggregate_command import run
from safetensors.numpy import load_file, save_file

import honestly as hn


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


@pytest.mark.parametrize(
    ("rule", "remedy"),
    [
        ("mean", "ignores sizes; write mean:sizes=capped or mean:sizes=trusted, or leave --sizes out"),
        ("median", "ignores sizes; leave --sizes out"),
        ("nnm:f=2+krum:f=2", "ignores sizes; leave --sizes out"),
    ],
)
def test_sizes_are_not_ignored_without_a_word(
    files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], rule: str, remedy: str
) -> None:
    (tmp_path / "sizes.json").write_text("[1, 2, 3, 4, 5, 6, 7]")
    out = tmp_path / "out.safetensors"
    assert run(*files, "-o", out, "--sizes", tmp_path / "sizes.json", "--rule", rule) == 2
    assert remedy in capsys.readouterr().err
    assert not out.exists()
    assert run(*files, "-o", out, "--sizes", tmp_path / "sizes.json", "--rule", "krum:f=2") == 0


@pytest.mark.parametrize("kind", ["csv", "json"])
def test_the_mark_of_a_spreadsheet_costs_no_client_its_size(
    files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    claims = {name: 10 * (k + 1) for k, name in enumerate("abcdefg")}
    text = json.dumps(claims) if kind == "json" else "".join(f"{name},{size}\n" for name, size in claims.items())
    (tmp_path / "sizes").write_text(text, encoding="utf-8-sig")
    (tmp_path / "ids.txt").write_text("\n".join("abcdefg"), encoding="utf-8-sig")
    options = ["--ids", f"@{tmp_path / 'ids.txt'}", "--sizes", tmp_path / "sizes", "--rule", "mean:sizes=trusted"]
    assert run(*files, "-o", tmp_path / "out.safetensors", *options, "--json") == 0
    clients = json.loads(capsys.readouterr().out)["clients"]
    assert [client["id"] for client in clients] == list("abcdefg")
    np.testing.assert_allclose([client["weight"] for client in clients], np.arange(1, 8) / 28)


def test_sizes_by_names_that_no_client_has_are_refused(
    files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = tmp_path / "sizes.json"
    sizes.write_text(json.dumps({Path(file).stem: 10 + k for k, file in enumerate(files)}))
    assert run(*files, "-o", tmp_path / "out.safetensors", "--sizes", sizes) == 2
    message = capsys.readouterr().err
    assert f"--sizes {sizes} names none of the clients: it begins with {Path(files[0]).stem!r}" in message
    assert f"the first client is {Path(files[0]).name!r}" in message
    assert not (tmp_path / "out.safetensors").exists()


def test_sizes_nested_too_deep(files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "sizes.json").write_text("[" * 100_000)
    assert run(*files, "-o", tmp_path / "out.safetensors", "--sizes", tmp_path / "sizes.json") == 2
    assert "it is not valid JSON" in capsys.readouterr().err


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


def test_a_file_is_given_once(files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*files, os.path.relpath(files[0]), "-o", tmp_path / "out.safetensors") == 2
    assert "given twice" in capsys.readouterr().err
