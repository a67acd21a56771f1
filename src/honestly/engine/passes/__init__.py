"""The passes over the data: Gram matrix, residuals, weighted mean and ranking, on the host or on an accelerator."""

from honestly.engine.passes.coordinates import holds_variances, negative_variances
from honestly.engine.passes.device import DevicePasses
from honestly.engine.passes.early import EarlyStart
from honestly.engine.passes.host import HostPasses
from honestly.engine.passes.lora import LoraPasses
from honestly.engine.passes.protocol import BETWEEN, ZERO, Passes, Verdict, single_clients
from honestly.engine.passes.streamed import StreamedPasses
from honestly.sources import Source
from honestly.sources.checkpoints.device import OnDevice
from honestly.sources.checkpoints.lora import LoraSource

__all__ = [
    "BETWEEN",
    "ZERO",
    "EarlyStart",
    "Passes",
    "Verdict",
    "holds_variances",
    "negative_variances",
    "passes_over",
    "single_clients",
]


def passes_over(source: Source, early: EarlyStart | None = None) -> Passes:
    """The passes for where the source's blocks are; those over a GPU's matrix may have started early."""
    if isinstance(source, LoraSource):
        return LoraPasses(source)
    if isinstance(source, OnDevice):
        return StreamedPasses(source)
    return HostPasses(source) if source.on_host else DevicePasses(source, early)
