"""Tests of the compiled program are left out only without a C compiler: a program that cannot be built fails them."""

import pytest

from honestly.kernels import find_compiler

needs_compiler = pytest.mark.skipif(find_compiler() is None, reason="this machine has no C compiler")
