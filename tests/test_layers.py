"""Architecture under test: layers, purity of the core, forbidden calls, sizes, errors.

Every checker takes source text, so that each can be shown to catch a planted violation.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from consortium import errors

PACKAGE = Path(errors.__file__).parents[1]
MAX_MODULE_LINES = 500
MAX_FUNCTION_LINES = 50

# A module may import what stands above it, and its own line. (design.md, section 4)
LAYERS: tuple[tuple[str, ...], ...] = (
    ("errors",),
    ("core",),
    ("tensors", "packing", "model"),
    ("crypto",),
    ("ledger",),
    ("privacy",),
    ("update",),
    ("aggregate",),
    ("store",),
    ("stored",),
    ("plan", "tasks", "bundle", "gate", "checks", "screen"),
    ("data",),
    ("drive",),
    ("wire",),
    ("torch",),
    ("coordinator",),
    ("site",),
    ("cli", "__main__"),
    ("testing",),
)
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}
STRANGERS = {
    "coordinator": {"torch", "site"},
    "site": {"torch", "coordinator"},
    "torch": {"coordinator", "site"},
    "testing": {"cli", "coordinator", "site"},
}
# Campaigns look from outside, by commands and requests alone. This one takes both sides' turns
# by itself, so that every run makes the same system calls in the same order.
BOTH_SIDES = "testing/crash_network/"

# All that pure code needs of the standard library. Clocks, files, sockets, threads and
# random sources are not here, and neither is whatever has not been thought of.
CORE_MAY_IMPORT = {
    "__future__",
    "bisect",
    "collections",
    "dataclasses",
    "enum",
    "functools",
    "hashlib",
    "itertools",
    "math",
    "operator",
    "struct",
    "types",
    "typing",
}
FORBIDDEN_MODULES = {"pickle", "cPickle", "marshal", "shelve", "dill", "cloudpickle", "joblib"}
FORBIDDEN_CALLS = {"eval", "exec", "torch.load", "yaml.load", "yaml.unsafe_load"}
FORBIDDEN_IN_CORE = {"open", "print", "input", "__import__"}


def sources() -> Iterator[tuple[str, str]]:
    """(path inside the package, text) of every module."""
    for path in sorted(PACKAGE.rglob("*.py")):
        yield path.relative_to(PACKAGE).as_posix(), path.read_text(encoding="utf-8")


def module_name(path: str) -> str:
    parts = ["consortium", *path.removesuffix(".py").split("/")]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path: str, text: str) -> Iterator[tuple[int, str]]:
    """(line, absolute name) of every import, wherever it stands."""
    name = module_name(path)
    package = name.split(".") if path.endswith("__init__.py") else name.split(".")[:-1]
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            origin = ".".join([*base, *([node.module] if node.module else [])])
            yield node.lineno, origin
            yield from ((node.lineno, f"{origin}.{alias.name}") for alias in node.names)


def layer(name: str) -> str:
    """`core` for `consortium.core.facts`; empty for the package itself."""
    return [*name.split("."), ""][1]


# ---- checkers: each yields complaints -----------------------------------------------


def impure_core(path: str, text: str) -> Iterator[str]:
    if not path.startswith("core/"):
        return
    for line, name in imports(path, text):
        root = name.split(".")[0]
        is_ours = name.startswith(("consortium.core", "consortium.errors"))
        if not is_ours and name != "consortium" and root not in CORE_MAY_IMPORT:
            yield f"{path}:{line}: the core imports {name}"
    for line, name in calls(text):
        if name in FORBIDDEN_IN_CORE:
            yield f"{path}:{line}: the core calls {name}"


def wrong_way(path: str, text: str) -> Iterator[str]:
    mine = layer(module_name(path))
    if not mine:
        return  # the package's own __init__ names what is public
    if mine not in RANK:
        yield f"{path}: {mine} has no place in the order of layers"
        return
    for line, name in imports(path, text):
        other = layer(name)
        if name.split(".")[0] != "consortium" or not other or other.startswith("_"):
            continue
        if other not in RANK:
            yield f"{path}:{line}: {name} has no place in the order of layers"
        elif path.startswith(BOTH_SIDES) and other in ("coordinator", "site"):
            continue
        elif RANK[other] > RANK[mine] or other in STRANGERS.get(mine, ()):
            yield f"{path}:{line}: {mine} imports {name}"


def calls(text: str) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call):
            yield node.lineno, ast.unparse(node.func)


def forbidden(path: str, text: str) -> Iterator[str]:
    for line, name in imports(path, text):
        if name.split(".")[0] in FORBIDDEN_MODULES or name in FORBIDDEN_CALLS:
            yield f"{path}:{line}: imports {name}"
    for line, name in calls(text):
        if name.removeprefix("builtins.") in FORBIDDEN_CALLS:
            yield f"{path}:{line}: calls {name}"


def torch_elsewhere(path: str, text: str) -> Iterator[str]:
    """Only consortium.torch imports torch, and what `init` writes for people who use it."""
    if path.startswith(("torch/", "cli/study/torch/")):
        return
    for line, name in imports(path, text):
        if name.split(".")[0] == "torch":
            yield f"{path}:{line}: imports {name}"


def too_long(path: str, text: str) -> Iterator[str]:
    count = len(text.splitlines())
    if count > MAX_MODULE_LINES:
        yield f"{path}: {count} lines"
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > MAX_FUNCTION_LINES:
                yield f"{path}:{node.lineno}: {node.name} has {length} lines"


Checker = Callable[[str, str], Iterable[str]]


@pytest.mark.parametrize("checker", [impure_core, wrong_way, forbidden, torch_elsewhere, too_long])
def test_package_keeps_its_rules(checker: Checker) -> None:
    complaints = [complaint for path, text in sources() for complaint in checker(path, text)]
    assert not complaints, "\n".join(complaints)


LONG_FUNCTION = "def f():\n" + "    pass\n" * 50


@pytest.mark.parametrize(
    ("checker", "path", "text"),
    [
        (impure_core, "core/x.py", "import os"),
        (impure_core, "core/x.py", "import time as bisect"),
        (impure_core, "core/x.py", "def f():\n    from random import Random"),
        (impure_core, "core/x.py", "from datetime import datetime"),
        (impure_core, "core/x.py", "import numpy as np"),
        (impure_core, "core/x.py", "import collections, socket"),
        (impure_core, "core/x.py", "from consortium.model import Layout"),
        (impure_core, "core/x.py", "from consortium import model"),
        (impure_core, "core/x.py", "from ..model import Layout"),
        (impure_core, "core/x.py", "from .. import model"),
        (impure_core, "core/x.py", "text = open('x').read()"),
        (impure_core, "core/x.py", "print('x')"),
        (wrong_way, "errors/root.py", "from consortium.core import facts"),
        (wrong_way, "model.py", "import consortium.ledger.merkle"),
        (wrong_way, "store/sqlite.py", "from consortium.drive.driver import drive"),
        (wrong_way, "store/sqlite.py", "def f():\n    from consortium import drive"),
        (wrong_way, "gate.py", "from consortium.data import loaders"),
        (wrong_way, "coordinator/app.py", "from consortium.torch import engine"),
        (wrong_way, "site/agent.py", "from consortium.torch import engine"),
        (wrong_way, "site/agent.py", "from consortium.coordinator import wire"),
        (wrong_way, "testing/world.py", "from consortium.cli import app"),
        (wrong_way, "drive/simulate.py", "from consortium.testing import explore"),
        (wrong_way, "drive/simulate.py", "from consortium.helpers import anything"),
        (wrong_way, "helpers/x.py", ""),
        (forbidden, "model.py", "import pickle"),
        (forbidden, "model.py", "from marshal import loads"),
        (forbidden, "cli/x.py", "def f():\n    import shelve, dill"),
        (forbidden, "model.py", "value = eval(text)"),
        (forbidden, "model.py", "exec(text)"),
        (forbidden, "model.py", "import builtins\nbuiltins.eval(text)"),
        (forbidden, "torch/x.py", "import torch\ntorch.load(path)"),
        (forbidden, "torch/x.py", "from torch import load"),
        (torch_elsewhere, "drive/x.py", "def f():\n    import torch"),
        (torch_elsewhere, "data/x.py", "from torch.nn import Linear"),
        (forbidden, "plan.py", "import yaml\nyaml.load(text)"),
        (too_long, "model.py", "x = 1\n" * 501),
        (too_long, "model.py", LONG_FUNCTION),
        (too_long, "model.py", LONG_FUNCTION.replace("def", "async def")),
    ],
)
def test_checker_catches_a_planted_violation(checker: Checker, path: str, text: str) -> None:
    assert list(checker(path, text))


@pytest.mark.parametrize(
    ("checker", "path", "text"),
    [
        (impure_core, "core/x.py", "from consortium.core import facts\nimport math"),
        (impure_core, "core/x.py", "from consortium.errors import Refusal"),
        (impure_core, "drive/x.py", "import os"),
        (wrong_way, "drive/x.py", "from consortium.core import facts\nimport consortium"),
        (wrong_way, "gate.py", "from consortium.plan import Plan"),
        (wrong_way, "testing/x.py", "from consortium.drive.simulate import simulate"),
        (wrong_way, "cli/x.py", "from consortium import __version__"),
        (forbidden, "model.py", "import json\njson.load(file)\nmodel.eval()\nsafetensors.load(x)"),
        (forbidden, "torch/x.py", "from safetensors.torch import load"),
        (too_long, "model.py", "x = 1\n" * 500),
        (too_long, "model.py", LONG_FUNCTION.replace("    pass\n", "", 1)),
    ],
)
def test_checker_lets_the_innocent_pass(checker: Checker, path: str, text: str) -> None:
    assert not list(checker(path, text))


# ---- errors -------------------------------------------------------------------------


def bad_errors(kinds: Iterable[type[Any]], tree: str) -> Iterator[str]:
    drawn = set(re.findall(r"\w+", tree))
    codes: dict[str, str] = {}
    for kind in kinds:
        name = kind.__name__
        if "code" not in vars(kind):
            yield f"{name} has no code of its own"
        if not re.fullmatch(r"E0\d{3}", kind.code):
            yield f"{name} has the code {kind.code!r}"
        if codes.setdefault(kind.code, name) != name:
            yield f"{name} and {codes[kind.code]} share {kind.code}"
        if not vars(kind).get("__doc__"):
            yield f"{name} has no docstring"
        if name not in drawn:
            yield f"{name} is not in the tree"


def our_errors() -> tuple[type[errors.ConsortiumError], ...]:
    return tuple(
        kind for kind in errors.every_error() if kind.__module__.startswith(errors.__name__ + ".")
    )


def drawn_tree() -> str:
    assert errors.__doc__ is not None
    return errors.__doc__.partition("House rules")[0]


def test_every_error_has_its_own_code_a_docstring_and_a_place_in_the_tree() -> None:
    assert not list(bad_errors(our_errors(), drawn_tree()))


def test_tree_draws_no_error_that_is_gone() -> None:
    names = {kind.__name__ for kind in our_errors()}
    drawn = set(re.findall(r"\w+Error|Refusal", drawn_tree()))
    assert drawn == names


def test_every_error_lives_on_the_one_page() -> None:
    strays = [
        f"{path}:{node.lineno}: {node.name}"
        for path, text in sources()
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.ClassDef) and not path.startswith("errors/")
        for base in node.bases
        if ast.unparse(base).split(".")[-1] in {kind.__name__ for kind in our_errors()}
    ]
    assert not strays, "\n".join(strays)


class _Documented(Exception):
    """Not one of ours, so that `every_error` does not find what is planted here."""


def _planted(name: str, code: str, doc: str | None = "Said.") -> type[Exception]:
    return type(name, (_Documented,), {"code": code, "__doc__": doc})


@pytest.mark.parametrize(
    ("kinds", "tree", "is_good"),
    [
        ([_planted("A", "E0001"), _planted("B", "E0002")], "A B", True),
        ([_planted("A", "E0001"), _planted("B", "E0001")], "A B", False),
        ([_planted("A", "E0001")], "AB", False),
        ([_planted("A", "E01")], "A", False),
        ([_planted("A", "E0001", doc=None)], "A", False),
        ([type("A", (_planted("B", "E0001"),), {"__doc__": "Said."})], "A", False),
    ],
)
def test_checker_catches_planted_errors(
    kinds: list[type[Exception]], tree: str, is_good: bool
) -> None:
    assert (not list(bad_errors(kinds, tree))) is is_good
