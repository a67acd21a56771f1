"""Compare every rule that ByzFL also has on the same data: how much the results differ, and why.

Needs `pip install byzfl`. Run: `python benchmarks/against_byzfl.py`. Prints a Markdown table with the largest
difference over all trials for each rule, once as shipped and once with both following the same convention. The second
must be rounding error; otherwise the exit status is 1.
"""

from __future__ import annotations

import importlib
import importlib.util
import itertools
import platform
import sys
import types
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

import honestly as hn
from honestly.rules.rule import GramGeometry, squared_distances

ROUNDING = 1e-6
TRIALS = 20


@dataclass(frozen=True)
class Pair:
    """A rule of both libraries; `same` must agree with ByzFL's up to rounding."""

    name: str
    ours: Callable[[Any], Any]
    theirs: Callable[[Any], Any]
    same: Callable[[Any], Any]
    why: str
    dims: tuple[int, ...] = (1, 7, 200)
    theirs_same: Callable[[Any], Any] | None = None
    comparable: Callable[[Any], bool] = lambda X: True


def rule(choice: Any, **options: Any) -> Callable[[Any], Any]:
    return lambda X: hn.aggregate(X, choice, **options).value


def mixtures(mixer: Any) -> Callable[[Any], Any]:
    """Return a function that computes the mixtures themselves."""

    def call(X: Any) -> Any:
        return mixer.mix(GramGeometry(X @ X.T)) @ X

    return call


def subsets_of_smallest_diameter(X: Any, f: int) -> int:
    """Count the subsets of K - f clients with the smallest diameter; if there are several, a tie-break decides."""
    D = squared_distances(X @ X.T)
    diameters = [float(D[np.ix_(S, S)].max()) for S in itertools.combinations(range(len(X)), len(X) - f)]
    return int(np.isclose(diameters, min(diameters), rtol=1e-9).sum())


def caf_with_the_maximum_over_all(X: Any, f: int) -> Any:
    """ByzFL's CAF with the exact eigenvector; its maximum of t includes clients that were already removed."""
    c = np.ones(len(X))
    best, smallest = None, np.inf
    while c.sum() > len(X) - 2 * f:
        mu = c @ X / c.sum()
        values, vectors = np.linalg.eigh((c[:, None] * (X - mu)).T @ (X - mu) / c.sum())
        if values[-1] < smallest:
            best, smallest = mu, values[-1]
        t = ((X - mu) @ vectors[:, -1]) ** 2
        c = c * (1 - t / t.max())
    return best


def weiszfeld_from_zero(X: Any, nu: float = 0.1, steps: int = 3) -> Any:
    z = np.zeros(X.shape[1])
    for _ in range(steps):
        b = 1.0 / np.maximum(np.linalg.norm(X - z, axis=1), nu)
        z = b @ X / b.sum()
    return z


def pairs(byzfl: Any, K: int, f: int) -> Iterator[Pair]:
    mean, median, trimmed = rule(hn.Mean()), rule(hn.Median()), rule(hn.TrimmedMean(f=f))
    yield Pair("mean", mean, byzfl.Average(), mean, "the same")
    yield Pair("median", median, byzfl.Median(), median, "the same")
    yield Pair("trimmed_mean", trimmed, byzfl.TrMean(f=f), trimmed, "the same")
    gm = rule(hn.GeometricMedian())
    yield Pair(
        "geometric_median",
        gm,
        byzfl.GeometricMedian(),
        gm,
        "3 smoothed steps from 0 (nu = 0.1) against converged; the same when ByzFL runs 3,000 steps with nu = 1e-12",
        (7, 200),
        lambda X: byzfl.GeometricMedian(nu=1e-12, T=3000)(X),
    )
    yield Pair(
        "smoothed_geometric_median",
        rule(hn.SmoothedGeometricMedian(nu=0.1, steps=3)),
        byzfl.GeometricMedian(nu=0.1, T=3),
        weiszfeld_from_zero,
        "ours starts at the majority nearest to the mean, ByzFL at 0; the same formula from 0",
    )
    yield Pair(
        "krum",
        rule(hn.Krum(f=f)),
        byzfl.Krum(f=f),
        rule(hn.Krum(f=f - 1)),
        "K - f - 2 neighbours (Blanchard et al.) against K - f - 1: the same as ours told f - 1",
    )
    yield Pair(
        "multi_krum",
        rule(hn.MultiKrum(f=f)),
        byzfl.MultiKrum(f=f),
        rule(hn.MultiKrum(f=f - 1, keep=K - f)),
        "K - f - 2 neighbours against K - f - 1: the same as ours told f - 1 and keep = K - f",
    )
    cc = rule(hn.CenteredClipping(tau=1.5, steps=3), reference=None)

    def from_zero(X: Any) -> Any:
        return hn.aggregate(X, hn.CenteredClipping(tau=1.5, steps=3), reference=np.zeros(X.shape[1])).value

    yield Pair(
        "centered_clipping",
        cc,
        lambda X: byzfl.CenteredClipping(L=3, tau=1.5)(X),
        from_zero,
        "ByzFL starts at 0, ours at the reference or a central client; the same with reference 0",
    )
    mda = rule(hn.MDA(f=f))
    yield Pair(
        "mda",
        mda,
        byzfl.MDA(f=f),
        mda,
        "subsets of the same diameter: smallest variance against the first listed; the same where there is only one",
        comparable=lambda X: subsets_of_smallest_diameter(X, f) == 1,
    )
    monna = rule(hn.MoNNA(f=f, trusted=2))
    yield Pair("monna", monna, byzfl.MoNNA(f=f, idx=2), monna, "the same")
    meamed = rule(hn.Meamed(f=f))
    yield Pair("meamed", meamed, byzfl.Meamed(f=f), meamed, "the same")
    caf = rule(hn.CAF(f=f))
    yield Pair(
        "caf",
        caf,
        byzfl.CAF(f=f),
        lambda X: caf_with_the_maximum_over_all(X, f),
        "ByzFL takes max t also over clients taken out, and one power step from a random vector (exact for d = 1); "
        "the same with that maximum and d = 1",
        (1,),
    )
    smea = rule(hn.SMEA(f=f))
    yield Pair(
        "smea",
        smea,
        byzfl.SMEA(f=f),
        smea,
        "ByzFL takes one power step from a random vector for the eigenvalue; the same where that is exact (d = 1)",
        (1,),
    )
    yield Pair("nnm", mixtures(hn.NNM(f=f)), byzfl.NNM(f=f), mixtures(hn.NNM(f=f)), "the same")
    yield Pair(
        "arc",
        mixtures(hn.ARC(f=f)),
        lambda X: byzfl.ARC(f=f)(X.copy()),
        mixtures(hn.ARC(f=f)),
        "the same; ByzFL overwrites its input",
    )
    clip = mixtures(hn.StaticClipping(radius=2.0))
    yield Pair(
        "static_clipping", clip, lambda X: byzfl.Clipping(c=2.0)(X.copy()), clip, "the same; ByzFL overwrites its input"
    )

    def buckets(make: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """The permutations are drawn differently, so only what does not depend on them is compared."""
        return lambda X: np.array([len(rows := np.asarray(make(X))), *rows.sum(axis=0)])

    bucketing = buckets(mixtures(hn.Bucketing(size=2)))
    yield Pair(
        "bucketing",
        bucketing,
        buckets(byzfl.Bucketing(s=2)),
        bucketing,
        "a permutation from the global random state against a seed: compared by the number and the sum of the buckets",
    )


def clients(K: int, d: int, seed: int) -> Any:
    """Draw honest clients around a common direction and, in every other trial, a few outliers."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=d) + rng.normal(size=(K, d))
    if seed % 2:
        X[-2:] += 5.0
    return X


def main() -> int:
    byzfl = load()
    if byzfl is None:
        print("install ByzFL first: pip install byzfl", file=sys.stderr)
        return 1
    K, f = 10, 3
    machine = f"{platform.machine()}, Python {platform.python_version()}, NumPy {np.__version__}"
    print(f"honestly {hn.__version__} against ByzFL {version('byzfl')} on {machine};")
    print(f"K = {K}, f = {f}, float64, {TRIALS} trials for each d; relative to the largest distance from the mean.\n")
    print("| rule | d | largest difference as shipped | with the same convention | why |\n|---|---|---|---|---|")
    wrong = 0
    for pair in pairs(byzfl, K, f):
        shipped = same = 0.0
        for d in pair.dims:
            for seed in range(TRIALS):
                X = clients(K, d, seed)
                scale = np.linalg.norm(X - X.mean(axis=0), axis=1).max()
                theirs = np.asarray(pair.theirs(X.copy()))
                other = theirs if pair.theirs_same is None else np.asarray(pair.theirs_same(X.copy()))
                shipped = max(shipped, float(np.abs(pair.ours(X) - theirs).max() / scale))
                if pair.comparable(X):
                    same = max(same, float(np.abs(pair.same(X) - other).max() / scale))
        dims = ", ".join(map(str, pair.dims))
        print(f"| {pair.name} | {dims} | {shipped:.1e} | {same:.1e} | {pair.why} |")
        wrong += same > ROUNDING
    print(f"\n{'all agree to rounding under the same convention' if not wrong else f'{wrong} rules DISAGREE'}\n")
    faults(byzfl)
    return int(wrong > 0)


def load() -> Any:
    """Import only ByzFL's aggregators: the whole package needs torchvision for its own training."""
    spec = importlib.util.find_spec("byzfl")
    if spec is None:
        return None
    package = types.ModuleType("byzfl")
    package.__path__ = list(spec.submodule_search_locations or [])
    sys.modules["byzfl"] = package
    rules = importlib.import_module("byzfl.aggregators.aggregators")
    mixers = importlib.import_module("byzfl.aggregators.preaggregators")
    return types.SimpleNamespace(**{**vars(rules), **vars(mixers)})


def version(name: str) -> str:
    from importlib.metadata import version as of

    return of(name)


def faults(byzfl: Any) -> None:
    """Print what one bad client, or an edge case of the settings, does to each of the two."""
    print("| input | ByzFL | honestly |\n|---|---|---|")
    X = np.random.default_rng(0).normal(size=(10, 5))
    nan, same = X.copy(), np.ones((5, 3))
    nan[9] = np.nan
    stuck = np.array([[0.0, 0.0], [0.0, 0.1], [0.1, 0.0], [0.1, 0.1], [100.0, 0.0], [0.0, 100.0], [0.05, 0.05]])
    cases: list[tuple[str, Any, Any, Any]] = [
        ("geometric median, NaN from one client", byzfl.GeometricMedian(), hn.GeometricMedian(), nan),
        ("centred clipping, NaN from one client", byzfl.CenteredClipping(), hn.CenteredClipping(), nan),
        ("Krum, f = 4 of 10", byzfl.Krum(f=4), hn.Krum(f=4), X),
        ("CAF, f = 0", byzfl.CAF(f=0), hn.CAF(f=0), X),
        ("CAF, five equal clients", byzfl.CAF(f=2), hn.CAF(f=2), same),
        ("CAF, two far clients of 7, f = 3", byzfl.CAF(f=3), hn.CAF(f=3), stuck),
    ]
    for name, theirs, ours, data in cases:
        print(f"| {name} | {outcome(theirs, data)} | {outcome(rule(ours), data)} |")
    if importlib.util.find_spec("torch"):
        import torch

        precise = torch.ones((4, 3), dtype=torch.float64)
        kinds = [call(precise).dtype for call in (byzfl.GeometricMedian(), rule(hn.GeometricMedian()))]
        print(f"| float64 tensors of torch | {kinds[0]} | {kinds[1]} |")


def outcome(call: Callable[[Any], Any], data: Any, limit: float = 5.0) -> str:
    """Describe the result in a few words; a call that takes longer than the limit is reported as not stopping."""
    import signal

    def stop(*_: Any) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, limit)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            value = call(data)
    except TimeoutError:
        return f"does not stop (ended after {limit:.0f} s)"
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:90]}"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    if value is None:
        return "returns None"
    fine = bool(np.isfinite(np.asarray(value)).all())
    return "a finite value" if fine else "NaN"


if __name__ == "__main__":
    sys.exit(main())
