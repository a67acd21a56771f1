"""A real Ray cluster of two nodes, a study on it, and one node that dies in mid-study: `STUDY.toml OUT`.

A program of its own: Ray leaves threads and warnings behind that no test should inherit.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time

from ray.cluster_utils import Cluster

from honestly.bench.store import Run, Store, StoreError


def runs(folder: str) -> list[Run]:
    try:
        with Store.read(folder) as store:
            return store.runs()
    except StoreError:  # not there yet
        return []


def main(study: str, out: str) -> None:
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    doomed = cluster.add_node(num_cpus=1)
    killed: list[str] = []
    command = [sys.executable, "-m", "honestly", "bench", study, "--out", out, "--ray", cluster.address, "--json"]
    driver = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        end = time.monotonic() + 240
        while driver.poll() is None and time.monotonic() < end:
            time.sleep(0.05)
            at_work = [run.id for run in runs(out) if run.status == "running" and run.rounds >= 2]
            if not killed and len(at_work) == 2:  # one on each node
                cluster.remove_node(doomed, allow_graceful=False)
                killed = at_work
        driver.kill()
        lines, errors = driver.communicate()
        print(json.dumps({"code": driver.returncode, "killed": killed, "lines": lines, "errors": errors}))
    finally:
        cluster.shutdown()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
