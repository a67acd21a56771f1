"""`robust_all_reduce` on real process groups: the same answer as `hn.aggregate`, on every rank, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
import rank_jobs as jobs
from conftest import tolerance
from ranks import run

import honestly as hn

SIZES = ((11, 9), (5,), (64,), (1,))


def updates(K: int, liars: tuple[int, ...] = (), sizes: tuple = SIZES) -> list[list[np.ndarray]]:
    return jobs.updates(K, sizes, liars)


def narrowed(given: list[list[np.ndarray]], dtype: str) -> list[list]:
    return [jobs.tensors(values, dtype) for values in given]


def check(found: list[dict], given: list[list[np.ndarray]], dtype: str, rule: object, **options: object) -> None:
    """All ranks have the same bits, and they are what one process makes of the same updates."""
    assert len({out["hash"] for out in found}) == 1
    reference = options.pop("reference", None)
    if reference is not None:
        options["reference"] = jobs.tensors(reference, dtype)
    whole = hn.aggregate(narrowed(given, dtype), rule, **options)
    for out in found:
        assert out["dtype"] == [f"torch.{dtype}"] * len(given[0])
        assert out["clients"] == tuple(range(len(given)))
        assert out["excluded"] == whole.excluded
        for mine, theirs in zip(out["value"], whole.value, strict=True):
            np.testing.assert_allclose(mine, theirs.double().numpy(), rtol=0, atol=4 * tolerance(dtype))
        for name in ("weights", "honesty"):
            expected = getattr(whole, name)
            assert (out[name] is None) == (expected is None)
            if expected is not None:
                np.testing.assert_allclose(out[name], expected, atol=5e-4)


RULES = [
    "bayesian",
    "mean",
    "median",
    hn.TrimmedMean(f=1),
    "geometric_median",
    hn.Krum(f=0),
    hn.Bulyan(f=0),
    hn.Meamed(f=1),
    "norm_clipping",
    "sign_guard",
]
MORE = [
    hn.MultiKrum(f=0, keep=2),
    hn.MinimumVariance(f=1),
    hn.MDA(f=1),
    hn.CGE(f=1),
    "smoothed_geometric_median",
    "flame",
    hn.DnC(f=1),
]


@pytest.mark.parametrize("rules", [RULES, pytest.param(MORE, marks=pytest.mark.slow)], ids=["some", "more"])
def test_every_kind_of_rule_gives_what_one_process_gives(rules: list) -> None:
    given = updates(4, liars=(2,))
    found = run(jobs.reduce_many, 4, [(given, "float32", {"rule": rule}) for rule in rules])
    for i, rule in enumerate(rules):
        check([out[i] for out in found], given, "float32", rule)


def test_mixers_references_roots_sizes_and_small_chunks() -> None:
    given, reference = updates(4, liars=(1,)), updates(1)[0]
    cases = [
        ("median", {"pre": [hn.NNM(f=1)]}),
        ("bayesian", {"pre": [hn.NNM(f=1), hn.ARC(f=1)], "reference": reference}),
        (hn.CenteredClipping(), {"reference": reference}),
        ("bayesian", {"reference": reference, "chunk": 64}),
        (hn.FLTrust(root=jobs.tensors(updates(5)[4])), {"reference": reference}),
        (hn.Mean(sizes="trusted"), {"sizes": [1.0, 2.0, 3.0, 4.0]}),
        (hn.Mean(sizes="trusted"), {"sizes": [1, 2.0, np.float32(3), np.int32(4)]}),
        ("bayesian", {"sizes": [10, 10.0, 10**400, "many"]}),
        ("median", {"chunk": 16}),
        ("geometric_median", {"chunk": 16, "verify": 3.0}),
    ]
    found = run(jobs.reduce_many, 4, [(given, "float32", {"rule": rule, **options}) for rule, options in cases])
    for i, (rule, options) in enumerate(cases):
        kept = {name: value for name, value in options.items() if name not in ("chunk", "verify")}
        check([out[i] for out in found], given, "float32", rule, **kept)


@pytest.mark.parametrize("verify", [0.0, 3.0])
def test_a_tensor_in_which_ranks_hardly_differ_hides_no_liars(verify: float) -> None:
    """About the reference, float32 rounds away how they differ: by 1e-4 of what all moved."""
    K, honest = 5, slice(2, 5)
    rng = np.random.default_rng(0)
    given, reference = updates(K, sizes=((500,), (300,))), [np.zeros(500), np.zeros(300)]
    common, lie = rng.normal(size=300), rng.normal(size=300)
    for k in range(K):
        given[k][1] = common + 1e-4 * (rng.normal(size=300) + 30 * lie * (k < 2))
    given = [[x.astype(np.float32).astype(float) for x in values] for values in given]
    found = run(jobs.reduce_many, K, [(given, "float32", {"reference": reference, "verify": verify})])
    check([out[0] for out in found], given, "float32", "bayesian", reference=reference)
    sent = np.stack([given[k][1] for k in range(K)])[honest]
    variance = np.square(sent - sent.mean(axis=0)).sum(axis=1).mean()
    assert np.square(found[0][0]["value"][1] - sent.mean(axis=0)).sum() <= 2 / (5 - 2 - 2) * variance


@pytest.mark.parametrize("K", [1, 2, 3])
def test_few_ranks_all_dtypes_and_fewer_values_than_ranks(K: int) -> None:
    dtypes = ("float32", "bfloat16", "float16", "float64")
    few = updates(K, sizes=((1,),))
    cases = [(updates(K), dtype, {"rule": rule}) for dtype in dtypes for rule in ("bayesian", "median")]
    cases += [(few, "float32", {"rule": rule}) for rule in ("bayesian", "median", "mean")]
    found = run(jobs.reduce_many, K, cases)
    for i, (given, dtype, options) in enumerate(cases):
        check([out[i] for out in found], given, dtype, options["rule"])


def test_ranks_that_are_not_finite_are_excluded_and_named() -> None:
    given = updates(4)
    given[1][2][63] = np.nan
    large = updates(4)
    large[3][0][10, 8] = np.inf
    large[3][3][0] = 1e30
    rules = ("bayesian", "median", "mean", "geometric_median")
    cases = [(bad, "float32", {"rule": rule}) for rule in rules for bad in (given, large)]
    cases += [(bad, "float16", {"rule": rule}) for rule in rules for bad in (given, large)]
    found = run(jobs.reduce_many, 4, cases)
    for i, (bad, dtype, options) in enumerate(cases):
        check([out[i] for out in found], bad, dtype, options["rule"])
    assert found[0][0]["reasons"] == {1: "tensor '[2]' at flat index 63 is NaN"}
    assert found[2][1]["reasons"] == {3: "tensor '[0]' at flat index 98 is infinite (inf)"}


def test_no_usable_majority_is_an_error_on_every_rank() -> None:
    given = updates(3)
    given[0][0][0, 0] = given[2][1][1] = np.nan
    found = run(jobs.failing, 3, given, [{}] * 3)
    assert len(set(found)) == 1
    assert found[0][0] == "AggregationError"
    assert "only 1 of 3" in found[0][1]
    assert "tensor '[1]' at flat index 1 is NaN" in found[0][1]


@pytest.mark.parametrize("chunk", [1 << 20, 64])
def test_layers_and_buffers_are_those_of_one_process(chunk: int) -> None:
    rng = np.random.default_rng(0)
    shapes = {"a.weight": (7, 5), "a.bias": (7,), "bn.running_var": (7,), "b.weight": (3, 7)}
    states = [{name: rng.normal(size=s).astype(np.float32) for name, s in shapes.items()} for _ in range(4)]
    for k, state in enumerate(states):
        state["bn.running_var"] *= 10.0**k  # not judged
    states[2]["b.weight"] -= 40.0
    found = run(jobs.layered, 4, states, chunk)
    for name, rule in (("by layer", jobs.FirstThenMean()), ("bayesian", "bayesian")):
        whole = hn.aggregate(states, rule)
        for out in found:
            value, weights, honesty, verdicts = out[name]
            for key, x in whole.value.items():
                np.testing.assert_allclose(value[key], x, rtol=1e-5, atol=1e-5)
            np.testing.assert_allclose(weights, whole.weights, atol=1e-5)
            assert (honesty is None) == (whole.honesty is None)
            assert verdicts == whole.verdicts


def test_containers() -> None:
    for found in run(jobs.containers, 3):
        assert found["mapping"] == {"a": ((6, 4), [1.0] * 24), "b": ((), [1.0])}
        assert found["strided"] == ([[1.0] * 3] * 4, True, "tuple")
        assert found["reordered"] == found["ordered"]  # the reference's tensors are known by their names
        assert found["ordered"]["a"][0] == pytest.approx(10.0, abs=0.1)
        assert found["flat"] == ([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0], True)
        assert found["kept"] == ([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0], True)
        assert found["mixed"] == [
            ("torch.float32", [1.0] * 5),
            ("torch.bfloat16", [1.0] * 3),
            ("torch.float32", [1.0] * 2),
        ]


def test_subgroups_of_ranks() -> None:
    found = run(jobs.two_groups, 4)
    assert [out[:2] for out in found] == [((0, 1), [0.5] * 5)] * 2 + [((2, 3), [2.5] * 5)] * 2
    assert [out[2:] for out in found] == [([float(k)] * 5, (k,)) for k in range(4)]


def test_asynchronous() -> None:
    for values, other, error, done in run(jobs.asynchronous, 3):
        assert values == [1.0, 2.0, 3.0]
        assert other == 3.0
        assert error == "DisagreementError"
        assert done


def test_modes_of_autograd_autocast_and_compiled_code() -> None:
    found = run(jobs.modes, 2, updates(2))
    assert len({digest for hashes in found for digest in hashes}) == 1


@pytest.mark.slow
def test_eight_ranks_and_rules_that_need_them() -> None:
    given = updates(8, liars=(5, 6))
    rules = [
        "bayesian",
        hn.Krum(f=2),
        hn.Bulyan(f=1),
        hn.CAF(f=2),
        hn.SMEA(f=2),
        hn.MoNNA(f=2),
        "clipped_clustering",
        "foolsgold",
    ]
    found = run(jobs.reduce_many, 8, [(given, "float32", {"rule": rule}) for rule in rules])
    for i, rule in enumerate(rules):
        check([out[i] for out in found], given, "float32", rule)
