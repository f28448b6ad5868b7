"""The complete model of one site: its own layers and the shared ones, for use at home.

It is not meant to leave the site, because its private layers and running statistics
describe the site's records.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from consortium.errors import FormatError, ModelFileError
from consortium.store.files import write_durably
from consortium.tensors import load_tensors, save_tensors
from consortium.torch.arrays import array_of, float_type
from consortium.torch.batches import as_tensor
from consortium.torch.losses import Kind, outputs_of
from consortium.torch.onnx import export

if TYPE_CHECKING:
    from consortium.tasks import Site
    from consortium.torch.task import TorchTask

_BATCH = 1024


@dataclass(frozen=True, slots=True)
class SiteModel:
    """A complete model in evaluation mode. `module` is a torch module like any other."""

    module: nn.Module
    kind: Kind
    trained_on: Any = None  # the training records as the task gave them: columns, scale

    def predict(self, inputs: Any) -> npt.NDArray[Any]:
        """For records (n, ...), as an array, a tensor or a table: the probabilities of the
        classes (n, k), the probability of class one (n,), or values (n,), by the task's
        loss. With a loss of your own: the model's outputs as they are."""
        records = as_tensor(getattr(inputs, "features", inputs))
        dtype = float_type(self.module)
        with torch.no_grad():
            parts = [outputs_of(self.module, part, dtype) for part in torch.split(records, _BATCH)]
        return np.asarray(self._meaning(torch.cat(parts)).cpu().numpy())

    def _meaning(self, outputs: Tensor) -> Tensor:
        if self.kind is Kind.CLASSES:
            return torch.softmax(outputs, 1)
        if self.kind is Kind.UNKNOWN:
            return outputs
        is_column = outputs.ndim == 2 and outputs.shape[1] == 1
        outputs = outputs.squeeze(1) if is_column else outputs
        return torch.sigmoid(outputs) if self.kind is Kind.LOGIT else outputs

    def save(self, path: str | Path) -> None:
        """Write all tensors as one safetensors file: the old file or the new one is there,
        never half of one."""
        tensors = self.module.state_dict()
        arrays = {name: array_of(name, tensor) for name, tensor in tensors.items()}
        write_durably(Path(path).resolve(), save_tensors(arrays))

    def to_onnx(self, path: str | Path, example: Any) -> None:
        """Write the model as ONNX, for any number of records, after checking that it gives
        what torch gives. `example` is a batch of inputs. The outputs are the model's own:
        logits, if it gives logits."""
        records = as_tensor(getattr(example, "features", example))
        if records.is_floating_point():
            records = records.to(float_type(self.module))
        export(self.module, records, Path(path))


def load_complete(task: TorchTask, site: Site, path: str | Path) -> SiteModel:
    """The model that `SiteModel.save` wrote, for the same task and the same site."""
    try:
        arrays = load_tensors(Path(path).read_bytes())
    except FormatError as error:
        raise ModelFileError(f"{path}: {error.message}") from None
    except OSError as error:
        raise ModelFileError(f"{path}: {error.strerror}") from None
    model = task.new_model(site)
    there = model.state_dict()
    fits = arrays.keys() == there.keys() and all(
        arrays[name].shape == tuple(tensor.shape) for name, tensor in there.items()
    )
    if not fits:
        raise ModelFileError(f"{path}: not a complete model of this task at site {site.name}")
    model.load_state_dict({name: torch.from_numpy(array) for name, array in arrays.items()})
    return SiteModel(model.eval(), task.kind)
