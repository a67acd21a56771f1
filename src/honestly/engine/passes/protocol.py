"""What the engine may ask of the data, each answered in one pass over column blocks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np

from honestly.result import Float
from honestly.rules.geometry import Coordinates, Statistics
from honestly.rules.rule import ColumnRule

# A centre of `gram`: each coordinate's median of the first, the middle and the last client. It is near the honest ones
# unless two of those three are not, and a kernel that holds all values of a column gets it for free.
BETWEEN = -1
# Nothing is subtracted; to `gram` that is None.
ZERO = -2

# Whether the result of a pass is finite and not absurdly large; called late, so a device can work meanwhile.
Verdict: TypeAlias = Callable[[], bool]


class Passes(Protocol):
    """Passes over the rows of a source; `clients` are positions, `centre` the position of the row to subtract."""

    def free_centre(self, clients: Sequence[int]) -> int | None:
        """`BETWEEN` or `ZERO`, if `gram` centres these rows there for less than on one of them; else None."""
        ...

    def sample(self, clients: Sequence[int]) -> Float:
        """(k, n) values of a few thousand columns spread over all leaves, as float64, nothing subtracted."""
        ...

    def gram(self, clients: Sequence[int], centre: int | None, only: Sequence[int] | None = None) -> Float:
        """(L, k, k) Gram matrices of the centred rows, one for each of the source's layers, each exactly symmetric.

        With `only`, no more columns are read than it takes to know those of these layers; the others are not.
        A row that is not finite spoils its own row and column only, in the layers where it is not.
        """
        ...

    def residuals(
        self, a: Float, clients: Sequence[int], centre: int | None, norms: Float | None
    ) -> tuple[Float, Float]:
        """(m, L, k) squared distances of every row to each mixture `a @ X` by layer, `a` (m, k) of rows that sum to 1.

        And the squared norms of the centred rows, (L, k), which the caller may pass if they are known. A row
        that is not finite spoils its own norm; it spoils the mixtures that it is part of, and no others.
        """
        ...

    def mix(self, weights: Float, clients: Sequence[int]) -> tuple[Sequence[Any], Verdict]:
        """`weights @ X`, one flat array per leaf; and whether all values are finite and not absurdly large.

        `weights` is (k,), the same for all columns, or (L, k), a row for each of the source's layers.
        """
        ...

    def reduce(self, rule: ColumnRule, mixing: Float | None, clients: Sequence[int]) -> tuple[Sequence[Any], Verdict]:
        """`rule.reduce` of the sorted columns (of `mixing @ X` if given); and whether all rows are finite.

        A coordinate-wise rule ignores layers: it reduces buffers like parameters.
        """
        ...

    def sign_counts(self, clients: Sequence[int], reference: int | None, mixing: Float | None) -> Float:
        """(m, 3) how many judged coordinates of `mixing @ X - reference` are positive, zero and negative."""
        ...

    def coordinates(self, clients: Sequence[int], reference: int | None, mixing: Float | None) -> Coordinates:
        """`mixing @ (X - reference)` by judged layer, whole and on the host; ValueError where that cannot be."""
        ...

    def statistics(self, clients: Sequence[int], reference: int | None, mixing: Float | None) -> Sequence[Statistics]:
        """BatchNorm's running means and variances of the mixtures, by layer; () where there are none."""
        ...

    def distances(self, clients: Sequence[int], values: Sequence[Any]) -> Float:
        """(k, leaves) squared distances of every row to the result that `mix` or `reduce` returned."""
        ...

    def fault(self, client: int) -> str | None:
        """Read all values of this client; the reason why they cannot be used, or None."""
        ...


def symmetrize(grams: Float) -> Float:
    """(L, k, k) the same matrices, exactly symmetric, whatever the order in which their halves were summed."""
    with np.errstate(over="ignore", invalid="ignore"):
        return 0.5 * (grams + np.swapaxes(grams, 1, 2))


def single_clients(mixing: Float) -> list[int] | None:
    """The clients that the mixtures consist of, if each is a single client; then there is nothing to multiply."""
    single = (np.count_nonzero(mixing, axis=1) == 1).all() and (mixing.max(axis=1) == 1.0).all()
    return mixing.argmax(axis=1).tolist() if single else None
