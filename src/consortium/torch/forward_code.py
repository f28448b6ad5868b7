"""Whether a user's `forward` depends on nothing but its input and its layers.

Running it once on a stand-in shows what it does this time. It does the same every time if it
keeps no state, draws nothing and asks nobody else. That is read from its bytecode: which
names it loads, and that it stores nothing but local variables. Code that we cannot judge is
not plain.
"""

from __future__ import annotations

import dis
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any

from torch import nn

_CONSTANTS = (int, float, str, bool, type(None))
_BUILTINS = {
    *("bool", "enumerate", "float", "int", "isinstance", "len", "list", "max", "min", "range"),
    *("reversed", "super", "tuple", "zip"),
}
# What a class must not replace, for its modules to be called and looked up as torch does it.
_MACHINERY = ("__call__", "__getattr__", "__getattribute__", "_call_impl", "train", "eval")
_STORES = ("STORE_ATTR", "STORE_SUBSCR", "STORE_GLOBAL", "STORE_NAME", "STORE_DEREF")
_OTHERS = ("DELETE_ATTR", "DELETE_SUBSCR", "DELETE_GLOBAL", "IMPORT_NAME", "YIELD_VALUE")
_FORBIDDEN = frozenset(_STORES + _OTHERS)


def is_plain_forward(module: nn.Module, model: nn.Module) -> bool:
    """Whether calling this module of the model does the same to every input, as far as code
    can tell."""
    own = [cls for cls in type(module).__mro__ if _is_users(cls)]
    if any(name in vars(cls) for cls in own for name in _MACHINERY):
        return False
    reader = _Reader(model)
    return all(reader.is_plain(vars(cls)["forward"]) for cls in own if "forward" in vars(cls))


class _Reader:
    """Reads code that may use any module of one model."""

    def __init__(self, model: nn.Module) -> None:
        modules = list(model.modules())
        self._values = [vars(module) for module in modules]
        classes = {cls for module in modules for cls in type(module).__mro__}
        self._classes = [vars(cls) for cls in classes if _is_users(cls)]
        self._seen: set[CodeType] = set()

    def is_plain(self, value: Any) -> bool:
        """Whether something that code uses is constant, torch's, or plain code itself."""
        if _is_constant(value) or _is_torchs(value):
            return True
        if not isinstance(value, FunctionType) or hasattr(value, "__wrapped__"):
            return False
        defaults = [*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()]
        try:
            cells = [cell.cell_contents for cell in value.__closure__ or ()]
        except ValueError:  # not filled yet
            return False
        closed = dict(zip(value.__code__.co_freevars, cells, strict=True))
        closed.pop("__class__", None)  # what super() stands for
        return all(
            self.is_plain(part) for part in [*closed.values(), *defaults]
        ) and self._is_plain_code(value.__code__, value.__globals__)

    def _is_plain_code(self, code: CodeType, names: dict[str, Any]) -> bool:
        if code in self._seen:
            return True
        self._seen.add(code)
        if not all(self._is_plain_use(used, names) for used in dis.get_instructions(code)):
            return False
        inner = (part for part in code.co_consts if isinstance(part, CodeType))
        return all(self._is_plain_code(part, names) for part in inner)

    def _is_plain_use(self, used: dis.Instruction, names: dict[str, Any]) -> bool:
        operation, name = used.opname, used.argval
        if operation.startswith("LOAD_GLOBAL"):
            return self.is_plain(names[name]) if name in names else name in _BUILTINS
        if operation.startswith(("LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR")):
            # Whose attribute it is we do not know: it may be that of any module.
            kept = (values[name] for values in self._values if name in values)
            declared = (values[name] for values in self._classes if name in values)
            return all(map(_is_constant, kept)) and all(map(self.is_plain, declared))
        return operation not in _FORBIDDEN


def _is_constant(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(_is_constant(part) for part in value)
    return isinstance(value, _CONSTANTS)


def _is_users(cls: type) -> bool:
    return cls is not object and not _is_torchs(cls)


def _is_torchs(value: Any) -> bool:
    """Whether it is a module, class or function of torch: not an object, which has a state."""
    if isinstance(value, ModuleType):
        home = value.__name__
    elif isinstance(value, type | FunctionType | BuiltinFunctionType):
        home = value.__module__
    else:
        return False
    return str(home).split(".")[0] == "torch"
