"""The pages that come from the code: API, command line, configuration, attacks; and the results of the paper.

`docs/build.py` writes them over the short pages in the repository.
"""

from __future__ import annotations

import argparse
import dataclasses
import html
import importlib
import inspect
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from docstrings import documented

import honestly as hn
from honestly.cli import argparse_private as private
from honestly.cli import parser
from honestly.rules import MIXERS, RULES
from honestly.sim.attacks import ATTACKS
from honestly.sim.data import DATASETS
from honestly.sim.experiment import TRAINING, Experiment
from honestly.studies import study

API = {
    "api": (
        "The library",
        "`import honestly as hn`. Everything here needs NumPy and array-api-compat alone.",
        (
            "hn.aggregate", "hn.Aggregate", "hn.Status", "hn.AggregationError", "hn.list_rules", "hn.make",
            "hn.make_mixer", "hn.Checkpoints", "hn.Groups", "hn.Memory",
        ),
    ),
    "api-rules": (
        "Rules in Python",
        "Every rule and mixer is a frozen dataclass of its settings, which it checks when it is made. In formulas: K "
        "clients `w_k`, f attackers. What each needs and withstands is [in one table](rules.md); the classes behind "
        "a rule of your own are at the end.",
        (
            *(f"hn.{rule.__name__}" for rule in (*RULES, *MIXERS)),
            "honestly.rules.rule.Rule", "honestly.rules.rule.ColumnRule", "honestly.rules.rule.Mixer",
            "honestly.rules.rule.Geometry", "honestly.rules.rule.GramGeometry", "honestly.rules.rule.Mix",
            "honestly.rules.rule.squared_distances",
        ),
    ),
    "api-frameworks": (
        "Frameworks in Python",
        "One adapter for each framework. Each imports its framework, so each needs its extra.",
        (
            "honestly.flower.RobustFedAvg", "honestly.flower.LegacyRobustFedAvg", "honestly.flower.RobustFedAdam",
            "honestly.flower.RobustFedYogi", "honestly.flower.RobustFedAdagrad", "honestly.flower.RobustFedAvgM",
            "honestly.flower.RobustFedProx", "honestly.nvflare.RobustAggregator",
            "honestly.scaleout.server_functions", "honestly.torch.robust_all_reduce", "honestly.torch.RobustAverager",
            "honestly.torch.ddp_hook", "honestly.torch.RobustOuterOptimizer", "honestly.torch.Pending",
            "honestly.torch.DisagreementError", "honestly.torch.RankError", "honestly.torch.VerificationError",
            "honestly.torch.torchft.RobustManager", "honestly.jax.robust_mean",
        ),
    ),
    "api-simulation": (
        "Simulation in Python",
        "What is behind `honestly simulate` and `honestly bench`. Needs `honestly[sim]`.",
        (
            "honestly.sim.experiment.Experiment", "honestly.sim.settings.experiment", "honestly.sim.rounds.Federation",
            "honestly.sim.rounds.Record", "honestly.sim.run.run", "honestly.sim.summary.summary",
            "honestly.sim.data.Dataset", "honestly.sim.data.load", "honestly.sim.models.build",
            "honestly.sim.adversary.Adversary", "honestly.sim.attacks.Attack", "honestly.sim.attacks.UpdateAttack",
            "honestly.sim.attacks.DataAttack", "honestly.sim.attacks.View", "honestly.sim.attacks.Phase",
            "honestly.sim.attacks.make", "honestly.studies.study.Study", "honestly.runs.store.Store",
            "honestly.runs.store.Run",
        ),
    ),
}  # fmt: skip


def api(title: str, lead: str, names: tuple[str, ...]) -> str:
    """A page of classes and functions from their docstrings."""
    parts = [f"# {title}\n\n{lead}\n"]
    for name in names:
        module, _, attribute = name.rpartition(".")
        package = hn if module == "hn" else importlib.import_module(module)
        text = name if module == "hn" else f"{module}.{attribute}"
        parts.append(documented(text, getattr(package, attribute)))
    return "\n".join(parts)


def command_line() -> str:
    """Every sub-command from its parser."""
    (commands,) = private.subcommands(parser())
    rows = [f"| [`honestly {name}`](#honestly-{name}) | {text} |" for name, text in private.summaries(commands).items()]
    lead = (
        "# The command line\n\nEach command prints this with `--help`. The exit status is 0 only on success.\n\n"
        "| command | |\n|---|---|\n" + "\n".join(rows) + "\n"
    )
    return lead + "".join(_command(sub) for sub in private.parsers(commands).values())


def _command(parser: argparse.ArgumentParser) -> str:
    usage = parser.format_usage().removeprefix("usage: ").strip()
    rows = list(_arguments(parser))
    text = f"\n## {parser.prog}\n\n{_prose(parser.description)}\n\n```text\n{usage}\n```\n"
    if rows:
        text += "\n| argument | |\n|---|---|\n" + "\n".join(rows) + "\n"
    if parser.epilog:
        text += f"\n```text\n{parser.epilog.strip()}\n```\n"
    for action in private.subcommands(parser):
        text += "".join(_command(sub) for sub in private.parsers(action).values())
    return text


def _arguments(parser: argparse.ArgumentParser) -> Iterator[str]:
    inner = list(private.subcommands(parser))
    for action in private.actions(parser):
        if action.dest == "help" or action in inner or action.help == argparse.SUPPRESS:
            continue
        value = action.metavar or (action.dest.upper() if action.nargs != 0 else "")
        value = value if isinstance(value, str) else " ".join(value)
        if action.choices and not action.metavar:
            value = "{" + ",".join(map(str, action.choices)) + "}"
        text = ", ".join(f"{option} {value}".strip() for option in action.option_strings) or value
        about = (action.help or "") % {**vars(action), "prog": parser.prog}
        yield f"| {_code(text)} | {_cell(about)} |"


def _prose(text: str | None) -> str:
    return " ".join((text or "").split())


def _code(text: str) -> str:
    """Code in a cell: within backquotes an escaped bar would keep its backslash."""
    return f"<code>{html.escape(text, quote=False)}</code>".replace("|", "&#124;")


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")


def configuration() -> str:
    """The keys of an experiment, of each rule and of each attack."""
    schema = Experiment.model_json_schema()
    rows = []
    for key, field in Experiment.model_fields.items():
        about = field.description or ""
        rows.append(f"| `{key}` | {_type(schema['properties'][key])} | {_default(key, field)} | {_cell(about)} |")
    training = "; ".join(f"for `{name}` {_pairs(one.training)}" for name, one in DATASETS.items() if one.training)
    models = ", ".join(f"`{data}`: `{one.model}`" for data, one in DATASETS.items())
    return "\n".join(
        (
            "# Configuration",
            "",
            "## An experiment",
            "",
            "The keys of a TOML file for `honestly simulate`, of `key=value` on its command line, and of "
            "`Experiment.of({...})`. Unknown keys and impossible values are refused with the key, the value and what "
            "is allowed. The same as a [JSON schema](experiment.schema.json), for editors.",
            "",
            "| key | value | default | meaning |",
            "|---|---|---|---|",
            *rows,
            "",
            f"The model that a data set gets unless one is named: {models}.",
            f"Local training: {_pairs(TRAINING)}; {training}.",
            "",
            "`rule`, `pre` and `attack` are names, or tables with a `name` and settings; on a command line "
            "`rule=nnm:f=4+multi_krum:f=4,keep=8 attack=sign_flip:gamma=2`.",
            "",
            "## Settings of the rules and mixers",
            "",
            "| `rule` | settings and defaults |",
            "|---|---|",
            *(_settings(rule) for rule in (*RULES, *MIXERS)),
            "",
            "`rule.memory=0.9` gives the Bayesian rule a memory that keeps nine tenths of the past every round.",
            "",
            "## Settings of the attacks",
            "",
            "| `attack` | settings and defaults |",
            "|---|---|",
            *(_settings(attack) for attack in ATTACKS.values()),
            "",
            *_study(),
        )
    )


def _study() -> Iterator[str]:
    """The keys of a study, and an example that says what they mean."""
    text, _, example = (inspect.getdoc(study) or "").partition("\n\n")
    yield from ("## A study", "", f"`honestly bench FILE`. {text}", "", "```toml", example.strip(), "```", "")
    yield from ("| key | default |", "|---|---|")
    for key, field in study.Study.model_fields.items():
        yield f"| `{key}` | {'must be given' if field.is_required() else f'`{json.dumps(field.default)}`'} |"
    yield ""


def _pairs(values: dict[str, Any]) -> str:
    return ", ".join(f"{key} {value}" for key, value in values.items())


KINDS = {"integer": "integer", "number": "number", "boolean": "true, false", "string": "text"}


def _type(field: dict[str, Any]) -> str:
    kinds = field.get("anyOf", [field])
    if any("$ref" in kind for kind in kinds) or field.get("items"):
        return "name or table" if not field.get("items") else "list of names or tables"
    if "enum" in field:
        return ", ".join(f"`{value}`" for value in field["enum"])
    text = " or ".join(KINDS[kind["type"]] for kind in kinds if kind["type"] != "null")
    signs = (("minimum", "≥"), ("exclusiveMinimum", ">"), ("maximum", "≤"), ("exclusiveMaximum", "<"))
    bounds = [f"{sign} {field[key]:g}" for key, sign in signs if key in field and field[key] < 2**62]
    return f"{text} {', '.join(bounds)}".strip()


def _default(key: str, field: Any) -> str:
    if key in {"model", "flip", *TRAINING}:
        return "by data set"
    value = field.default
    if hasattr(value, "name"):
        return f"`{value.name}`"
    return "none" if value in ((), None) else f"`{json.dumps(value)}`"


def _settings(owner: type[Any]) -> str:
    fields = [field for field in dataclasses.fields(owner) if field.name not in ("root",)]
    text = [
        f"`{field.name}`" + ("" if field.default is dataclasses.MISSING else f" = {_cell(repr(field.default))}")
        for field in fields
    ]
    return f"| `{owner.name}` | {', '.join(text) or 'none'} |"


def attacks() -> str:
    """Every attack from its class."""
    from honestly.sim.attacks import KNOWS

    rows = [
        f"| `{one.name}` | {_cell(one.summary)} | {KNOWS[one.knows]} | {_kind(one)} | {one.training:g} x | "
        f"{one.keeps or 'nothing'} | {_cell(one.reference)} |"
        for one in ATTACKS.values()
    ]
    return "\n".join(
        (
            "# Attacks",
            "",
            "`honestly attacks` prints this list. An attack says how malicious clients lie; who lies and when is the "
            "experiment's `malicious`, `dynamic`, `chosen`, `start`, `stop`, `period`, `burst` and `turns` "
            "([configuration](configuration.md)). One of your own is [one class](../how-to/own-attack.md).",
            "",
            "What an attacker computes in a round is given in local trainings of an honest client; what it holds "
            "beside its own update in numbers: d coordinates, K clients, M of them malicious.",
            "",
            "| name | what it does | it knows | changes | computes | holds | reference |",
            "|---|---|---|---|---|---|---|",
            *rows,
            "",
        )
    )


def _kind(attack: type[Any]) -> str:
    from honestly.sim.attacks import DataAttack, UpdateAttack

    kinds = [name for kind, name in ((DataAttack, "data"), (UpdateAttack, "updates")) if issubclass(attack, kind)]
    return " and ".join(kinds) or "nothing"


def measured(results: Path, pictures: Path) -> str:
    """The reproduction of the paper as `honestly report ... --out results` wrote it, if this checkout has it."""
    source = results / "README.md"
    if not source.is_file():
        return "This checkout has no `results/README.md`, which `honestly report` writes once the studies have run.\n"

    def kept(match: re.Match[str]) -> str:
        target = results / match[3]
        if not target.is_file() or target.suffix not in (".png", ".svg", ".csv", ".tex"):
            return match[2]  # pages of single runs and the like are not on the site
        copied = pictures / match[3]
        copied.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(target, copied)
        return f"{match[1]}[{match[2]}]({pictures.name}/{match[3]})"

    text = re.sub(r"(!?)\[([^\]]*)\]\((?!https?:)([^)#\s]+)[^)]*\)", kept, source.read_text(encoding="utf-8"))
    return re.sub(r"^(#+) ", r"##\1 ", text, flags=re.M)


def write(docs: Path, *, results: Path) -> None:
    """All pages, into a copy of docs/."""
    pages = {f"{name}.md": api(*about) for name, about in API.items()}
    pages |= {"cli.md": command_line(), "configuration.md": configuration(), "attacks.md": attacks()}
    pages["experiment.schema.json"] = json.dumps(Experiment.model_json_schema(), indent=1) + "\n"
    for name, text in pages.items():
        (docs / "reference" / name).write_text(text, encoding="utf-8")
    paper = docs / "results" / "paper.md"
    before, _, rest = paper.read_text(encoding="utf-8").partition("<!-- measured:")
    after = rest.partition("<!-- /measured -->")[2]
    paper.write_text(before + measured(results, docs / "results" / "paper") + after, encoding="utf-8")
