"""A real Ray cluster of two nodes, a study on it, and one node that dies in mid-study: `STUDY.toml OUT`.

A program of its own: Ray leaves threads and warnings behind that no test should inherit.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time

from honestly.runs.store import Run, Store, StoreError


def runs(folder: str) -> list[Run]:
    try:
        with Store.read(folder) as store:
            return store.runs()
    except StoreError:  # not there yet
        return []


def main(study: str, out: str) -> None:
    from ray.cluster_utils import Cluster  # `make test`, which collects this file for doctests, has no Ray

    # Ray counts GPUs by what it is told: what a run takes is respected whether they are there or not
    node = {"num_cpus": 3, "num_gpus": 1}
    cluster = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
    doomed = cluster.add_node(**node)
    killed: list[str] = []
    at_once = 0
    command = [sys.executable, "-m", "honestly", "bench", study, "--out", out, "--ray", cluster.address, "--json"]
    command += ["--gpus-per-run", "0.6"]
    driver = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        end = time.monotonic() + 240
        while driver.poll() is None and time.monotonic() < end:
            time.sleep(0.05)
            now = runs(out)
            at_once = max(at_once, sum(run.status == "running" and run.rounds > 0 for run in now))
            at_work = [run.id for run in now if run.status == "running" and run.rounds >= 2]
            if not killed and len(at_work) == 2:  # one on each node
                cluster.remove_node(doomed, allow_graceful=False)
                killed = at_work
        driver.kill()
        lines, errors = driver.communicate()
        print(
            json.dumps(
                {"code": driver.returncode, "killed": killed, "at_once": at_once, "lines": lines, "errors": errors}
            )
        )
    finally:
        cluster.shutdown()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
