"""A federation's server side without any framework: the round's decision, its record and its history on disk."""

from honestly.federation.buffer import Buffer
from honestly.federation.history import History
from honestly.federation.record import Reply, Round
from honestly.federation.referee import Doubt, Referee, Sizes

__all__ = ["Buffer", "Doubt", "History", "Referee", "Reply", "Round", "Sizes"]
