"""Writing a file as a whole, and saying plainly why it cannot be done."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from consortium.errors import SiteDataError


def write_whole(path: Path, data: bytes) -> None:
    """Replace a file: a reader sees the old bytes or the new ones, never half of them."""
    temporary: Path | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f"{path.name}.", suffix=".new")
        temporary = Path(name)
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        if temporary is not None:
            temporary.unlink(missing_ok=True)
        raise SiteDataError(f"{path} cannot be written: {error.strerror}") from None
