"""An adaptive attack: it knows the rule and searches for the updates that move the aggregate furthest."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace

import numpy as np

from honestly.engine import Pipeline
from honestly.result import Float
from honestly.sim.attacks.attack import Array, UpdateAttack, View, setting
from honestly.sim.attacks.game import Game
from honestly.sim.attacks.min_max import MinMax

# distances from the honest mean, in honest spreads; the last one exposes rules without any bound
STEPS = (0.5, 1.0, 1.6, 2.5, 5.0, 15.0, 1e3)
# how much the copies differ from each other: (block of the basis, factor)
JITTERS = (("noise", 0.0), ("noise", 0.15), ("noise", 0.5), ("own", 1.0))
# attacks without collusion: independent noise, each attacker's own deviation made far too long, and a chain in which
# each attacker is hidden by a larger one
ALONE = (("noise", 3.0), ("noise", 1e3), ("own", 1e3), ("chain", 3.0))
# a decoy that draws the rule's attention while the others collude, in honest spreads
DECOY = 100.0
# operations of an exact subset search, for each candidate
WORK = 300_000


@dataclass(frozen=True)
class Candidate:
    """A candidate: `t u + j noise`, and how far it moves the aggregate."""

    kappa: float
    t: float
    j: float
    u: Float
    noise: Float

    def rows(self) -> Float:
        """(M, n) coefficients."""
        return self.t * self.u + self.j * self.noise


@dataclass(frozen=True, kw_only=True)
class Adaptive(UpdateAttack):
    """`mean + t u + j_k` with direction u, distance t and jitter j_k chosen to maximise `||aggregate - honest mean||`.

    White box: it knows all honest updates, the rule (with its random numbers, if any) and the mixers in front of it,
    and works against any rule of the package. It tries directions (against and along the honest mean, the first two
    principal directions of the honest spread, a random one, minus the standard deviation, the farthest honest client),
    each as identical vectors, with isotropic jitter, with each attacker's own honest deviation, which hides the
    collusion, and behind one far attacker as a decoy; and lies without collusion. Then it refines distance and jitter
    of the best. Rules that work on the Gram matrix are asked in the span of these vectors (see `Game`), coordinate-wise
    rules on a sample of columns. Without a known rule, and
    against a rule that does not answer (it needs layers or buffers which the search does not have, or more clients than
    take part), it is Min-Max.

    Args:
        lines: how many of the best candidates are refined.
        refine: steps of the refinement of each.
        columns: how many columns stand for all of them against a coordinate-wise rule.

    >>> import numpy as np
    >>> X = np.random.default_rng(1).normal(size=(12, 50))
    >>> g = Adaptive().forge(View(own=X[8:], others=X[:8], rng=np.random.default_rng(0)))
    >>> g.shape
    (4, 50)
    """

    name = "adaptive"
    summary = "knows the rule and searches for the colluding update that moves the aggregate furthest"
    reference = "in the spirit of Shejwalkar and Houmansadr, NDSS 2021, against any rule"
    knows = "rule"
    keeps = "(K + 2 M) d"

    lines: int = setting(3, whole=True, least=0)
    refine: int = setting(5, whole=True, least=0)
    columns: int = setting(4096, whole=True, least=1)

    def craft(self, view: View) -> Array:
        """The best rows found, as updates."""
        return self.craft_and_count(view)[0]

    def craft_and_count(self, view: View) -> tuple[Array, int]:
        """The best rows found, as updates, and how many lies were tried."""
        if view.pipeline is None:
            return MinMax().craft(view), 0
        game = Game.of(view, cheaper(view.pipeline), columns=self.columns)
        if not game.can_be_asked():
            return MinMax().craft(view), 0
        return game.vectors(self.search(game)), len(game.tries)

    def search(self, game: Game) -> Float:
        """(M, n) coefficients of the attackers' updates."""
        candidates: list[Candidate] = []
        for u in game.directions().values():
            for directions, noise, j in _disguises(game, u):
                # jitter changes nothing at the far end
                tried = [_at(game, t, j, directions, noise) for t in (STEPS if j == 0.0 else STEPS[:-1])]
                candidates.append(max(tried, key=_round_kappa))
        if candidates:
            candidates += [_at(game, 0.0, j, candidates[0].u, _noise(game, block)) for block, j in ALONE]
        if not candidates:  # every direction has length 0: there is nothing to search
            return game.each("own")
        candidates.sort(key=_round_kappa, reverse=True)
        best = [*(self._refine(game, line) for line in candidates[: self.lines]), candidates[0]]
        if game.pipeline is game.view.pipeline:
            return max(best, key=_round_kappa).rows()
        # the search used a cheaper form of the rule: let the rule itself judge the best candidate of each direction
        each = {line.u.tobytes(): line for line in reversed(candidates)}
        true = replace(game, pipeline=game.view.pipeline)
        return max((_at(true, c.t, c.j, c.u, c.noise) for c in (*best, *each.values())), key=_round_kappa).rows()

    def _refine(self, game: Game, line: Candidate) -> Candidate:
        """A pattern search in the logarithms of distance and jitter, from steps of a quarter down."""
        factor = 1.25
        for _ in range(self.refine):
            for t, j in ((factor, 1.0), (1.0 / factor, 1.0), (1.0, factor), (1.0, 1.0 / factor)):
                if line.j > 0.0 or j == 1.0:
                    other = _at(game, t * line.t, j * line.j, line.u, line.noise)
                    line = max(line, other, key=_round_kappa)
            factor = 1.0 + 0.7 * (factor - 1.0)
        return line


def _noise(game: Game, block: str) -> Float:
    """(M, n) what tells the attackers apart; in a chain each is four times as far as the one before."""
    if block != "chain":
        return game.each(block)
    return 4.0 ** np.arange(game.view.M)[:, None].clip(max=10) * game.each("noise")


def _disguises(game: Game, u: Float) -> Iterator[tuple[Float, Float, float]]:
    """Direction, jitter and its factor: copies, jittered copies, shifted honest updates, and copies behind a decoy."""
    for block, j in JITTERS:
        yield u, game.each(block), j
    if game.view.M > 1:
        first = np.arange(game.view.M)[:, None] == 0
        yield np.where(first, 0.0, u), np.where(first, game.each("noise"), 0.0), DECOY


def _at(game: Game, t: float, j: float, u: Float, noise: Float) -> Candidate:
    line = Candidate(0.0, t, j, u, noise)
    return replace(line, kappa=game.displacement(line.rows()))


def _round_kappa(line: Candidate) -> float:
    """Kappa to three digits: ties go to the first line, so rounding (and the array library) does not decide."""
    return float(f"{line.kappa:.3g}")


def cheaper(pipeline: Pipeline) -> Pipeline:
    """The same with less effort for the rule's search, if it has a setting ``work``: it is asked hundreds of times."""
    if "work" not in {field.name for field in fields(pipeline.rule)}:
        return pipeline
    return pipeline.with_rule(work=min(int(getattr(pipeline.rule, "work", WORK)), WORK))
