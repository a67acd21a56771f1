"""Print the value of NPY_DISABLE_CPU_FEATURES with which NumPy uses only its baseline on this machine."""

from numpy._core._multiarray_umath import __cpu_dispatch__, __cpu_features__

print(*(name for name in __cpu_dispatch__ if __cpu_features__[name]))
