"""The models from which a run resumes: arrays in files with a checksum, `state-N.bin` after round N."""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from honestly.files import check_regular
from honestly.runs.npz import read_npz
from honestly.runs.writing import write_file

MAGIC = b"honestly state 1 sha256="
KEPT = 2  # if the latest one is damaged, the one before it is used


class States:
    """The states in a folder, which is created with the first one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, round: int) -> Path:
        """The file of the state after a round."""
        return self.folder / f"state-{round}.bin"

    def rounds(self) -> list[int]:
        """The rounds after which there is a state, the latest one first."""
        matches = (re.fullmatch(r"state-([0-9]{1,9})\.bin", path.name) for path in self.folder.glob("state-*.bin"))
        return sorted((int(match[1]) for match in matches if match), reverse=True)

    def latest(self, most: int) -> int | None:
        """The latest state that is not ahead of that many rounds."""
        return next((n for n in self.rounds() if n <= most), None)

    def write(self, round: int, content: bytes) -> None:
        """Write a state, made by `pack`, and remove older ones except the last."""
        self.folder.mkdir(parents=True, exist_ok=True)
        write_file(self.path(round), content)
        for old in self.rounds()[KEPT:]:
            self.path(old).unlink(missing_ok=True)

    def clear(self) -> None:
        """Remove all states."""
        for old in self.rounds():
            self.path(old).unlink(missing_ok=True)


def pack(arrays: Mapping[str, Any]) -> bytes:
    """Arrays by name, with a checksum in front."""
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **arrays)
    body = buffer.getvalue()
    return MAGIC + hashlib.sha256(body).hexdigest().encode() + b"\n" + body


def unpack(path: Path) -> dict[str, Any]:
    """The arrays in a file of `pack`. ValueError if it is damaged."""
    check_regular(path)
    head, _, body = path.read_bytes().partition(b"\n")
    if not head.startswith(MAGIC) or head[len(MAGIC) :] != hashlib.sha256(body).hexdigest().encode():
        raise ValueError("its checksum is wrong")
    return read_npz(io.BytesIO(body))
