"""Federated fine-tuning of a tiny character-level language model, made from scratch: no download, seconds on a CPU.

The text is an excerpt of this package's own documentation and licence, so it is the same everywhere.
"""

from __future__ import annotations

from honestly.sim.language.federation import LanguageFederation, LanguageRound
from honestly.sim.language.settings import Settings

__all__ = ["LanguageFederation", "LanguageRound", "Settings"]
