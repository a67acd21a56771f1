"""The ids, names and sizes of the clients of `honestly aggregate`, from options and small files."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def client_ids(option: str | None, files: Sequence[str]) -> list[str]:
    """A unique id for each client: the given one, or the file name if these are unique, or the path."""
    if option is not None:
        names = _text("--ids", option[1:]).splitlines() if option.startswith("@") else option.split(",")
        names = [name.strip() for name in names if name.strip()]
        if len(names) != len(files):
            raise ValueError(f"--ids names {len(names)} clients, but there are {len(files)} files")
    else:
        names = [Path(file).name for file in files]
        if len(set(names)) < len(names):
            names = [str(file) for file in files]
    spelled = [os.path.normpath(Path(file).absolute()) for file in files]  # not resolved: links are excluded one by one
    for listed, what in ((names, "client"), (spelled, "file")):
        twice = next((name for i, name in enumerate(listed) if name in listed[:i]), None)
        if twice is not None:
            raise ValueError(f"the {what} {twice!r} is given twice")
    return names


def client_sizes(file: str | None, ids: Sequence[str]) -> Any:
    """What a file says of the clients' sizes, in order: they may have other names from here on. None without a file."""
    if file is None:
        return None
    from honestly.sources.claims import ordered_claims

    sizes = _read_sizes(file)
    return ordered_claims(f"--sizes {file}", sizes, ids) if isinstance(sizes, Mapping) else sizes


def _read_sizes(file: str) -> Any:
    """A mapping by id, or a list in order."""
    text = _text("--sizes", file)
    if text.lstrip().startswith(("{", "[")):
        try:
            return json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"--sizes {file}: it is not valid JSON ({error})") from error
    rows = [line.rsplit(",", 1) for line in text.splitlines() if line.strip()]
    if all(len(row) == 1 for row in rows):
        return [row[0] for row in rows]
    return {row[0].strip(): row[-1] for row in rows}


def _text(option: str, file: str) -> str:
    try:
        return Path(file).read_text(encoding="utf-8-sig")  # spreadsheets put a mark before the first letter
    except UnicodeDecodeError as error:
        raise ValueError(f"{option} {file}: it is not UTF-8 text ({error.reason} at byte {error.start})") from error


def client_labels(ids: Sequence[str], file: str | None) -> list[str]:
    """The labels of the clients: their names from a JSON file where it has them, else their ids; all different."""
    if file is None:
        return list(ids)
    from honestly.federation.names import Names, read_names

    names = Names(read_names(file))
    return [names(client) for client in ids]
