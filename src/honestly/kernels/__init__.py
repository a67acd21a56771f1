"""C programs that are compiled once for this processor and kept, and the passes over rows that are written in C.

All programs are optional: every caller has a fallback.
"""

from honestly.kernels.build import Program, UnavailableError, find_compiler
from honestly.kernels.switches import is_off

__all__ = ["Program", "UnavailableError", "find_compiler", "is_off"]
