"""Rules, mixers and attacks by name, and the words that stand for them in every interface."""

from honestly.catalog.catalog import Catalog, SettingsError
from honestly.catalog.words import Spec, split_words, value_of

__all__ = ["Catalog", "SettingsError", "Spec", "split_words", "value_of"]
