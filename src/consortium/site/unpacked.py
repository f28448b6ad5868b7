"""A task's files in a folder, exactly as somebody approved them."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from consortium.bundle import Bundle
from consortium.errors import StoreFailedError
from consortium.store.files import is_abandoned, sync_folder, write_durably


def unpack_into(folder: Path, bundle: Bundle) -> Path:
    """The folder, with the bundle's files and nothing else. One in which anything is
    otherwise is made anew: in a folder beside it, which then takes its name."""
    if _holds(folder, bundle):
        return folder
    temporary = folder.with_name(f"{folder.name}.{os.getpid()}.new")
    try:
        folder.parent.mkdir(exist_ok=True, mode=0o700)
        for leftover in folder.parent.glob("*.new"):
            if is_abandoned(leftover) or leftover == temporary:
                shutil.rmtree(leftover)
        _write(temporary, bundle)
        if folder.exists():
            shutil.rmtree(folder)
        temporary.rename(folder)
        sync_folder(folder.parent)
    except OSError as error:
        raise StoreFailedError(f"{folder}: {error.strerror}") from None
    return folder


def _holds(folder: Path, bundle: Bundle) -> bool:
    """Whether the folder has the bundle's files, each with its bytes, and nothing else."""
    if not folder.is_dir():
        return False
    found = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir()}
    if found != {name for name, _ in bundle.files}:
        return False
    return all(
        not (folder / name).is_symlink() and (folder / name).read_bytes() == data
        for name, data in bundle.files
    )


def _write(folder: Path, bundle: Bundle) -> None:
    folder.mkdir(mode=0o700)
    for name, data in bundle.files:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        write_durably(path, data)
