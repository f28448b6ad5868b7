"""Where numbers come from, by looking at the source text."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import consortium

PACKAGE = Path(consortium.__file__).parent
# Code that makes noise or picks records for somebody's protection.
PROTECTS = (
    "privacy/",
    "update/noise.py",
    "update/ring_noise.py",
    "drive/release.py",
    "torch/private_",
)
# The one class there that draws from a seed, and who may have it.
SEEDED = "SimulatedNoise"
SIMULATES = ("privacy/noise.py", "drive/simulate.py", "drive/engine.py", "testing/")
RANDOM_MODULES = ("random", "numpy.random", "torch.random", "torch.distributions", "scipy.stats")
# These keep a state, and draw nothing.
KEEPERS = ("torch.random.fork_rng", "torch.random.get_rng_state", "torch.random.set_rng_state")
DRAWS = {
    "bernoulli", "bernoulli_", "binomial", "default_rng", "exponential_", "gauss", "integers",
    "multinomial", "multivariate_normal", "normal_", "normalvariate", "poisson",
    "rand", "rand_like", "randint", "randn", "randn_like", "random_", "randperm", "RandomState",
    "standard_normal", "trunc_normal_", "uniform", "uniform_",
}  # fmt: skip


def sources() -> dict[str, str]:
    """The text of every module, by its path inside the package."""
    return {
        path.relative_to(PACKAGE).as_posix(): path.read_text(encoding="utf-8")
        for path in sorted(PACKAGE.rglob("*.py"))
    }


def complaints(texts: Mapping[str, str]) -> list[str]:
    return [f"{path}: {one}" for path, text in texts.items() for one in _complaints(path, text)]


@cache
def _complaints(path: str, text: str) -> tuple[str, ...]:
    return tuple(_found(path, text))


def _found(path: str, text: str) -> Iterator[str]:
    tree = ast.parse(text)
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    names |= {one.name for node in _imports(tree) for one in node.names}
    if SEEDED in names and not path.startswith(SIMULATES):
        yield f"has {SEEDED}"
    if not path.startswith(PROTECTS):
        return
    for node in _imports(tree):
        origin = node.module or "" if isinstance(node, ast.ImportFrom) else ""
        for one in node.names:
            if f"{origin}.{one.name}".lstrip(".").startswith(RANDOM_MODULES):
                yield f"imports {one.name}"
    inside = {id(node) for owner in _seeded(tree) for node in ast.walk(owner)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and id(node) not in inside:
            yield from _drawn(node)


def _drawn(node: ast.Call) -> Iterator[str]:
    called = ast.unparse(node.func).replace("np.", "numpy.", 1)
    is_torch_normal = called == "torch.normal"
    is_random = called.startswith(RANDOM_MODULES) and called not in KEEPERS
    if is_torch_normal or is_random or called.split(".")[-1] in DRAWS:
        yield f"line {node.lineno}: calls {called}"


def _imports(tree: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom))


def _seeded(tree: ast.AST) -> Iterator[ast.ClassDef]:
    classes = (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
    return (node for node in classes if node.name == SEEDED)
