"""Fuzz the checkpoint reader: damaged files must not crash it, and it must not read outside a file.

    python benchmarks/fuzz_checkpoints.py --cases 1000000 --seed 0

Three kinds of cases, in turn:
  header   a valid safetensors file with bytes changed, cut, inserted or removed; the format's own library decides what
           must be accepted, and what we accept must lie within the file;
  json     a header generated from the format's vocabulary, with wrong types, sizes and offsets;
  open     hn.aggregate on a damaged file (safetensors, sharded folder, .npz or adapter) and four good ones, which must
           return the average with or without this client and never raise. Every 200th case, because it is slow.
Prints how many cases of each kind ran and were accepted, and stops at the first failure with the seed of the case.
"""

from __future__ import annotations

import argparse
import io
import json
import random
import shutil
import struct
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

import honestly as hn
from honestly.sources.checkpoints.header import ITEMSIZE, Header, parse_header
from honestly.sources.tree import UnusableError

VALID = save({"a": np.zeros((2, 3), np.float32), "b": np.ones(5, np.float16), "c": np.arange(3)}, {"format": "pt"})
MARKS = b'0123456789"{}[],:-.eFIBU \\untrfals'
OPEN_EVERY = 200


def mutate(rng: random.Random, content: bytes, most: int = 4) -> bytes:
    damaged = bytearray(content)
    for _ in range(rng.randint(1, most)):
        at = rng.randrange(len(damaged) + 1)
        kind = rng.choice("sssscidm")
        if kind == "s" and at < len(damaged):
            damaged[at] = rng.choice([rng.randrange(256), rng.choice(MARKS)])
        elif kind == "c" and rng.random() < 0.3:
            del damaged[at:]
        elif kind == "i":
            damaged[at:at] = bytes(rng.choice(MARKS) for _ in range(rng.randint(1, 4)))
        elif kind == "d":
            del damaged[at : at + rng.randint(1, 8)]
        elif kind == "m" and len(damaged) > 8:  # replace a number of the header by an extreme one
            digits = [i for i in range(8, len(damaged)) if 48 <= damaged[i] <= 57]
            if digits:
                at = rng.choice(digits)
                damaged[at : at + 1] = rng.choice(
                    [b"-1", b"0", b"18446744073709551616", b"1e9", b"9" * 40, b"null", b"[]"]
                )
    return bytes(damaged)


def in_bounds(header: Header, size: int) -> None:
    at = None
    for entry in header.entries:
        assert entry.offset >= 8, entry
        assert at is None or entry.offset == at, entry
        at = entry.offset + entry.nbytes
        assert at <= size, entry


def split(content: bytes) -> tuple[bytes, int]:
    (length,) = struct.unpack("<Q", content[:8].ljust(8, b"\0"))
    return content[8 : 8 + length], len(content) - 8 - length


def header_case(rng: random.Random) -> bool:
    content = mutate(rng, VALID)
    text, size = split(content)
    try:
        header = parse_header(text, size)
    except UnusableError:
        try:
            load(content)
        except (SafetensorError, KeyError, ValueError, TypeError):
            return False
        raise AssertionError(f"the format's own library reads {content!r}") from None
    in_bounds(header, len(content))
    return True


def json_case(rng: random.Random) -> bool:
    def number() -> object:
        return rng.choice([0, 1, 2, 3, 4, 8, 12, -1, 2**31, 2**63, 2**64, 1.5, True, None, "4", [], 10**30])

    header: dict[str, object] = {}
    for _ in range(rng.randint(0, 4)):
        entry: object = {
            "dtype": rng.choice([*ITEMSIZE, "F8_E4M3", "f32", "", None, 3]),
            "shape": [number() for _ in range(rng.randint(0, 3))] if rng.random() < 0.9 else number(),
            "data_offsets": [number() for _ in range(rng.choice([2, 2, 2, 1, 3]))] if rng.random() < 0.9 else number(),
        }
        if rng.random() < 0.1:
            entry = number()
        header[rng.choice(["a", "b", "", "__metadata__", "\ud800", "x" * 300, "\x00"])] = entry
    text, size = json.dumps(header).encode(), rng.choice([0, 4, 8, 12, 24])
    try:
        layout = parse_header(text, size)
    except UnusableError:
        return False
    in_bounds(layout, 8 + len(text) + size)
    return True


class Opening:
    """Four good clients and a place for a damaged one, in each format."""

    def __init__(self, folder: Path) -> None:
        self.bad = folder / "bad"
        self.good: dict[str, list[Path]] = {}
        self.content: dict[str, dict[str, bytes]] = {}
        for kind in ("safetensors", "sharded", "npz", "packed", "adapter"):
            self.good[kind] = []
            for k in range(4):
                files = self._files(kind, np.random.default_rng(k))
                place = folder / f"{kind}-{k}{self._suffix(kind)}"
                self._write(place, files)
                self.good[kind].append(place)
            self.content[kind] = self._files(kind, np.random.default_rng(9))

    def _suffix(self, kind: str) -> str:
        return {"safetensors": ".safetensors", "npz": ".npz", "packed": ".npz"}.get(kind, "")

    def _files(self, kind: str, rng: np.random.Generator) -> dict[str, bytes]:
        tensors = {"a.weight": rng.normal(size=(5, 4)).astype(np.float32), "b": rng.normal(size=7).astype(np.float16)}
        if kind == "safetensors":
            return {"": save(tensors)}
        if kind in ("npz", "packed"):
            stream = io.BytesIO()
            (np.savez if kind == "npz" else np.savez_compressed)(stream, **tensors)
            return {"": stream.getvalue()}
        if kind == "sharded":
            names = {"a.weight": "m-1.safetensors", "b": "m-2.safetensors"}
            index = json.dumps({"weight_map": names}).encode()
            return {"model.safetensors.index.json": index} | {f: save({n: tensors[n]}) for n, f in names.items()}
        factors = {"m.lora_A.weight": rng.normal(size=(2, 5)), "m.lora_B.weight": rng.normal(size=(3, 2))}
        config = json.dumps({"peft_type": "LORA", "r": 2, "lora_alpha": 4, "base_model_name_or_path": "b"}).encode()
        model = save({name: x.astype(np.float32) for name, x in factors.items()})
        return {"adapter_config.json": config, "adapter_model.safetensors": model}

    def _write(self, place: Path, files: dict[str, bytes]) -> None:
        for name, content in files.items():
            if name:
                place.mkdir(exist_ok=True)
            (place / name if name else place).write_bytes(content)

    def case(self, rng: random.Random) -> bool:
        kind = rng.choice(list(self.good))
        files = dict(self.content[kind])
        victim = rng.choice(list(files))
        files[victim] = mutate(rng, files[victim], 3)
        place = self.bad.with_name(f"bad{self._suffix(kind)}")
        try:
            self._write(place, files)
            result = hn.aggregate([*self.good[kind], place], rng.choice(["mean", "bayesian"]))
        finally:
            shutil.rmtree(place) if place.is_dir() else place.unlink(missing_ok=True)
        assert set(result.excluded) <= {4}, result.reasons
        assert all(np.isfinite(values).all() for values in result.value.values())
        return not result.excluded


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    ran, accepted = Counter[str](), Counter[str]()
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder, np.errstate(all="ignore"):
        opening = Opening(Path(folder))
        for i in range(args.cases):
            seed = f"{args.seed}-{i}"
            kind = "open" if i % OPEN_EVERY == 0 else "json" if i % 4 == 0 else "header"
            case = {"open": opening.case, "json": json_case, "header": header_case}[kind]
            try:
                accepted[kind] += case(random.Random(seed))
            except BaseException:
                print(f"FAILED in case {seed} ({kind})", file=sys.stderr)
                raise
            ran[kind] += 1
            if (i + 1) % 50_000 == 0:  # report progress in case the run is stopped
                print(f"{i + 1} cases in {time.perf_counter() - begin:.0f} s, no failure", flush=True)
    for kind in sorted(ran):
        print(f"{kind:8s} {ran[kind]:9d} cases, {accepted[kind]} accepted")
    print(f"{sum(ran.values())} cases in all, no failure")
    return 0


if __name__ == "__main__":
    sys.exit(main())
