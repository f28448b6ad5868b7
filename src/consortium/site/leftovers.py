"""What a killed process left half-written in a site's home: keys, certificates, states and
results of a task among it, so it must not stay for ever."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path

from consortium.store.files import is_abandoned

# Where `write_durably`, `write_secret` and `Scratch` make `NAME.PID.new`. Blobs and tasks look
# after their own.
_PLACES = ("*.new", "keys/*.new", "receipts/*.new", "states/*/*.new", "work/*.new")


def sweep(home: Path) -> None:
    """Remove it, as far as that can be done: a failing disk must not keep an agent from
    starting. What a process that is there is writing stays."""
    for place in _PLACES:
        for path in home.glob(place):
            with suppress(OSError):
                if not is_abandoned(path):
                    continue
                if path.is_dir():
                    shutil.rmtree(path)
                else:
                    path.unlink(missing_ok=True)
