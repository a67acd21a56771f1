"""The example runs as it is printed."""

import runpy
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "custom_attack.py"


def test_it_runs_and_the_default_rule_withstands_the_attack(capsys):
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    kappa = {line.split()[0]: float(line.split()[2]) for line in capsys.readouterr().out.splitlines()}
    assert kappa["bayesian"] < 0.1 * kappa["mean"]
