"""Models by name, and any `nn.Module` factory by its dotted name."""

from __future__ import annotations

from honestly.sim.models.registry import MODELS, ModelSource, build, source

__all__ = ["MODELS", "ModelSource", "build", "source"]
