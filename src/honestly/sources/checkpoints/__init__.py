"""Checkpoints on disk as a source: safetensors files, shards, LoRA adapters, .npz and PyTorch files."""

from honestly.sources.checkpoints.open import open_checkpoints
from honestly.sources.checkpoints.options import Checkpoints

__all__ = ["Checkpoints", "open_checkpoints"]
