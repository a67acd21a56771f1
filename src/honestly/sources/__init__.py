"""Where K clients' updates come from: one array, containers of arrays, or files."""

from honestly.sources.open import open_source
from honestly.sources.source import Layer, Leaf, Sink, Source

__all__ = ["Layer", "Leaf", "Sink", "Source", "open_source"]
