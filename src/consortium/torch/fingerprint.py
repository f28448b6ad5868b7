"""What makes a model what it is, beside the numbers in its tensors.

Two models with one fingerprint are built of the same classes, with the same settings and the
same shapes: as far as their code depends on nothing else, they compute the same function of
their tensors and their input.
"""

from __future__ import annotations

from torch import Tensor, nn

_PLAIN = frozenset((int, float, str, bool, type(None)))
# What every module has: tensors and submodules are looked at by themselves.
_PARTS = frozenset(("_parameters", "_buffers", "_modules", "training"))


def fingerprint(model: nn.Module) -> object | None:
    """None for a model with settings that cannot be compared."""
    found: list[object] = []
    return tuple(found) if _describe(model, found) else None


def _describe(module: nn.Module, found: list[object]) -> bool:
    """Write down a module and all below it; whether that was possible."""
    found.append(type(module))
    values = vars(module)
    for name, value in values.items():
        if name in _PARTS:
            continue
        if type(value) in _PLAIN:
            found.append((name, type(value), value))
        elif isinstance(value, tuple) and all(type(part) in _PLAIN for part in value):
            found.append((name, tuple, value, tuple(map(type, value))))
        elif not (isinstance(value, dict | set) and not value):  # of hooks there are none
            return False
    for kind in ("_parameters", "_buffers"):
        for name, tensor in values[kind].items():
            found.append((name, None if tensor is None else _form(tensor)))
    for name, child in values["_modules"].items():
        found.append(name)
        if child is not None and not _describe(child, found):
            return False
    found.append(None)  # where the module ends
    return True


def _form(tensor: Tensor) -> object:
    return tuple(tensor.shape), tensor.dtype, tensor.requires_grad
