import numpy as np
import pytest

from honestly.aggregate import aggregate
from honestly.rules import FLDetector
from honestly.rules.fl_detector import hessian_times


def bfgs(S, Y):
    """The explicit Hessian that L-BFGS represents: update by update, from sigma times the identity."""
    sigma = Y[-1] @ S[-1] / (S[-1] @ S[-1])
    B = sigma * np.eye(S.shape[1])
    for s, y in zip(S, Y, strict=True):
        B = B - np.outer(B @ s, B @ s) / (s @ B @ s) + np.outer(y, y) / (y @ s)
    return B


@pytest.mark.parametrize("n", [1, 2, 4])
def test_hessian_products_are_those_of_bfgs(n):
    rng = np.random.default_rng(n)
    A = rng.normal(size=(8, 8))
    H = A @ A.T + np.eye(8)
    S = rng.normal(size=(n, 8))
    Y = S @ H
    v = rng.normal(size=8)
    np.testing.assert_allclose(hessian_times(S, Y, v), bfgs(S, Y) @ v, rtol=1e-7)


def test_a_window_without_steps_predicts_no_change():
    np.testing.assert_array_equal(hessian_times(np.zeros((2, 3)), np.zeros((2, 3)), np.ones(3)), np.zeros(3))


class Federation:
    """Clients that descend quadratics of their own; liars send noise from round `start` on."""

    def __init__(self, K=12, d=20, seed=0):
        rng = self.rng = np.random.default_rng(seed)
        self.centres = rng.normal(size=(K, d))
        self.curvature = rng.uniform(0.5, 1.5, size=d)
        self.model = 5.0 * rng.normal(size=d)

    def updates(self, liars):
        U = -0.1 * self.curvature * (self.model - self.centres)
        for k in liars:
            U[k] = np.linalg.norm(U[k]) * self.rng.normal(size=len(self.model)) / np.sqrt(len(self.model))
        return U

    def run(self, rule, rounds, liars=()):
        for _ in range(rounds):
            out = aggregate(self.model + self.updates(liars), rule, reference=self.model)
            rule, self.model = rule.after(out.diagnostics), out.value
            yield out


def test_removes_clients_that_their_past_does_not_predict():
    *_, last = Federation().run(FLDetector(window=3), 9, liars=(2, 7, 11))
    assert sorted(last.diagnostics["removed"]) == [2, 7, 11]
    np.testing.assert_array_equal(np.flatnonzero(last.weights == 0), [2, 7, 11])


def test_nobody_is_removed_without_evidence_or_before_there_is_a_past():
    outs = list(Federation().run(FLDetector(window=4), 5, liars=(2,)))
    assert all(out.diagnostics["removed"] == () for out in outs)
    np.testing.assert_allclose(outs[-1].weights, 1 / 12)


def naive_scores(history, window):
    """The scores of the last round from all rounds' gradients (each (K, d)) and models."""
    gradients, models = history
    t = len(gradients) - 1
    means = [g.mean(axis=0) for g in gradients]
    S = np.array([models[j + 1] - models[j] for j in range(t - 1 - window, t - 1)])
    Y = np.array([means[j + 1] - means[j] for j in range(t - 1 - window, t - 1)])
    predicted = gradients[t - 1] + bfgs(S, Y) @ (models[t] - models[t - 1])
    apart = np.linalg.norm(predicted - gradients[t], axis=1)
    return apart / apart.mean()


def test_scores_match_the_definition():
    federation, rule, window = Federation(K=6, d=8), FLDetector(window=2), 2
    gradients, models = [], []
    for _ in range(4):
        models.append(federation.model)
        U = federation.updates(())
        gradients.append(-U)
        out = aggregate(federation.model + U, rule, reference=federation.model)
        rule, federation.model = rule.after(out.diagnostics), out.value
    assert out.diagnostics["removed"] == ()
    scores = np.array([out.diagnostics["memory"].scores[k][-1] for k in range(6)])
    np.testing.assert_allclose(scores, naive_scores((gradients, models), window), rtol=1e-5)


def test_clients_are_not_removed_for_taking_part_in_small_rounds():
    """Five of twelve are there in every round: of a small round's distances each has a larger share."""
    federation, rule = Federation(), FLDetector(window=3)
    for number in range(16):
        there = 12 if number % 4 < 2 else 5  # a client is scored if it was there in the round before
        U = federation.updates(()) + 0.1 * federation.rng.normal(size=(12, 20))
        out = aggregate(dict(enumerate(federation.model + U[:there])), rule, reference=federation.model)
        rule, federation.model = rule.after(out.diagnostics), out.value
    assert out.diagnostics["removed"] == ()


def test_half_of_the_clients_are_never_removed_in_many_rounds():
    """Honest clients differ in how well they can be predicted: the worse ones were removed again and again."""
    federation, rule = Federation(), FLDetector(window=2)
    noise = np.repeat([1.0, 0.1, 0.01], [5, 3, 4])[:, None]
    for _ in range(30):
        U = federation.updates(()) + noise * federation.rng.normal(size=(12, 20))
        out = aggregate(federation.model + U, rule, reference=federation.model)
        rule, federation.model = rule.after(out.diagnostics), out.value
    assert sorted(out.diagnostics["removed"]) == [0, 1, 2, 3, 4]


def test_newcomers_and_another_model_are_accepted():
    federation, rule = Federation(), FLDetector(window=2)
    for out in federation.run(rule, 5):
        rule = rule.after(out.diagnostics)
    new = dict(enumerate(federation.model + federation.updates(())))
    new["late"] = new.pop(3)
    out = aggregate(new, rule, reference=federation.model)
    assert out.weights.min() > 0
    other = aggregate(np.ones((3, 4)), rule, reference=np.zeros(4))
    np.testing.assert_allclose(other.value, 1.0)
