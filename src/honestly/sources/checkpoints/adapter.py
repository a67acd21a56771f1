"""One client's LoRA adapter (PEFT): pairs of factors `scale * B A`, and the settings that say what they mean."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from honestly.sources.checkpoints.checkpoint import Checkpoint
from honestly.sources.checkpoints.names import factor_of
from honestly.sources.checkpoints.tensors import Tensor
from honestly.sources.tree import UnusableError, tensor_label

LARGEST_RANK = 4096
#: What PEFT writes before the names of modules in files, but not in settings.
PREFIX = "base_model.model."
#: Settings of PEFT that are kept if most clients have them; all others are left at PEFT's defaults.
KEPT = (
    "base_model_name_or_path", "revision", "task_type", "target_modules", "modules_to_save", "bias",
    "fan_in_fan_out", "layers_to_transform", "layers_pattern", "exclude_modules",
)  # fmt: skip
#: Settings that say what the tensors belong to. Clients must agree on them, and the result has them as they are.
MEANING = ("layer_replication", "target_parameters", "trainable_token_indices")
#: Settings under which the update is not `scale * B A`.
NOT_LINEAR = (
    "use_dora", "use_qalora", "use_bdlora", "lora_bias", "megatron_config", "loftq_config", "corda_config",
    "kasa_config", "monteclora_config", "arrow_config", "alora_invocation_tokens",
)  # fmt: skip
#: Initialisations that leave the base model as it is. Others (PiSSA, OLoRA, LoftQ, CorDA, LoRA-GA) take their product
#: out of its weights when an adapter of the same rank is loaded, which the result, of another rank, cannot ask for.
PLAIN_STARTS = ("gaussian", "eva", "orthogonal", "mica")


@dataclass(frozen=True)
class Pair:
    """The factors of one module: A is (r, in...), B is (out, r, 1...); the update is `scale * B A`."""

    a: Tensor
    b: Tensor
    a_name: str
    b_name: str
    scale: float

    @property
    def rank(self) -> int:
        """r."""
        return self.a.spec.shape[0]

    @property
    def columns(self) -> int:
        """Values in a row of A."""
        return math.prod(self.a.spec.shape[1:])

    @property
    def rows(self) -> int:
        """Rows of B."""
        return self.b.spec.shape[0]


@dataclass(frozen=True)
class Adapter:
    """All pairs of a client by module, its other tensors by name, and its base model."""

    checkpoint: Checkpoint
    pairs: Mapping[str, Pair]
    plain: Mapping[str, Tensor]
    base: str
    config: Mapping[str, Any]

    def meaning(self) -> dict[str, str]:
        """Settings that clients must agree on, as JSON."""
        return {name: json.dumps(self.config.get(name) or None, sort_keys=True) for name in MEANING}

    def signature(self) -> dict[str, tuple[tuple[int, ...], str]]:
        """Name -> (shape, kind) of what the adapter changes, whatever its ranks."""
        layout = {module: ((p.rows, *p.a.spec.shape[1:]), "float") for module, p in self.pairs.items()}
        # B of a convolution ends in ones, which the shape of the product does not show
        layout |= {f"{module}.lora_B": ((p.rows, *p.b.spec.shape[2:]), "float") for module, p in self.pairs.items()}
        return layout | {name: (tensor.spec.shape, tensor.spec.kind) for name, tensor in self.plain.items()}


def read_adapter(checkpoint: Checkpoint) -> Adapter:
    """The adapter in a checkpoint folder. Raises `UnusableError` with the reason why it cannot be averaged."""
    config = checkpoint.config
    if config.get("peft_type") != "LORA":
        raise UnusableError(
            f"its adapter_config.json has peft_type {str(config.get('peft_type'))[:40]!r}, expected 'LORA'"
        )
    for name in NOT_LINEAR:
        if config.get(name):
            raise UnusableError(f"its adapter_config.json sets {name}: such adapters are not plain products B A")
    start = config.get("init_lora_weights")
    if isinstance(start, str) and start.lower() not in PLAIN_STARTS:
        raise UnusableError(
            f"its adapter_config.json has init_lora_weights {start[:40]!r}, which changes the base model: save it with "
            "PEFT's path_initial_model_for_weight_conversion"
        )
    ranks, alphas = _read_patterns(config, "rank_pattern"), _read_patterns(config, "alpha_pattern")
    pairs: dict[str, Pair] = {}
    plain: dict[str, Tensor] = {}
    for name, tensor in checkpoint.tensors.items():
        factor = factor_of(name)
        if factor is None:
            if tensor.spec.kind != "float":
                raise UnusableError(f"{tensor_label(name)} has dtype {tensor.spec.dtype}; adapters hold float tensors")
            if "lora_" in name:
                raise UnusableError(f"{tensor_label(name)} is not a known kind of LoRA factor")
            plain[name] = tensor
        elif factor.other not in checkpoint.tensors:
            raise UnusableError(f"{tensor_label(factor.other)} is missing, but {name[:100]!r} needs it")
        elif factor.side == "A":
            pairs[factor.module] = _pair(factor.module, name, factor.other, checkpoint, ranks, alphas)
    if not pairs:
        raise UnusableError("holds no LoRA factors")
    base = f"{config.get('base_model_name_or_path')}@{config.get('revision') or 'main'}"
    return Adapter(checkpoint, pairs, plain, base, config)


def _pair(
    module: str, a_name: str, b_name: str, checkpoint: Checkpoint, ranks: Patterns, alphas: Patterns
) -> Pair:  # fmt: skip
    config = checkpoint.config
    a, b = checkpoint.tensors[a_name], checkpoint.tensors[b_name]
    shape_a, shape_b = a.spec.shape, b.spec.shape
    fits = len(shape_a) >= 2 and len(shape_b) >= 2 and shape_a[0] == shape_b[1] and math.prod(shape_b[2:]) == 1
    if a.spec.kind != "float" or b.spec.kind != "float" or not fits:
        raise UnusableError(f"{tensor_label(module)}: its factors {shape_a} and {shape_b} cannot be multiplied")
    rank = int(next(iter(shape_a)))
    declared = _setting(ranks, module, config.get("r"))
    if type(declared) is not int or not 1 <= declared <= LARGEST_RANK or declared != rank:
        raise UnusableError(
            f"{tensor_label(module)} has rank {rank}, but its adapter_config.json says {str(declared)[:40]}"
        )
    alpha = _setting(alphas, module, config.get("lora_alpha"))
    if type(alpha) not in (int, float) or not 1e-6 < abs(alpha) < 1e6:
        raise UnusableError(
            f"{tensor_label(module)} has lora_alpha {str(alpha)[:40]}, expected a number from 1e-6 to 1e6"
        )
    scale = alpha / math.sqrt(rank) if config.get("use_rslora") is True else alpha / rank
    return Pair(a, b, a_name, b_name, float(scale))


#: By name of a module (`^` before a whole one): the place among the patterns, and the value.
Patterns: TypeAlias = Mapping[str, tuple[int, Any]]


def _read_patterns(config: Mapping[str, Any], pattern: str) -> Patterns:
    """Settings by module, with their places in the file. PEFT's patterns are regular expressions. Only plain names are
    accepted from clients, because an expression can be written to run forever."""
    patterns = config.get(pattern) or {}
    if not isinstance(patterns, dict):
        raise UnusableError(f"its adapter_config.json has a {pattern} that is not a mapping")
    by_name: dict[str, tuple[int, Any]] = {}
    for place, (key, value) in enumerate(patterns.items()):
        if not re.fullmatch(r"\^?[\w.\\-]{1,500}\$?", key):
            raise UnusableError(f"its {pattern} has the key {key[:60]!r}; only module names are supported")
        by_name.setdefault(key.replace("\\.", ".").removesuffix("$"), (place, value))
    return by_name


def _setting(patterns: Patterns, module: str, default: Any) -> Any:
    """A setting for one module: the first pattern that is its name, or ends it; `^` asks for the whole name."""
    if not patterns:
        return default
    name = module.removeprefix(PREFIX)
    ends = [0, *(i + 1 for i, letter in enumerate(name) if letter == ".")]
    matches = [patterns[key] for key in (f"^{name}", *(name[i:] for i in ends)) if key in patterns]
    return min(matches, key=lambda match: match[0])[1] if matches else default


def result_config(adapters: Sequence[Adapter], ranks: Mapping[str, int], scales: Mapping[str, float] | None) -> bytes:
    """The adapter_config.json of the result: what most clients say of the model, and the result's own ranks.

    `lora_alpha = r`, so the scale is 1, unless `scales` gives one by module.
    """
    config: dict[str, Any] = {"peft_type": "LORA", "inference_mode": True, "use_rslora": False, "use_dora": False}
    for name in KEPT:
        votes = Counter(json.dumps(_sorted(adapter.config.get(name)), sort_keys=True) for adapter in adapters)
        value = json.loads(max(votes, key=lambda text: (votes[text], text)))
        if value is not None:
            config[name] = value
    agreed = {name: adapters[0].config.get(name) for name in MEANING}
    config |= {name: value for name, value in agreed.items() if value}
    alphas = {module: rank * (1.0 if scales is None else scales[module]) for module, rank in ranks.items()}
    config |= _most_and_others("r", "rank_pattern", ranks)
    config |= _most_and_others(
        "lora_alpha", "alpha_pattern", {m: int(a) if a == int(a) else a for m, a in alphas.items()}
    )
    return (json.dumps(config, indent=2, sort_keys=True) + "\n").encode()


def _sorted(value: Any) -> Any:
    """A list in one order: PEFT writes sets of names, such as `target_modules`, in another order in every process."""
    return sorted(value, key=json.dumps) if isinstance(value, list) else value


def _most_and_others(name: str, pattern: str, values: Mapping[str, Any]) -> dict[str, Any]:
    votes = Counter(values.values())
    most = max(votes, key=lambda value: (votes[value], value))
    names = [module.removeprefix(PREFIX) for module in values]

    def key(module: str) -> str:  # a name also matches all that end in it, unless it is anchored
        own = module.removeprefix(PREFIX)
        return f"^{own}" if any(name.endswith(f".{own}") for name in names) else own

    return {name: most, pattern: {key(module): value for module, value in values.items() if value != most}}
