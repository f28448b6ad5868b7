"""A model as a straight chain of layers that we know, if it is one.

Engines that compute forward and backward by hand need to know what a model computes, in
order. The user's `forward` is run once on a stand-in for a tensor, which records what is done
to it (torch.fx). Whatever is not plainly a chain is none: a branch, a weight that is used
twice or never, a hook, a `forward` that keeps state or draws by itself. None costs speed only;
a wrong chain would cost the result.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn.modules.module import _has_any_global_hook
from torch.nn.utils.parametrize import is_parametrized

from consortium.torch.forward_code import is_plain_forward
from consortium.torch.known_layers import is_known_module, layer_of_call, layer_of_module
from consortium.torch.layers import Kind, Layer

_ROOT = "model"
_NO_BATCH = -1


def chain_of(model: nn.Module) -> tuple[Layer, ...] | None:
    """The layers of the model as it trains, in order; None if it is no chain of known layers.

    All its parameters belong to exactly one layer each, are of one float type and lie on the
    CPU. The first dimension of what goes through is the records of a batch, in every layer.
    """
    if not is_plain(model):
        return None
    with _as_it_trains(model):
        graph = _traced(model)
    if graph is None:
        return None
    try:
        layers = _layers(graph, model)
    except (TypeError, ValueError, IndexError, AttributeError):  # arguments that we do not know
        return None
    if layers is None or not _uses_each_once(model, layers):
        return None
    return tuple(layer for layer in layers if layer.kind is not Kind.IDENTITY)


def is_plain(model: nn.Module) -> bool:
    """Whether the model is nothing but what its modules and their `forward` say."""
    if _has_any_global_hook():  # type: ignore[no-untyped-call]  # torch's own
        return False
    for module in model.modules():
        if any(getattr(module, hooks) for hooks in _HOOKS) or is_parametrized(module):
            return False
        if not is_known_module(module) and not is_plain_forward(module, model):
            return False
        if "forward" in vars(module) or type(module).train is not nn.Module.train:
            return False
    parameters = dict(model.named_parameters(remove_duplicate=False))
    places = {parameter.untyped_storage().data_ptr() for parameter in parameters.values()}
    kinds = {(parameter.dtype, parameter.device.type) for parameter in parameters.values()}
    return (
        len(places) == len(parameters) > 0  # none is tied to another
        and kinds in ({(torch.float32, "cpu")}, {(torch.float64, "cpu")})
        and all(_is_plain_parameter(parameter) for parameter in parameters.values())
    )


_HOOKS = (
    "_forward_hooks",
    "_forward_pre_hooks",
    "_backward_hooks",
    "_backward_pre_hooks",
)


def _is_plain_parameter(parameter: Tensor) -> bool:
    hooks = parameter._backward_hooks, getattr(parameter, "_post_accumulate_grad_hooks", None)
    return type(parameter) is nn.Parameter and parameter.is_contiguous() and not any(hooks)


@contextmanager
def _as_it_trains(model: nn.Module) -> Iterator[None]:
    """All modules in training mode, and gradients wanted; afterwards as it was."""
    modes = {module: module.training for module in model.modules()}
    try:
        with torch.enable_grad():
            for module in modes:
                module.training = True
            yield
    finally:
        for module, mode in modes.items():
            module.training = mode


class _Tracer(fx.Tracer):
    """Records calls of known modules as they are, and looks into all others."""

    proxy_buffer_attributes = True  # what is done to a buffer shall be seen, not done

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:  # noqa: ARG002
        return is_known_module(m)

    def create_node(self, *args: Any, **options: Any) -> fx.Node:
        # What is done under no_grad or autocast leaves no other trace in the graph.
        if not torch.is_grad_enabled() or torch.is_autocast_enabled("cpu"):
            raise ValueError("the model changes how gradients are computed")
        return super().create_node(*args, **options)


def _traced(model: nn.Module) -> fx.Graph | None:
    """What `model(x)` does to `x`. Within another module, for a single layer to be a call and
    for arguments that have a default to get it."""
    whole = nn.Sequential()
    whole.add_module(_ROOT, model)
    with torch.random.fork_rng(devices=[]):
        before = torch.random.get_rng_state()
        try:
            graph = _Tracer().trace(whole)
        except (
            Exception
        ):  # the user's own code, on something that is no tensor: it may raise anything
            return None
        has_drawn = not torch.equal(before, torch.random.get_rng_state())
    return None if has_drawn else graph


def _layers(graph: fx.Graph, model: nn.Module) -> list[Layer] | None:
    """The calls in order, if each takes what the one before it gave and nothing else."""
    nodes = list(graph.nodes)
    current, passed, layers = nodes[0], {nodes[0]}, list[Layer]()
    batch_sizes, shapes = set[fx.Node](), set[fx.Node]()
    for node in nodes[1:-1]:
        if _asks_shape(node, passed):
            shapes.add(node)
        elif _asks_batch_size(node, passed, shapes):
            batch_sizes.add(node)
        else:
            layer = _layer(node, current, batch_sizes, model)
            if layer is None:
                return None
            layers.append(layer)
            passed.add(node)
            current = node
    is_chain = nodes[0].op == "placeholder" and nodes[-1].args == (current,)
    return layers if is_chain else None


def _layer(
    node: fx.Node, current: fx.Node, batch_sizes: set[fx.Node], model: nn.Module
) -> Layer | None:
    """The layer that a node is, if it takes the current tensor first and no other."""
    if not node.args or node.args[0] is not current or node.args.count(current) > 1:
        return None
    arguments, options = node.args[1:], dict(node.kwargs)
    if node.op == "call_method" and node.target in ("view", "reshape"):
        return _reshape(arguments, batch_sizes)
    if node.all_input_nodes != [current]:
        return None
    if node.op == "call_module":
        name = str(node.target).removeprefix(_ROOT).removeprefix(".")
        return layer_of_module(model.get_submodule(name), name)
    return layer_of_call(node.target, arguments, options)


def _reshape(sizes: tuple[Any, ...], batch_sizes: set[fx.Node]) -> Layer | None:
    """`view(batch, -1)`, `view(batch, 1024)` and `view(-1, 1024)` are a flatten; what the last
    two must give is written down, because with another number they mean something else."""
    if len(sizes) == 1 and isinstance(sizes[0], tuple | list):
        sizes = tuple(sizes[0])
    if len(sizes) != 2:
        return None
    rows, columns = sizes
    if rows in batch_sizes and columns == -1:
        return Layer(Kind.FLATTEN)
    is_number = type(columns) is int and columns > 0
    if is_number and (rows in batch_sizes or (type(rows) is int and rows == -1)):
        return Layer(Kind.FLATTEN, size_in=columns, size_out=columns)
    return None


def _asks_shape(node: fx.Node, passed: set[fx.Node]) -> bool:
    by_attribute = node.op == "call_function" and node.target is getattr
    by_method = node.op == "call_method" and node.target == "size"
    if by_attribute:
        return node.args[0] in passed and node.args[1:] == ("shape",)
    return by_method and len(node.args) == 1 and not node.kwargs and node.args[0] in passed


def _asks_batch_size(node: fx.Node, passed: set[fx.Node], shapes: set[fx.Node]) -> bool:
    if node.op == "call_method" and node.target == "size":
        return node.args[0] in passed and (node.args[1:] == (0,) or node.kwargs == {"dim": 0})
    is_item = node.op == "call_function" and getattr(node.target, "__name__", "") == "getitem"
    return is_item and node.args[0] in shapes and node.args[1:] == (0,)


def _uses_each_once(model: nn.Module, layers: list[Layer]) -> bool:
    used = [name for layer in layers for name in (layer.weight, layer.bias) if name is not None]
    return sorted(used) == sorted(name for name, _ in model.named_parameters())


Shape = tuple[int, ...]  # of one record


def shapes_through(chain: tuple[Layer, ...], shape: Shape) -> tuple[Shape, ...] | None:
    """The shape of one record after each layer, if such records fit the chain; else None."""
    shapes = []
    for layer in chain:
        found = _shape_after(layer, shape)
        if found is None or any(size < 1 for size in found):
            return None
        shapes.append(found)
        shape = found
    return tuple(shapes)


def _shape_after(layer: Layer, shape: Shape) -> Shape | None:
    match layer.kind:
        case Kind.LINEAR:
            return (*shape[:-1], layer.size_out) if shape[-1:] == (layer.size_in,) else None
        case Kind.CONV2D if len(shape) == 3 and shape[0] == layer.size_in:
            return (layer.size_out, *_windows(layer, shape))
        case Kind.MAX_POOL2D | Kind.AVG_POOL2D if len(shape) == 3:
            return (shape[0], *_windows(layer, shape))
        case Kind.GLOBAL_AVG_POOL2D if len(shape) == 3:
            return (shape[0], 1, 1)
        case Kind.CONV2D | Kind.MAX_POOL2D | Kind.AVG_POOL2D | Kind.GLOBAL_AVG_POOL2D:
            return None
        case Kind.FLATTEN:
            size = torch.Size(shape).numel()
            return (size,) if layer.size_in in (0, size) else None
        case Kind.LAYER_NORM:
            return shape if shape[-len(layer.shape) :] == layer.shape else None
        case Kind.BATCH_NORM:
            return shape if len(shape) in (1, 3) and shape[0] == layer.size_in else None
        case Kind.LOG_SOFTMAX:
            return shape if len(shape) == 1 else None
        case Kind.EMBEDDING:
            return (*shape, layer.size_out)
    return shape


def _windows(layer: Layer, shape: Shape) -> tuple[int, int]:
    """How many places a kernel has in each direction."""
    rows, columns = (
        _places(shape[axis + 1] + 2 * layer.padding[axis] - layer.kernel[axis], layer, axis)
        for axis in (0, 1)
    )
    return rows, columns


def _places(room: int, layer: Layer, axis: int) -> int:
    stride = layer.stride[axis]
    if room < 0:
        return 0
    places = room // stride + 1
    if layer.ceil_mode and room % stride:
        # The last window must start inside the picture or its left padding.
        starts_inside = places * stride < room + layer.kernel[axis] - layer.padding[axis]
        places += 1 if starts_inside else 0
    return places
