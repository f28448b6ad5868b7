"""A coordinator's round in a process of its own, for `test_memory`: check every update, sum.

    python -m tests.memory_round FOLDER COUNT

prints by how many bytes the process grew at its worst, from the moment when it was ready.
"""

from __future__ import annotations

import re
import sys
from hashlib import file_digest
from pathlib import Path

from consortium.core import duties as d
from consortium.core import inputs as i
from consortium.core.ids import Digest, Seat
from consortium.drive.clock import ManualClock
from consortium.drive.hands import CoordinatorHands
from consortium.model import Layout
from consortium.plan.strategy import StrategySection
from consortium.store.files import FileBlobs
from consortium.tensors import TensorSpec, write_header

LAYOUT = Layout((TensorSpec("w", (5_000_000,), "F32"),))
MODEL_BYTES = 20_000_000
STRATEGY = StrategySection()


def store(folder: Path, updates: int) -> None:
    """A model and updates of 20 MB each, nearly all of them holes that take no room."""
    blobs = FileBlobs(folder / "blobs")
    base = _sparse(blobs, folder, write_header(LAYOUT.specs, {}), b"\x00\x00\x80\x3f")
    names = [base]
    for number in range(updates):
        about = {"base": base.hex(), "weight": repr(number + 1.0)}
        header = write_header(STRATEGY.form(LAYOUT).specs, about)
        names.append(_sparse(blobs, folder, header, b"\x00\x00\x00\x40"))
    (folder / "names").write_text("\n".join(name.hex() for name in names))


def _sparse(blobs: FileBlobs, folder: Path, header: bytes, last: bytes) -> Digest:
    path = folder / "upload"
    with path.open("x+b") as file:
        file.write(header)
        file.seek(MODEL_BYTES - len(last), 1)
        file.write(last)
        file.seek(0)
        digest = Digest(file_digest(file, "sha256").digest())
    blobs.adopt(path, digest)
    return digest


def _memory(field: str) -> int:
    """Bytes, as Linux counts them."""
    found = re.search(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


def main(folder: Path, count: int) -> None:
    names = [Digest(bytes.fromhex(name)) for name in (folder / "names").read_text().split()]
    base, updates = names[0], names[1 : count + 1]
    blobs = FileBlobs(folder / "blobs")
    hands = CoordinatorHands(LAYOUT, STRATEGY, blobs, ManualClock(), lambda _: bytes(32))
    ready = _memory("VmRSS")
    for seat, update in enumerate(updates, 1):
        checked = hands.perform(d.Check(1, Seat(seat), update, base))
        assert isinstance(checked, i.Checked) and (checked.fault, checked.norm) == (None, 2.0)
    ranked = tuple(enumerate(updates))
    summed = hands.perform(d.Aggregate(1, count, count, base, None, ranked, ()))
    assert isinstance(summed, i.Summed)
    hands.perform(d.Release(1, summed.model))
    assert blobs.get(summed.model, blobs.size(summed.model) - 4) == b"\x00\x00\x40\x40"  # 1 + 2
    print(_memory("VmHWM") - ready)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
