"""Who is honest, given distances to a centre: the evidence, the constrained E-step and the EM loop of `Bayesian`."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from honestly.result import Float

# K is small: what counts here is the number of NumPy calls, about a microsecond each, and not what each one computes.
TINY = float(np.finfo(float).tiny)
ODDS = 4.0  # log-odds lost per unit of ln r^2: how fast belief falls with distance
SLACK = 2.0  # r^2 / s^2 at which a client is as likely honest as not; half of the clients lie below 1
PLAINLY = 0.05  # the probability below which a client is plainly a liar
APART = 8.0  # u^2 / r^2 from which on it speaks for a client that plain liars are u away
ROOM = 4.0  # by what factor the slack grows at most
ENORMOUS = 1e60  # r^2 / s^2 beyond which a client is as unlikely as can be
CERTAIN = 600.0  # log-odds beyond this are cut: exp() stays finite


class Residuals(Protocol):
    """All that the EM asks of a geometry."""

    @property
    def K(self) -> int:
        """Number of clients."""
        ...

    def residuals(self, a: Float) -> Float:
        """`||w_k - sum_j a_j w_j||^2`."""
        ...


@dataclass(frozen=True)
class Posterior:
    """What the EM found: weights, probabilities, log-odds without prior, the majority's squared radius."""

    weights: Float
    pi: Float
    evidence: Float
    radius: float
    bound: bool
    converged: bool
    steps: int


def smallest_of(values: Float, h: int) -> float:
    """The h-th smallest value."""
    ranked = values.copy()
    ranked.partition(h - 1)
    return float(ranked[h - 1])


def leave_one_out(r2: Float, a: Float) -> Float:
    """Squared distances to the mean of the *others*, `r_k^2 / (1 - a_k)^2`: a client must not vouch for itself."""
    others = 1.0 - a
    np.maximum(others, 0.1, out=others)
    others *= others
    return np.divide(r2, others, out=others)


def evidence(r2: Float, s2: float, slack: float = SLACK) -> Float:
    """`l_k = ODDS ln(slack s^2 / r_k^2)`: a power law, so that only ratios of distances matter and no tail is cut."""
    log_odds = np.log(np.maximum(r2, TINY))
    log_odds *= -ODDS
    log_odds += ODDS * math.log(slack * max(s2, TINY))
    return _cut(log_odds)


def room(r2: Float, s2: float, pi: Float, h: int) -> Float | None:
    """Log-odds for clients much nearer than the plain liars: `ODDS (1 - m / (n - h)) ln(u^2 / (APART r_k^2))`.

    The logarithm counts from 0 to `ln ROOM`. With m plain liars, n - h - m honest clients lie beyond s, and nobody
    knows how far; but liars have a distance u too, and few of them are much nearer. `u^2` is the harmonic mean of the
    `r_k^2` of the plain liars, each counted `max(0, 1 - pi_k / PLAINLY)` times, which add up to m: the nearest decide.
    Less than one liar speaks less, or the EM could go round in circles. None if there are no plain liars, or n - h.
    """
    liars = 1.0 - pi / PLAINLY
    np.maximum(liars, 0.0, out=liars)
    m, most = float(liars.sum()), len(pi) - h
    if not 0.0 < m < most:
        return None
    s2 = max(s2, TINY)
    nearness = s2 / np.maximum(r2, s2)
    u2 = m / max(float(liars.dot(nearness)), m / ENORMOUS)  # in units of s^2
    nearness *= u2 / APART
    np.maximum(nearness, 1.0, out=nearness)
    np.minimum(nearness, ROOM, out=nearness)
    log_odds = np.log(nearness, out=nearness)
    log_odds *= ODDS * min(m, 1.0) * (1.0 - m / most)
    return log_odds


def e_step(log_odds: Float, h: int, start: float = 0.25) -> tuple[Float, float, bool]:
    """The pi that maximises `sum pi l - KL(pi || eps)` over pi and eps, subject to `sum pi >= h`.

    If `mean(exp(-l)) <= 1`, all pi = 1 and eps = 0. Else eps is the root of `1 - eps = mean(pi)` with
    `pi = (1 - eps) p / ((1 - eps) p + eps)`, `p = e^l`, on (0, 1 - h/n]; if it lies beyond, `pi = sigmoid(l + t)` with
    t such that `sum pi = h`.

    Arguments:
        log_odds: (n,) l, of being honest.
        h: the smallest majority.
        start: where to look for eps first.

    Returns:
        pi, eps, and whether the constraint was active.

    Example:
        >>> pi, eps, bound = e_step(np.array([2.0, 2.0, 2.0, -9.0]), h=3)
        >>> pi.round(3), round(eps, 3), bound
        (array([0.998, 0.998, 0.998, 0.007]), 0.25, True)
    """
    n = len(log_odds)
    against = np.exp(-log_odds)
    all_honest = bool(against.sum() <= n)
    if n <= h or all_honest:
        return np.ones(n), 0.0, not all_honest
    most = 1.0 - h / n

    def honest(eps: float) -> Float:
        pi = against * (eps / (1.0 - eps))
        pi += 1.0
        return np.reciprocal(pi, out=pi)

    def lacking(eps: float) -> tuple[float, float]:
        pi = honest(eps)
        total = float(pi.sum())
        return 1.0 - eps - total / n, (total - float(pi.dot(pi))) / (n * eps * (1.0 - eps)) - 1.0

    if lacking(most)[0] <= 0.0:
        eps = _root(lacking, 0.0, most, min(start, most))
        return honest(eps), eps, False

    def missing(t: float) -> tuple[float, float]:
        pi = _sigmoid(log_odds + t)
        total = float(pi.sum())
        return h - total, float(pi.dot(pi)) - total

    low = math.log(h / (n - h))
    high = 40.0 - float(np.partition(log_odds, n - h)[n - h])  # there the h most likely have pi = 1
    t = _root(missing, low, max(high, low), low)
    return _sigmoid(log_odds + t), most, True


def em(
    geometry: Residuals,
    a: Float,
    votes: Float,
    *,
    prior: Float | None,
    h: int,
    steps: int,
    tolerance: float,
    slack: float = SLACK,
    roomy: bool = False,
    r2: Float | None = None,
) -> Posterior:
    """Alternate between pi (E-step, about the mean of the believed) and the mean (weights `votes * pi`).

    Arguments:
        geometry: the clients, after copies were merged.
        a: weights of the centre to start from.
        votes: how much of an independent opinion each client is.
        prior: log-odds known beforehand; None: even odds.
        h: the smallest majority.
        steps: the limit of steps; each asks for residuals once.
        tolerance: the largest change of a probability at which to stop.
        slack: r^2 / s^2 at which a client is as likely honest as not.
        roomy: whether being much nearer than the liars of the step before speaks for a client (see `room`).
        r2: squared distances to the mean of the others about the centre `a`, if they are known.
    """
    pi, all_ones = np.zeros(geometry.K), np.ones(geometry.K)
    log_odds: Float | None = None
    s2, eps, bound = 0.0, 0.25, False
    change, step = 1.0, 0
    while change > tolerance and step < steps:
        step += 1
        r2 = leave_one_out(geometry.residuals(a), a) if step > 1 or r2 is None else r2
        s2 = smallest_of(r2, h)
        old, log_odds = pi, None
        if prior is None and _all_honest(r2, s2, slack):  # most often: no logarithms are needed
            pi, eps, bound = all_ones, 0.0, False
        else:
            log_odds = evidence(r2, s2, slack)
            nearer = room(r2, s2, old, h) if roomy and step > 1 else None
            if nearer is not None:
                log_odds += nearer
            pi, eps, bound = e_step(log_odds if prior is None else _cut(log_odds + prior), h, eps or 0.25)
        change = 0.0 if pi is old else float(np.abs(pi - old).max())
        a = votes * pi
        a /= a.sum()
    assert r2 is not None, "at least one step is made"
    log_odds = evidence(r2, s2, slack) if log_odds is None else log_odds
    return Posterior(a, pi, log_odds, s2, bound, change <= tolerance, step)


def _all_honest(r2: Float, s2: float, slack: float) -> bool:
    """Whether the E-step would find everybody honest: `mean(exp(-l)) <= 1`."""
    against = np.minimum(r2, ENORMOUS * s2)  # whose fourth power is still a number
    against *= 1.0 / (slack * max(s2, TINY))
    against *= against
    return bool(against.dot(against) <= len(r2))


def _cut(log_odds: Float) -> Float:
    """Log-odds within what exp() can take, in place."""
    np.maximum(log_odds, -CERTAIN, out=log_odds)
    return np.minimum(log_odds, CERTAIN, out=log_odds)


def _sigmoid(x: Float) -> Float:
    return 0.5 + 0.5 * np.tanh(0.5 * x)


def _root(function: Callable[[float], tuple[float, float]], low: float, high: float, x: float) -> float:
    """The root of a function (value, slope), positive at `low` and not at `high`: Newton, kept in its bracket."""
    for _ in range(60):
        value, slope = function(x)
        if abs(value) < 1e-15:  # nothing but rounding, which might point out of the bracket
            return x
        if value > 0.0:
            low = x
        else:
            high = x
        new = x - value / slope if slope < 0.0 else x + value  # x + value is a plain EM step for eps
        if not low < new < high:
            new = 0.5 * (low + high)
        if abs(new - x) <= 1e-10 * (1.0 + abs(x)):
            return new
        x = new
    return x
