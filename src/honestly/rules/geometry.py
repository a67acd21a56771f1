"""What a rule may know of the clients: their mutual distances, layer by layer, never their coordinates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from honestly.result import ClientId, Float

if TYPE_CHECKING:
    from honestly.rules.gram import GramGeometry


class Coordinates(NamedTuple):
    """Whole updates `w_k - reference` of K clients, (K, n) for each judged layer, and the reference, (n,) for each."""

    updates: Sequence[Any]
    reference: Sequence[Any]


class Statistics(NamedTuple):
    """BatchNorm's running statistics of one layer, (K, n) each, of K clients."""

    layer: str
    mean: Float
    variance: Float


class Geometry(Protocol):
    """All that a rule may know of K clients `w_k`: their mutual distances, never their coordinates.

    Excluded clients are not part of it: every row is finite.
    """

    @property
    def K(self) -> int:
        """Number of clients."""
        ...

    @property
    def ids(self) -> Sequence[ClientId]:
        """The clients' names, for rules with a memory; () stands for 0..K-1."""
        ...

    @property
    def sizes(self) -> Float | None:
        """(K,) sizes that the clients reported, if the caller passed them. Attackers lie about them."""
        ...

    @property
    def streaming(self) -> bool:
        """True if K is so large that a rule should ask for `residuals` (a pass each) rather than for `gram`."""
        ...

    @property
    def gram(self) -> Float:
        """(K, K) `G = C C^T` of the centred updates. The centre is unknown: only differences have a meaning.

        It is the sum of `layers` over those that are judged.
        """
        ...

    @property
    def layers(self) -> Float:
        """(L, K, K) Gram matrix of each layer by itself, buffers included."""
        ...

    @property
    def judged(self) -> npt.NDArray[np.bool_]:
        """(L,) False for buffers, which do not count when clients are judged."""
        ...

    @property
    def layer_names(self) -> Sequence[str]:
        """The layers' names, for people."""
        ...

    @property
    def layer_sizes(self) -> Float:
        """(L,) numbers of columns."""
        ...

    @property
    def has_reference(self) -> bool:
        """Whether the caller gave the previous model; without it the reference is 0."""
        ...

    @property
    def gram_about_reference(self) -> Float:
        """(K, K) Gram matrix of `w_k - reference`."""
        ...

    @property
    def root_products(self) -> Float | None:
        """(K + 1,) `<w_k - reference, root - reference>` of every client, then `|root - reference|^2`; or None."""
        ...

    def residuals(self, a: Float) -> Float:
        """`||w_k - sum_j a_j w_j||^2` for weights (K,) that sum to 1, or a row of residuals for each row of (m, K)."""
        ...

    def layer_residuals(self, a: Float) -> Float:
        """(L, K) `residuals` by layer, buffers included; (m, L, K) for weights (m, K)."""
        ...

    def subset(self, clients: Sequence[int]) -> GramGeometry:
        """The geometry of some of the clients, with its Gram matrices."""
        ...

    def sign_counts(self) -> Float:
        """(K, 3) how many coordinates of `w_k - reference` are > 0, == 0 and < 0."""
        ...

    def coordinates(self) -> Coordinates:
        """The updates themselves, all in memory at once: for the few rules whose ``needs`` has "updates"."""
        ...

    def statistics(self) -> Sequence[Statistics]:
        """BatchNorm's running means and variances by layer, for rules whose ``needs`` has "buffers"; () if none."""
        ...
