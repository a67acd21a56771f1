"""From a source of updates to a robust average: screen, measure, decide, average."""

from honestly.engine.passes import EarlyStart
from honestly.engine.pipeline import Decision, Pipeline
from honestly.engine.run import run

__all__ = ["Decision", "EarlyStart", "Pipeline", "run"]
