"""Write a model as ONNX, and believe it only after running it."""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from consortium.errors import MissingExtraError, ModelFileError
from consortium.store.files import write_durably
from consortium.torch.reproducible import reproducibly

TOLERANCE = 1e-4  # float32 sums in another order differ by far less, a wrong model by far more
INPUTS, OUTPUTS = "inputs", "outputs"
_REGISTRATION = "torch.onnx._internal.exporter._registration"
# What torch 2.13 says about its own inner workings while it exports; nothing for the user.
_TORCHS_OWN = (
    (FutureWarning, r"`isinstance\(treespec, LeafSpec\)` is deprecated"),
    (FutureWarning, r"_check_is_size will be removed"),
    (UserWarning, r"The tensor attributes? .*_flat_weights"),  # of every LSTM and GRU
)


def export(module: nn.Module, example: Tensor, path: Path) -> None:
    """Write the module to `path` with a free number of records, if onnxruntime gives the
    same outputs as torch for the example and for other numbers of records."""
    try:
        import onnx  # noqa: F401
        import onnxruntime  # type: ignore[import-untyped]  # it has no types
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise MissingExtraError(
            f"export to ONNX needs {error.name}", hint="pip install 'consortium[onnx]'"
        ) from None
    # Torch takes a size of one for a constant: two records make the number a variable.
    rows = _rows(example, max(2, len(example)))
    data = _exported(module, rows)
    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    for count in sorted({1, 2, 7, len(example)}):
        _compare(module, session, _rows(example, count))
    write_durably(path.resolve(), data)


def _rows(example: Tensor, count: int) -> Tensor:
    return example[torch.arange(count) % len(example)]


def _exported(module: nn.Module, rows: Tensor) -> bytes:
    # A copy, because tracing may leave tensors of its own in a module; without gradients,
    # because torch warns about those of an LSTM.
    copy = deepcopy(module).eval().requires_grad_(False)
    with reproducibly(0), _quietly():
        try:
            program = torch.onnx.export(
                copy,
                (rows,),
                dynamo=True,
                input_names=[INPUTS],
                output_names=[OUTPUTS],
                dynamic_shapes=({0: torch.export.Dim("batch")},),
                verbose=False,
            )
        except torch.onnx.OnnxExporterError as error:
            raise ModelFileError(
                f"torch cannot export this model: {type(error).__name__}",
                hint="its forward must be traceable: see torch.export",
            ) from error
    assert program is not None  # it is None for the old exporter only
    return bytes(program.model_proto.SerializeToString())


def _compare(module: nn.Module, session: Any, rows: Tensor) -> None:
    with torch.no_grad():
        wanted = module(rows).cpu().numpy()
    (found,) = session.run([OUTPUTS], {INPUTS: rows.numpy()})
    if found.shape != wanted.shape or not np.allclose(found, wanted, TOLERANCE, TOLERANCE):
        raise ModelFileError(
            f"the exported model gives other outputs than torch for {len(rows)} records",
            hint="look for code in forward that depends on the batch size",
        )


@contextmanager
def _quietly() -> Iterator[None]:
    """Without what torch says about itself; anything else is heard."""
    logger = logging.getLogger(_REGISTRATION)
    level = logger.level
    logger.setLevel(logging.ERROR)  # else: torchvision is not installed
    try:
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
            for category, message in _TORCHS_OWN:
                warnings.filterwarnings("ignore", message=message, category=category)
            yield
    finally:
        logger.setLevel(level)
