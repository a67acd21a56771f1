"""DeepSight: what the output layer says about the labels that a client trained on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from honestly.result import Float
from honestly.rules._lib.clipping import clip_factors, cosines
from honestly.rules._lib.density import OUTLIER, Labels, hdbscan
from honestly.rules.rule import Geometry, Mix, Rule
from honestly.rules.settings import setting


@dataclass(frozen=True, kw_only=True)
class DeepSight(Rule):
    """The clipped mean of the clusters in which few clients trained on few labels.

        UP_kc = |bias update of output c| + sum of |weight updates of output c|;   NEUP_kc = UP_kc^2 / sum_c UP_kc^2
        TE_k = how many NEUP_kc exceed max(1/100, 1/C) max_c NEUP_kc;   k is suspect if TE_k <= median(TE) / 2
        clusters: HDBSCAN of the NEUP vectors, and of the cosine distances between the bias updates; HDBSCAN again on
                  the share of these two that separates a pair of clients
        kept: clusters with a share of suspects below tau, and single outliers that are not suspect
        value = reference + mean over the kept of u_k min(1, median_j ||u_j|| / ||u_k||)

    u_k = w_k - reference, C the number of outputs. A client whose data have few labels moves few outputs: it is
    suspect, unless it is in a cluster with others that are not. If nobody is kept the model stays as it is (without a
    reference: the clipped mean of all).

    Conventions: the output layer is the last two tensors that are judged, weight with a row per output and bias, as
    PyTorch orders them. The paper's third view, the ratio of the models' outputs on random inputs (DDif), is left out:
    a rule has no model to run. HDBSCAN asks for 5 clients per cluster and 5 neighbours, the library's defaults; with
    fewer than 10 clients it finds no cluster and each is judged by its own TE.

    Args:
        tau: the paper's 1/3.

    Example:
        >>> from honestly.rules.rule import GramGeometry
        >>> from honestly.rules.geometry import Coordinates
        >>> W = np.array([[1.0, 1.0, 1.0], [1.0, 0.9, 1.1], [1.1, 1.0, 1.0], [0.0, 0.0, 3.0]])
        >>> U, zero = np.concatenate([W, W], axis=1), np.zeros(6)
        >>> seen = GramGeometry(U @ U.T, mixed_coordinates=lambda A: Coordinates((U, W), (zero, zero[:3])))
        >>> DeepSight().mix(seen).matrix.round(2)
        array([[0.33, 0.33, 0.33, 0.  ]])

    Reference: Rieger et al., DeepSight: Mitigating Backdoor Attacks in FL Through Deep Model Inspection, NDSS 2022.
    """

    tau: float = setting(1 / 3, above=0.0, most=1.0)

    name: ClassVar[str] = "deep_sight"
    summary: ClassVar[str] = "clusters by the output layer in which few clients trained on few labels, clipped"
    reference: ClassVar[str] = "Rieger et al., NDSS 2022"
    needs: ClassVar[frozenset[str]] = frozenset({"reference", "updates"})

    def mix(self, geometry: Geometry) -> Mix:
        """Clipping factors of the kept over their number."""
        K = geometry.K
        parts = [np.asarray(part, dtype=np.float64) for part in geometry.coordinates().updates]
        lengths = np.sqrt(sum(np.einsum("kd,kd->k", part, part) for part in parts))
        weight, bias = output_layer(parts)
        energy = normalised_energies(weight, bias)
        exceed = (energy > max(0.01, 1.0 / bias.shape[1]) * energy.max(axis=1, keepdims=True)).sum(axis=1)
        suspect = exceed <= np.median(exceed) / 2.0
        views = (np.linalg.norm(energy[:, None] - energy[None], axis=2), 1.0 - cosines(bias @ bias.T))
        clusters = hdbscan(np.mean([_apart(hdbscan(D)) for D in views], axis=0))
        selected = ~suspect
        for cluster in set(clusters.tolist()) - {OUTLIER}:
            members = clusters == cluster
            selected[members] = suspect[members].mean() < self.tau
        report = {"threshold_exceedings": exceed, "clusters": clusters, "selected": np.flatnonzero(selected)}
        if not selected.any() and geometry.has_reference:
            return Mix.of_weights(np.zeros(K), diagnostics=report)
        used = selected if selected.any() else np.ones(K, bool)
        clip = clip_factors(lengths, float(np.median(lengths)))
        return Mix.of_weights(np.where(used, clip, 0.0) / used.sum(), diagnostics=report)


def output_layer(parts: list[Float]) -> tuple[Float, Float]:
    """(K, C, H) and (K, C) updates of the weight and the bias of the output layer: the last two layers."""
    if len(parts) > 1:
        weight, bias = parts[-2], parts[-1]
        C = bias.shape[1]
        if C > 1 and weight.shape[1] % C == 0:
            return weight.reshape(len(weight), C, -1), bias
    raise ValueError(
        f"DeepSight looks at the output layer: the last two tensors must be its weight, with a row per class, and its "
        f"bias, but the updates have {', '.join(f'{n} values' for n in (p.shape[1] for p in parts[-2:]))} there; pass "
        "state dicts, or layers= with the sizes of the tensors, or take another rule"
    )


def normalised_energies(weight: Float, bias: Float) -> Float:
    """(K, C) NEUP; equal shares for a client that does not move its output layer."""
    squares = (np.abs(bias) + np.abs(weight).sum(axis=2)) ** 2
    total = squares.sum(axis=1, keepdims=True)
    return np.where(total > 0, squares / np.where(total > 0, total, 1.0), 1.0 / bias.shape[1])


def _apart(clusters: Labels) -> Float:
    """(K, K) 0 for clients in the same cluster, 1 for others and between outliers."""
    together = (clusters[:, None] == clusters[None, :]) & (clusters != OUTLIER)[:, None]
    np.fill_diagonal(together, True)
    return np.where(together, 0.0, 1.0)
