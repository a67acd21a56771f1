"""FLTrust: clients are compared with an update that the server computed itself."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from honestly.rules._lib.clipping import norms
from honestly.rules.rule import Geometry, Mix, Rule

#: An update about a reference is made at most this many times as long.
MOST_TIMES = 1000.0


@dataclass(frozen=True, kw_only=True)
class FLTrust(Rule):
    """The updates, each scaled to the length of a trusted root update, weighted by their agreement with it.

        t_k = max(0, cos(u_k, u_0));    value = reference + sum_k t_k (||u_0|| / ||u_k||) u_k / sum_k t_k

    u_k = w_k - reference, u_0 = root - reference. If no client agrees at all, the value is the reference.
    Convention: about a reference an update is made at most a thousand times as long. A client that changes the last bit
    of a single value has a direction, too, but so many times the difference of two models is their rounding.

    Args:
        root: the model or update that the server trained on its own clean data, in the same container as a client's.

    Example:
        >>> import numpy as np
        >>> from honestly.rules.rule import GramGeometry
        >>> X, root = np.array([[2.0, 0.0], [0.0, 5.0], [-9.0, 0.0]]), np.array([1.0, 0.0])
        >>> clients = GramGeometry(X @ X.T, root_products=np.append(X @ root, root @ root))
        >>> FLTrust(root=root).mix(clients).matrix @ X
        array([[1., 0.]])

    Reference: Cao et al., FLTrust: Byzantine-robust Federated Learning via Trust Bootstrapping, NDSS 2021.
    """

    root: Any = field(default=None, compare=False, repr=False)  # pyright: ignore[reportIncompatibleVariableOverride]

    name: ClassVar[str] = "fltrust"
    summary: ClassVar[str] = "updates weighted by their agreement with the server's own"
    reference: ClassVar[str] = "Cao et al., NDSS 2021"
    needs: ClassVar[frozenset[str]] = frozenset({"root", "reference"})

    def mix(self, geometry: Geometry) -> Mix:
        """Trust over length; the reference gets the rest of the weight, which may be negative."""
        if geometry.root_products is None:
            raise ValueError("FLTrust needs a trusted root update: FLTrust(root=...)")
        with_root, root_length = geometry.root_products[:-1], float(np.sqrt(geometry.root_products[-1]))
        lengths = norms(geometry.gram_about_reference)
        moved = (lengths > 0) & (root_length > 0)
        units = np.where(moved, lengths, 1.0)
        trust = np.where(moved, np.clip(with_root / units / (root_length or 1.0), 0.0, 1.0), 0.0)
        if trust.sum() == 0.0:
            return Mix.of_weights(np.zeros(geometry.K), diagnostics={"trust": trust})
        if geometry.has_reference:
            units = np.maximum(units, root_length / MOST_TIMES)
        return Mix.of_weights(trust * root_length / units / trust.sum(), diagnostics={"trust": trust})
