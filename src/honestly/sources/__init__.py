"""Where K clients' updates come from: one array, containers of arrays, or files."""

from honestly.sources.base import Layer, Leaf, Sink, Source
from honestly.sources.open import open_source

__all__ = ["Layer", "Leaf", "Sink", "Source", "open_source"]
