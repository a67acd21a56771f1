"""C programs that are compiled once for this processor and kept, and the passes over rows that are written in C.

Nothing here is needed: whoever uses a program has another way beside it.
"""

from honestly.kernels.build import Program, UnavailableError, find_compiler
from honestly.kernels.switches import is_off

__all__ = ["Program", "UnavailableError", "find_compiler", "is_off"]
