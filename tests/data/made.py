"""Small files in the form of the published sets, and where the real ones may be."""

from __future__ import annotations

import hashlib
import io
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from consortium.data import heart, intrusion, turbofan

_DEFAULT = Path(__file__).parents[3] / "shared" / "data"
REAL = Path(os.environ.get("CONSORTIUM_TEST_DATA", _DEFAULT))


def heart_files() -> dict[str, bytes]:
    """Ten patients a hospital; every fifth lacks `fbs`, all lack `ca`."""
    rows = [
        f"{40 + n},1,{n % 4 + 1}.0,120,200,{'?' if n % 5 == 0 else 1},{n % 3},150,0,1,2,?,3,{n % 3}"
        for n in range(10)
    ]
    text = ("\n".join(rows) + "\n").encode()
    return dict.fromkeys(heart.SOURCE.sha256, text)


def turbofan_files() -> dict[str, bytes]:
    """Two engines of 3 and 2 cycles to train, the same two to test with 7 and 9 left."""
    rows = []
    for unit, cycles in ((1, 3), (2, 2)):
        for cycle in range(1, cycles + 1):
            sensors = " ".join(f"{100 * unit + cycle + 0.01 * number:.2f}" for number in range(21))
            rows.append(f"{unit} {cycle} 0.1 0.2 100.0 {sensors}  ")
    text = ("\n".join(rows) + "\n").encode()
    lives = b"7 \n9 \n"
    assert set(turbofan.SOURCE.sha256) == {"RUL_FD001.txt", "test_FD001.txt", "train_FD001.txt"}
    return {"train_FD001.txt": text, "test_FD001.txt": text, "RUL_FD001.txt": lives}


def intrusion_files() -> dict[str, bytes]:
    """Ten connections, every other an attack; the service of the last is unknown."""
    rows = []
    for n in range(10):
        service = "http" if n < 9 else "quic"
        rest = ",".join(["0"] * 37)
        name = "normal" if n % 2 == 0 else "neptune"
        rows.append(f"{n},tcp,{service},SF,{rest},{name},21")
    text = ("\n".join(rows) + "\n").encode()
    return dict.fromkeys(intrusion.SOURCE.sha256, text)


def zipped(files: Mapping[str, bytes], folder: str = "set/") -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(folder + name, data)
    return buffer.getvalue()


def digests(files: Mapping[str, bytes]) -> dict[str, str]:
    return {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}


def write(folder: Path, files: Mapping[str, bytes]) -> Path:
    folder.mkdir(exist_ok=True)
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return folder


def csv_file(folder: Path, text: str) -> Path:
    path = folder / "site.csv"
    path.write_text(text, encoding="utf-8")
    return path


def numbers_csv(folder: Path, records: int = 40, seed: int = 0) -> Path:
    """Columns age and dose, label y of 0 and 1."""
    rng = np.random.default_rng(seed)
    lines = [f"{rng.normal(60, 9):.2f},{rng.random():.3f},{n % 2}" for n in range(records)]
    return csv_file(folder, "age,dose,y\n" + "\n".join(lines) + "\n")
