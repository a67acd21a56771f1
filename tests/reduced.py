"""Prints what to give NPY_DISABLE_CPU_FEATURES so that NumPy uses nothing but its baseline here."""

from numpy._core._multiarray_umath import __cpu_dispatch__, __cpu_features__

print(*(name for name in __cpu_dispatch__ if __cpu_features__[name]))
