"""The trainer's C program: built and kept as `honestly.kernels` does it; without it PyTorch does the work."""

from __future__ import annotations

from pathlib import Path

from honestly.kernels import Program

PROGRAM = Program("train", Path(__file__).parent, ("train.c", "vector.h", "layers.h", "convolution.h", "dense.h"))
library = PROGRAM.library
reason = PROGRAM.reason
