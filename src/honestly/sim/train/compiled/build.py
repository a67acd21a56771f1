"""The trainer's C program: built and kept as `honestly.kernels` does it; without it PyTorch does the work."""

from __future__ import annotations

from pathlib import Path

from honestly import kernels
from honestly.kernels import Program

FOLDER = Path(kernels.__file__).parent / "train"
PROGRAM = Program("train", FOLDER, ("train.c", "vector.h", "layers.h", "convolution.h", "dense.h"))
library = PROGRAM.library
reason = PROGRAM.reason
