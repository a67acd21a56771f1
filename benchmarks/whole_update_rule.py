"""The default rule of version 0.1, which judged whole updates: kept for comparison (docs/explanation/bayesian.md).

    weights      a_k ~ v_k pi_k                                         about  c = sum_k a_k w_k
    honesty      pi = argmax  sum_k pi_k l_k - KL(pi || eps)            subject to  sum_k pi_k >= h
    evidence     l_k = 4 ln(2 s^2 / r_k^2),   r_k = |w_k - c|,        s^2 = h-th smallest r_k^2
    votes        v_k = 1 / sum_j max(0, cos_kj)^4                       cos: of errors about the geometric median

with near-identical updates merged into one client beforehand.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from honestly.rules.rule import GramGeometry, Mix, Rule

TINY = float(np.finfo(float).tiny)
ODDS = 4.0  # decrease of the log-odds per unit of ln r^2: how fast belief falls with distance
SLACK = 2.0  # r^2 / s^2 at which a client is as likely honest as not; half of the clients lie below 1
PLAINLY = 0.05  # the probability below which a client is clearly a liar
APART = 8.0  # u^2 / r^2 above which a distance u to clear liars is evidence for a client
ROOM = 4.0  # the largest factor by which the slack grows
ENORMOUS = 1e60  # r^2 / s^2 beyond which the likelihood of a client falls no further
CERTAIN = 600.0  # log-odds beyond this are cut: exp() stays finite
PLAIN = 10.0  # r^2 / s^2 at which a neighbourhood is as likely honest as not: only a clear separation counts
COPY = 0.1  # nearer than this share of the median distance to a nearest neighbour: a copy
MEDIAN_STEPS, SETTLED = 10, 1e-7  # Weiszfeld steps to the centre around which votes are counted
ROUNDING = 1e-13  # relative to the squared norms: rounding error of a squared distance of 0


@dataclass(frozen=True, kw_only=True)
class WholeUpdates(Rule):
    """The Bayesian rule on whole updates."""

    name: ClassVar[str] = "whole_updates"
    summary: ClassVar[str] = "the Bayesian rule of version 0.1, which judged whole updates"
    infers_honesty: ClassVar[bool] = True

    def mix(self, geometry):
        clients = GramGeometry(geometry.gram)
        K, group = clients.K, copies(clients, ROUNDING)
        if K <= 2:
            return Mix.of_weights(np.full(K, 1 / K), honesty=np.ones(K))
        size = np.ones(K) if group is None else np.bincount(group)[group].astype(float)
        if size.max() >= majority(K):
            same = (size == size.max()).astype(float)
            return Mix.of_weights(same / same.sum(), honesty=same)
        if group is not None:
            A = merging(group)
            clients = GramGeometry(A @ clients.gram @ A.T)
        h = majority(clients.K)
        median = geometric_median(clients, h)
        errors = centred(clients.gram, median)
        votes = shared_votes(likeness(errors))
        r2 = leave_one_out(np.maximum(errors.diagonal(), 0.0), median)
        start, apart = separated(clients, errors, h, median, smallest_of(r2, h))
        first = r2 if start is median else None
        a, pi, steps = em(clients, start, votes, prior=apart, h=h, roomy=True, r2=first)
        if group is not None:
            a, pi = a[group] / size, pi[group] / size
        return Mix.of_weights(a, honesty=pi, steps=steps)


def majority(n):
    return n // 2 + 1


def smallest_of(values, h):
    """The h-th smallest value."""
    return float(np.partition(values, h - 1)[h - 1])


# ---- copies and votes


def copies(clients, noise=0.0):
    """(K,) the number of each client's group, linked by near-zero distances; None: no links."""
    K = clients.K
    if K < 3:
        return None
    link = COPY**2 * float(np.median(clients.ranked[:, 1]))
    norms = clients.gram.diagonal()
    linked = clients.distances <= np.maximum(link, noise * (norms[:, None] + norms[None, :]))
    linked.flat[:: K + 1] = False
    i, j = np.nonzero(linked)
    if not len(i):
        return None
    group = np.arange(K)
    while (group[i] != group[j]).any():
        np.minimum.at(group, i, group[j])
    return np.unique(group, return_inverse=True)[1]


def merging(group):
    """(K', K) matrix whose rows average the groups."""
    member = np.zeros((int(group.max()) + 1, len(group)))
    member[group, np.arange(len(group))] = 1.0
    return member / member.sum(axis=1, keepdims=True)


def shared_votes(alike):
    return 1.0 / np.maximum(alike.sum(axis=1), 1.0)


def centred(G, a):
    """(n, n) Gram matrix of the `w_k - c`, `c = sum_j a_j w_j`."""
    g = G.dot(a)
    g = g - 0.5 * float(g.dot(a))
    return G - g - g[:, None]


def likeness(C):
    """(n, n) `max(0, cos)^4` of the angles between errors with this Gram matrix; 1 on the diagonal."""
    r = np.sqrt(np.maximum(C.diagonal(), 0.0))
    inverse = np.divide(1.0, r, out=np.zeros_like(r), where=r > 0.0)
    alike = np.clip(C * inverse * inverse[:, None], 0.0, 1.0) ** 4
    alike.flat[:: len(C) + 1] = 1.0
    return alike


def geometric_median(clients, h):
    """Weights of (nearly) the geometric median: Weiszfeld from weights (R_min / R_k)^2."""
    R = np.maximum(clients.ranked[:, h - 1], TINY)
    closest = float(R.min())
    a = (closest / R) ** 2
    a /= a.sum()
    for _ in range(MEDIAN_STEPS):
        r = np.sqrt(np.maximum(clients.residuals(a), max(1e-11 * closest, TINY)))
        old, a = a, np.maximum(1.0 - a, 0.1) / r
        a /= a.sum()
        if np.square(a - old).sum() <= SETTLED**2:
            break
    return a


# ---- neighbourhoods


def separated(clients, errors, h, otherwise, s2):
    """Weights of a centre to start the EM from, and each client's prior log-odds, from 0 to -2 ln n; or None."""
    n = clients.K
    N = np.zeros((n, n))
    np.put_along_axis(N, np.argsort(clients.distances, axis=1, kind="stable")[:, :h], 1.0 / h, axis=1)
    near = GramGeometry(N.dot(errors).dot(N.T))
    floor = 0.5 * s2 * (1.0 / h - 1.0 / n + 1.0 / h**2)
    if 2.0 * float(near.gram.diagonal().max() - near.gram.min()) <= PLAIN * floor * (1.0 - 1.0 / h) ** 2:
        return otherwise, None
    start = tightest(near.distances, h)
    a, pi, _ = em(near, start, np.ones(n), prior=None, h=h, slack=PLAIN, floor=floor)
    if pi.min() == 1.0:
        return otherwise, None
    return a @ N, -2.0 * np.log(n) * (1.0 - pi)


def tightest(D, h):
    """Weights of the mean of the tightest ball around a client that holds h clients."""
    near = np.partition(D, h - 1, axis=1)[:, :h]
    k = int(np.lexsort((near.sum(axis=1), near.max(axis=1)))[0])
    a = np.zeros(len(D))
    a[np.argsort(D[k], kind="stable")[:h]] = 1.0 / h
    return a


# ---- the EM


def leave_one_out(r2, a):
    """Squared distances to the mean of the others: a client must not vouch for itself."""
    return r2 / np.maximum(1.0 - a, 0.1) ** 2


def evidence(r2, s2, slack=SLACK):
    log_odds = ODDS * (math.log(slack * max(s2, TINY)) - np.log(np.maximum(r2, TINY)))
    return np.clip(log_odds, -CERTAIN, CERTAIN)


def room(r2, s2, pi, h):
    """Log-odds for clients much nearer than the clear liars; None if there are none, or n - h."""
    liars = np.maximum(1.0 - pi / PLAINLY, 0.0)
    m, most = float(liars.sum()), len(pi) - h
    if not 0.0 < m < most:
        return None
    s2 = max(s2, TINY)
    nearness = s2 / np.maximum(r2, s2)
    u2 = m / max(float(liars.dot(nearness)), m / ENORMOUS)
    return ODDS * min(m, 1.0) * (1.0 - m / most) * np.log(np.clip(nearness * u2 / APART, 1.0, ROOM))


def em(g, a, votes, *, prior, h, steps=100, tolerance=1e-7, slack=SLACK, roomy=False, r2=None, floor=0.0):
    """Alternate between pi (E-step, about the mean of the believed) and the mean (weights votes * pi)."""
    pi, eps, step, change = np.zeros(g.K), 0.25, 0, 1.0
    while change > tolerance and step < steps:
        step += 1
        r2 = leave_one_out(np.maximum(g.residuals(a), floor), a) if step > 1 or r2 is None else r2
        s2 = smallest_of(r2, h)
        log_odds = evidence(r2, s2, slack)
        nearer = room(r2, s2, pi, h) if roomy and step > 1 else None
        log_odds = log_odds if nearer is None else log_odds + nearer
        known = log_odds if prior is None else log_odds + prior
        old, (pi, eps) = pi, e_step(np.clip(known, -CERTAIN, CERTAIN), h, eps or 0.25)
        change = float(np.abs(pi - old).max())
        a = votes * pi
        a /= a.sum()
    return a, pi, step


def e_step(log_odds, h, start=0.25):
    """The pi that maximises `sum pi l - KL(pi || eps)` over pi and eps, subject to `sum pi >= h`; and eps."""
    n = len(log_odds)
    against = np.exp(-log_odds)
    if n <= h or against.sum() <= n:
        return np.ones(n), 0.0
    most = 1.0 - h / n

    def honest(eps):
        return 1.0 / (1.0 + against * (eps / (1.0 - eps)))

    def lacking(eps):
        pi = honest(eps)
        total = float(pi.sum())
        return 1.0 - eps - total / n, (total - float(pi.dot(pi))) / (n * eps * (1.0 - eps)) - 1.0

    if lacking(most)[0] <= 0.0:
        eps = root(lacking, 0.0, most, min(start, most))
        return honest(eps), eps

    def missing(t):
        pi = 0.5 + 0.5 * np.tanh(0.5 * (log_odds + t))
        total = float(pi.sum())
        return h - total, float(pi.dot(pi)) - total

    low = math.log(h / (n - h))
    high = max(40.0 - float(np.partition(log_odds, n - h)[n - h]), low)
    return 0.5 + 0.5 * np.tanh(0.5 * (log_odds + root(missing, low, high, low))), most


def root(function, low, high, x):
    """The root of a function (value, slope), positive at `low` and not at `high`: Newton, kept in its bracket."""
    for _ in range(60):
        value, slope = function(x)
        if abs(value) < 1e-15:
            return x
        low, high = (x, high) if value > 0.0 else (low, x)
        new = x - value / slope if slope < 0.0 else x + value
        new = new if low < new < high else 0.5 * (low + high)
        if abs(new - x) <= 1e-10 * (1.0 + abs(x)):
            return new
        x = new
    return x
