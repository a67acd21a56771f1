"""Files that are not clients: the output itself, and results of earlier runs.

`honestly aggregate *.safetensors -o global.safetensors` finds its own result among the files when it runs again. The
output is recognised by its path and inode, however the path is written, and other results by a mark in their metadata.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from honestly.sources.checkpoints.checkpoint import Checkpoint

#: What results carry: a key of a safetensors header's metadata, and the comment of an .npz archive.
MARK = "honestly"
MEANING = "average of clients"


def mark_result(metadata: Mapping[str, str]) -> dict[str, str]:
    """The metadata of a result."""
    return {**metadata, MARK: MEANING}


def is_result(checkpoint: Checkpoint) -> bool:
    """Whether an earlier run wrote it. A client that copies the mark excludes only itself."""
    return checkpoint.metadata.get(MARK) == MEANING


RESULT = (
    "is a result that an earlier run wrote, not a client's update; leave it out, or allow results "
    "(--allow-results) if it is the average of a group of clients"
)


def check_place(out: Path, inputs: Sequence[str]) -> None:
    """Raise ValueError if writing `out` would replace one of the inputs, or if `out` is one of them."""
    for path in inputs:
        why = _conflict(out, Path(path))
        if why is not None:
            raise ValueError(
                f"out is {str(out)!r}, {why}: an input would be replaced, and an earlier result would count as a "
                "client. Name another output, leave that file out of the inputs, or allow it (--allow-overwrite, "
                "hn.Checkpoints(allow_overwrite=True))"
            )


def _conflict(out: Path, path: Path) -> str | None:
    if _same(out, path):
        return f"which is the input {str(path)!r}"
    try:
        if path.is_dir() and any(_same(out, entry) for entry in path.iterdir()):
            return f"a file of the input {str(path)!r}"
        if _inside(path, out):
            return f"a folder that holds the input {str(path)!r}"
    except (OSError, ValueError):  # a path that cannot be examined is refused when it is read
        return None
    return None


def _same(out: Path, path: Path) -> bool:
    """One file under two names: another spelling, a symbolic link or a hard link."""
    try:
        if out.exists() and path.exists():
            return out.samefile(path)
        return out.resolve() == path.resolve()
    except (OSError, ValueError, RuntimeError):  # RuntimeError: a loop of links
        return False


def _inside(path: Path, folder: Path) -> bool:
    """Whether the path lies in the folder, which would be replaced whole."""
    return folder.is_dir() and path.resolve().is_relative_to(folder.resolve())
