"""honestly: robust averaging for federated learning. It tells which clients to believe."""

from honestly._version import __version__
from honestly.result import Aggregate, AggregationError, Status

__all__ = ["Aggregate", "AggregationError", "Status", "__version__"]
