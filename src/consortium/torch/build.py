"""Make a model so that equal seeds give equal weights, whatever the site's widths are.

The user's own initialisation is kept: we do not set weights, we steer the random numbers
they are drawn from. Before every draw the generator is seeded from (seed, operation, shape,
how many such draws came before), so a private layer of another width does not shift what
the shared layers get. Where a private draw has the same shape as a shared one, `built_apart`
counts the two separately.

Draws with a generator of the user's own are left alone. Models are built on the CPU. One
limit: values that are drawn elsewhere and then copied (`nn.init.orthogonal_`) are not
recognised as belonging to a private layer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from hashlib import sha256
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

Made = TypeVar("Made")
_CONTEXT = "consortium/build/v1"
_Key = tuple[bool, str, tuple[object, ...]]


def built(make: Callable[[], Made], seed: int) -> Made:
    """What `make` returns when it draws from `seed`. Torch's own generator stays untouched."""
    return _run(make, _SteeredDraws(seed))


def built_apart(
    make: Callable[[], Made], seed: int, staying: Callable[[Made], Iterable[Tensor]]
) -> Made:
    """As `built`, but what is drawn for the tensors that stay never shifts the others.

    Which draws those are shows only afterwards, so if shapes meet, `make` is called again.
    """
    draws = _SteeredDraws(seed)
    made = _run(make, draws)
    places = {_place(tensor) for tensor in staying(made)}
    apart = {i for i, tensor in enumerate(draws.results) if _place(tensor) in places}
    shapes = {draws.keys[i] for i in apart}
    if all(key not in shapes for i, key in enumerate(draws.keys) if i not in apart):
        return made
    return _run(make, _SteeredDraws(seed, frozenset(apart)))


def _run(make: Callable[[], Made], draws: _SteeredDraws) -> Made:
    with torch.random.fork_rng(devices=[]), draws:
        return make()


def _place(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr() if tensor.numel() else id(tensor)


class _SteeredDraws(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's own
    """Seeds the default generator before each operation that draws from it."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Torch asks this. With True it imports its compiler at the first draw, for a second or
        two, only to keep it away from us; nothing is compiled while a model is built."""
        return False

    def __init__(self, seed: int, apart: frozenset[int] = frozenset()) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's own
        self._seed = seed
        self._apart = apart  # draws, by their number, that are counted for themselves
        self._counts: Counter[_Key] = Counter()
        self.keys: list[_Key] = []
        self.results: list[Tensor] = []  # kept, so that no memory is used twice meanwhile

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        is_draw = torch.Tag.nondeterministic_seeded in getattr(func, "tags", ())
        if not is_draw or not _is_default(kwargs.get("generator")):
            return func(*args, **kwargs)
        key = (len(self.keys) in self._apart, func._schema.name, _shape(args))
        torch.default_generator.manual_seed(self._number(key))
        result = func(*args, **kwargs)
        self.keys.append(key)
        self.results.append(result if isinstance(result, Tensor) else torch.empty(0))
        return result

    def _number(self, key: _Key) -> int:
        text = f"{_CONTEXT}\n{self._seed}\n{key}\n{self._counts[key]}"
        self._counts[key] += 1
        return int.from_bytes(sha256(text.encode()).digest()[:8], "little") >> 1


def _is_default(generator: Any) -> bool:
    """Whether a draw uses torch's own generator. Operations get a new wrapper around it, so
    compare what is wrapped."""
    own: Any = torch.default_generator
    return generator is None or generator._cdata == own._cdata


def _shape(args: tuple[Any, ...]) -> tuple[object, ...]:
    """The shape that is drawn: of the tensor to fill, or the sizes of the one to make."""
    if args and isinstance(args[0], Tensor):
        return tuple(args[0].shape)
    sizes: list[object] = []
    for value in args:
        if isinstance(value, list | tuple):
            sizes.extend(int(size) for size in value)
        elif isinstance(value, int):
            sizes.append(value)
    return tuple(sizes)
