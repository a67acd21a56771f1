"""Parts of benchmarks/bayesian_study.py: each measures rules on recordings known by layer, and prints one table."""

import os

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")  # before NumPy is loaded: matrices of 20 x 20 gain nothing from threads
