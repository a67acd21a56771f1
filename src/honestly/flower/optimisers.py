"""Flower's server optimisers over the robust average: FedAdam, FedYogi, FedAdagrad, FedAvgM and FedProx.

The optimiser is Flower's own class. It asks its parent class for FedAvg's average and gets the robust one. Its changes
to BatchNorm's statistics and counters are undone, because a step of Adam can make a running variance negative.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAdagrad, FedAdam, FedAvgM, FedProx, FedYogi

from honestly.federation import Doubt, Sizes
from honestly.federation.names import Naming
from honestly.federation.server import load_moments, save_moments
from honestly.flower.replies import views
from honestly.flower.strategy import RobustFedAvg
from honestly.rules.rule import Mixer, Rule

logger = logging.getLogger("flwr")
#: Attributes in which Flower's optimisers keep their moments.
MOMENTS = ("m_t", "v_t", "momentum_vector")


class _OptimiserMixin(RobustFedAvg):
    """Comes before Flower's optimiser in the method resolution order; `RobustFedAvg` comes after it."""

    def __init__(
        self,
        *,
        rule: Rule | str = "bayesian",
        pre: Sequence[Mixer | str] | Mixer | str = (),
        quorum: float = 0.5,
        doubt: Doubt = "accept",
        history: Any = None,
        buffers: Any = "follow",
        sizes: Sizes = "use",
        names: Naming | None = None,
        run: str = "",
        **strategy_kwargs: Any,
    ) -> None:
        super().__init__(**strategy_kwargs)  # Flower's optimiser, which does not know our settings
        self._referee = self._judge_by(
            rule, pre=pre, quorum=quorum, doubt=doubt, history=history, buffers=buffers, sizes=sizes, names=names,
            run=run,
        )  # fmt: skip
        self._average: dict[str, Array] = {}
        self._resumed = False

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """As Flower's optimiser does. Moments that an earlier server saved for this model are restored."""
        if not self._resumed and self.history.folder is not None:
            self._load(arrays)
        self._resumed = True
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Flower's step over the robust average, in the model's dtypes; None keeps the old model and the moments."""
        before = {name: getattr(self, name, None) for name in MOMENTS}
        self._average = {}
        with np.errstate(over="ignore", invalid="ignore"):
            arrays, metrics = super().aggregate_train(server_round, replies)
        if arrays is None:
            return arrays, metrics
        moved = {name: self._like_model(name, array) for name, array in arrays.items() if name not in self._follow}
        if not all(np.isfinite(values).all() for values in moved.values()):
            logger.error(
                "round %s: the step of the server's optimiser is not finite; the average is used instead", server_round
            )
            moved = {}
            for name, value in before.items():
                if hasattr(self, name):
                    setattr(self, name, value)
        record = ArrayRecord({name: Array(moved[name]) if name in moved else self._average[name] for name in arrays})
        if isinstance(getattr(self, "current_arrays", None), ArrayRecord):
            self.current_arrays = record  # FedAvgM continues from the model that it returned
        self._save(record)
        return record, metrics

    def _on_average(self, average: ArrayRecord) -> None:
        """Keep the robust average, before Flower's optimiser takes its step."""
        self._average = dict(average.items())

    @property
    def _follow(self) -> set[str]:
        """Tensors that are not optimised: buffers, and tensors that are not floats."""
        hold = self._referee.buffers.hold
        return {name for name, array in self._average.items() if hold(name) or np.dtype(array.dtype).kind != "f"}

    def _like_model(self, name: str, array: Array) -> Any:
        dtype = array.dtype if self._model is None or name not in self._model else self._model[name].dtype
        return array.numpy().astype(np.dtype(dtype), copy=False)

    def _save(self, record: ArrayRecord) -> None:
        folder = self.history.folder
        if folder is None:
            return
        names, arrays = list(record), {"optimiser": np.array(type(self).__name__)}
        for moment in MOMENTS:
            tensors: Any = getattr(self, moment, None)
            pairs = tensors.items() if isinstance(tensors, dict) else zip(names, tensors or (), strict=False)
            arrays |= {f"{moment}/{name}": np.asarray(values) for name, values in pairs}
        try:
            save_moments(folder, arrays, views(record))
        except OSError as error:
            logger.error("the moments could not be written to %s: %s", folder, error)

    def _load(self, arrays: ArrayRecord) -> None:
        folder = self.history.folder
        assert folder is not None
        try:
            stored = load_moments(folder, views(arrays))
        except ValueError:
            return
        if stored is None or str(stored.pop("optimiser", "")) != type(self).__name__:
            return
        for moment in MOMENTS:
            moments = {key.partition("/")[2]: values for key, values in stored.items() if key.startswith(f"{moment}/")}
            if moments and set(moments) == set(arrays) and hasattr(self, moment):
                # FedAvgM's are by position; a model that was read from a file may have its tensors in another order
                setattr(self, moment, [moments[name] for name in arrays] if moment == "momentum_vector" else moments)
        logger.info("the moments of the server's optimiser were restored from %s", folder)


class RobustFedAdam(_OptimiserMixin, FedAdam, RobustFedAvg):
    """Flower's FedAdam over the robust average.

    Args:
        rule, pre, quorum, doubt, history, buffers, sizes, names, run: as for `RobustFedAvg`. With a history, the
            moments are kept in its folder and used again after a restart of the server from the same model.
        strategy_kwargs: every keyword argument of Flower's FedAdam: `eta`, `beta_1`, `beta_2`, `tau`, and FedAvg's.

    Example:
        >>> from honestly.flower import RobustFedAdam
        >>> RobustFedAdam(rule="bayesian", eta=0.05, beta_1=0.9).eta
        0.05
    """


class RobustFedYogi(_OptimiserMixin, FedYogi, RobustFedAvg):
    """Flower's FedYogi over the robust average; arguments as for `RobustFedAdam`, and FedYogi's."""


class RobustFedAdagrad(_OptimiserMixin, FedAdagrad, RobustFedAvg):
    """Flower's FedAdagrad over the robust average; arguments as for `RobustFedAdam`, and FedAdagrad's."""


class RobustFedAvgM(_OptimiserMixin, FedAvgM, RobustFedAvg):
    """Flower's FedAvgM over the robust average; arguments as for `RobustFedAdam`, and FedAvgM's (`server_momentum`)."""


class RobustFedProx(_OptimiserMixin, FedProx, RobustFedAvg):
    """Flower's FedProx over the robust average: clients get `proximal-mu` in their configuration.

    Arguments as for `RobustFedAdam`, and FedProx's (`proximal_mu`).
    """
