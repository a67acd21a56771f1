"""Variants of the rule on whole updates that were tried and not shipped, such as `--rule variant:change=no_room`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from whole_update_rule import (
    centred,
    copies,
    e_step,
    em,
    evidence,
    geometric_median,
    leave_one_out,
    likeness,
    majority,
    merging,
    separated,
    shared_votes,
    tightest,
)

from honestly.result import Float
from honestly.rules.rule import Geometry, GramGeometry, Mix, Rule, squared_distances

CHANGES = (
    "nothing",  # the rule, rebuilt from its parts: must agree with it
    "first_form",  # the first hardened form: exponential residuals, tightest ball, neighbourhood evidence
    "copies_not_merged",
    "no_shared_votes",
    "votes_recounted",  # votes counted again around every new centre
    "votes_by_distance",  # 1 / local density from distances instead of cosines
    "no_neighbourhoods",
    "eager_neighbourhoods",  # any separation of neighbourhoods counts, not only a clear one
    "no_room",  # the distance of obvious liars is no evidence about the others
)


@dataclass(frozen=True, kw_only=True)
class Variant(Rule):
    """The Bayesian rule with one part changed."""

    change: str = "nothing"

    name: ClassVar[str] = "variant"
    summary: ClassVar[str] = "the Bayesian rule with one part changed"
    infers_honesty: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.change not in CHANGES:
            raise ValueError(f"Variant: change must be one of {', '.join(CHANGES)}, got {self.change!r}")

    def mix(self, geometry: Geometry) -> Mix:
        G = geometry.gram
        group = None if self.change == "copies_not_merged" else copies(GramGeometry(G))
        group = np.arange(len(G)) if group is None else group
        A = merging(group)
        G = A @ G @ A.T
        a, pi = first_form(G) if self.change == "first_form" else change_part(G, self.change)
        return Mix.of_weights(a @ A, honesty=pi[group] / np.bincount(group)[group])


def change_part(G: Float, change: str) -> tuple[Float, Float]:
    n, h = len(G), majority(len(G))
    g = GramGeometry(G)
    D = g.distances
    a = geometric_median(g, h)
    votes, prior = shared_votes(likeness(centred(G, a))), None
    if change == "no_shared_votes":
        votes = np.ones(n)
    if change == "votes_by_distance":
        near = np.quantile(D[np.triu_indices(n, 1)], 0.3)
        votes = 1.0 / (np.maximum(0.0, 1.0 - D / near) ** 2).sum(axis=1)
    if change == "eager_neighbourhoods":
        a, prior = neighbourhood(G, D, h)
    elif change != "no_neighbourhoods":
        radius = float(np.partition(leave_one_out(g.residuals(a), a), h - 1)[h - 1])
        a, prior = separated(g, centred(G, a), h, a, radius)
    if change == "votes_recounted":
        pi = np.ones(n)
        for _ in range(40):
            r2 = leave_one_out(g.residuals(a), a)
            known = evidence(r2, float(np.partition(r2, h - 1)[h - 1]))
            pi, _ = e_step(known if prior is None else known + prior, h)
            a = shared_votes(likeness(centred(G, a))) * pi
            a /= a.sum()
        return a, pi
    return em(g, a, votes, prior=prior, h=h, roomy=change != "no_room")[:2]


def neighbourhood(G: Float, D: Float, h: int) -> tuple[Float, Float]:
    """Like `separated`, with the same slack as for clients."""
    n = len(G)
    N = np.zeros((n, n))
    np.put_along_axis(N, np.argsort(D, axis=1, kind="stable")[:, :h], 1.0 / h, axis=1)
    near = GramGeometry(N @ G @ N.T)
    start = tightest(squared_distances(near.gram), h)
    weights, pi, _ = em(near, start, np.ones(n), prior=np.zeros(n), h=h)
    return weights @ N, np.log(np.maximum(pi, 1.0 / n**2))


def first_form(G: Float) -> tuple[Float, Float]:
    """Exponential residuals against a uniform, from the tightest ball, with neighbourhood evidence as a prior."""
    n, h = len(G), majority(len(G))
    D = squared_distances(G)
    s0 = float(np.partition(GramGeometry(G).residuals(tightest(D, h)), h - 1)[h - 1])
    N = np.zeros((n, n))
    np.put_along_axis(N, np.argsort(D, axis=1, kind="stable")[:, :h], 1.0 / h, axis=1)
    near = GramGeometry(N @ G @ N.T)
    floor = s0 * (1 / h - 1 / n + 1 / h**2)
    q = exponential_em(near, tightest(squared_distances(near.gram), h), np.zeros(n), floor)
    pi = exponential_em(GramGeometry(G), (q / q.sum()) @ N, np.log(np.maximum(q, 1.0 / n**2)), 0.0)
    return pi / pi.sum(), pi


def exponential_em(g: GramGeometry, a: Float, prior: Float, floor: float) -> Float:
    """`l = ln n - r^2 / s^2 - ln(s^2 / s0)`, s0 the squared majority radius at the start, s^2 the believed mean."""
    n, h = g.K, majority(g.K)
    pi, s0 = np.ones(n), 0.0
    for step in range(100):
        r2 = np.maximum(g.residuals(a), floor)
        s0 = s0 or max(float(np.partition(r2, h - 1)[h - 1]), 1e-300)
        s2 = s0 if step == 0 else float(pi @ r2 / pi.sum())
        old, (pi, _) = pi, e_step(np.clip(np.log(n) - r2 / s2 - np.log(s2 / s0) + prior, -600, 600), h)
        a = pi / pi.sum()
        if step and np.abs(pi - old).max() < 1e-7:
            break
    return pi
