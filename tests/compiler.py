"""Tests of the compiled programs are skipped only without a C compiler, or if they are turned off (`--plain`): a
program that cannot be built fails them."""

import pytest

from honestly.kernels import find_compiler, is_off

needs_compiler = pytest.mark.skipif(
    find_compiler() is None or is_off("HONESTLY_COMPILE"), reason="no C compiler, or compiled programs turned off"
)
