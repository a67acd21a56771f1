"""Measure how long `import honestly` takes compared with NumPy alone: best of several new processes.

python benchmarks/import_time.py            # run it with the interpreter that has the package installed
"""

from __future__ import annotations

import argparse
import platform
import subprocess
import sys

SCRIPT = """
import time
wall, cpu = time.perf_counter(), time.process_time()
import {}
print(time.perf_counter() - wall, time.process_time() - cpu)
"""


def best(module: str, times: int) -> list[float]:
    """Wall and processor seconds of the fastest import; the first one also writes the byte code."""
    command = [sys.executable, "-c", SCRIPT.format(module)]
    runs = [subprocess.run(command, capture_output=True, text=True, check=True, timeout=60) for _ in range(times + 1)]
    return [min(column) for column in zip(*(map(float, done.stdout.split()) for done in runs[1:]), strict=True)]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=15)
    times = parser.parse_args().times
    print(f"Python {platform.python_version()}, {platform.machine()}, best of {times}")
    for module in ("numpy", "honestly"):
        wall, cpu = best(module, times)
        print(f"import {module:9} {wall:.3f} s, of the processor {cpu:.3f} s")
