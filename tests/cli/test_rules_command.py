import argparse
import json

import pytest

from honestly.cli import rules as command
from honestly.rules import MIXERS, RULES


@pytest.fixture
def run():
    parser = argparse.ArgumentParser()
    command.add(parser.add_subparsers(required=True))

    def call(*arguments):
        args = parser.parse_args(["rules", *arguments])
        return args.run(args)

    return call


def test_the_table_names_everything(run, capsys, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    assert run() == 0
    names = [line.split()[0] for line in capsys.readouterr().out.splitlines()[1:-1]]
    assert names == [entry.name for entry in (*RULES, *MIXERS)]


def test_json(run, capsys):
    assert run("--json") == 0
    listed = {info["name"]: info for info in json.loads(capsys.readouterr().out)}
    assert set(listed) == {entry.name for entry in (*RULES, *MIXERS)}
    assert listed["multi_krum"]["needs"] == ["f"]
    assert listed["nnm"]["kind"] == "mixer"
    assert listed["bayesian"]["infers_honesty"]
