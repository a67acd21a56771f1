"""The names of LoRA factors in an adapter's file, as PEFT writes them."""

from __future__ import annotations

import re
from typing import NamedTuple

# ...q_proj.lora_A.weight, ...q_proj.lora_A.default.weight, ...embed_tokens.lora_embedding_A
_FACTOR = re.compile(r"^(?P<module>.+)\.lora_(?P<embedding>embedding_)?(?P<side>[AB])(?P<rest>(\.[^.]+){0,2})$")


class Factor(NamedTuple):
    """Which module a tensor belongs to, and which of the two factors it is; the other's name is `other`."""

    module: str
    side: str
    other: str


def factor_of(name: str) -> Factor | None:
    """The factor that a tensor's name says it is; None for a tensor that is not part of a LoRA product.

    Example:
        >>> factor_of("model.q_proj.lora_A.weight")
        Factor(module='model.q_proj', side='A', other='model.q_proj.lora_B.weight')
    """
    match = _FACTOR.match(name) if len(name) < 2000 else None
    if match is None:
        return None
    module, side = match["module"], match["side"]
    other = f"{module}.lora_{match['embedding'] or ''}{'B' if side == 'A' else 'A'}{match['rest']}"
    return Factor(module, side, other)
