"""What doctest collection must leave out."""

from importlib.util import find_spec

# Triton comes with PyTorch's CUDA builds alone; the kernels are tested on a GPU (pytest -m gpu).
collect_ignore = [] if find_spec("triton") else ["src/honestly/sim/train/fused.py"]
