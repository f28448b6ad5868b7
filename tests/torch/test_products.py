"""Products of many small matrices, by whichever library does them."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor

from consortium.torch import products
from consortium.torch.products import Blas, add_product, product, product_with_one, sum_and_product

TOLERANCE = 1e-5  # of numbers around one, summed over at most 130
HAS_AVX512 = torch.backends.cpu.get_cpu_capability() == "AVX512"


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) / shape[-1] ** 0.5


@pytest.fixture(params=["torch", "openblas"])
def _library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of both, where the processor can do what the second one's kernels need."""
    blas = None
    if request.param == "openblas" and HAS_AVX512:
        blas = products.loaded()
        assert blas is not None, "make setup installs it"
    monkeypatch.setattr(products, "_blas", lambda: blas)


SHAPES = [(1, 1, 1, 1), (2, 3, 1, 5), (5, 10, 64, 128), (50, 10, 128, 2), (3, 130, 7, 33)]


def on_its_side(matrices: Tensor) -> Tensor:
    return matrices.transpose(1, 2).contiguous().transpose(1, 2)


def within_larger(matrices: Tensor) -> Tensor:
    """Lines that lie further apart than they are long."""
    k, rows, columns = matrices.shape
    larger = torch.full((k, rows, columns + 3), torch.nan)
    larger[:, :, :columns] = matrices
    return larger[:, :, :columns]


def common_to_all(matrices: Tensor) -> Tensor:
    return matrices[:1].expand(matrices.shape)


LAYOUTS = [lambda matrices: matrices, on_its_side, within_larger, common_to_all]


@pytest.mark.usefixtures("_library")
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("lies", LAYOUTS)
@pytest.mark.parametrize("also_lies", LAYOUTS)
def test_products_are_those_of_float64(
    shape: tuple[int, int, int, int], lies: object, also_lies: object
) -> None:
    k, rows, inner, columns = shape
    assert callable(lies) and callable(also_lies)
    left, right = lies(drawn(k, rows, inner)), also_lies(drawn(k, inner, columns, seed=1))
    exact = left.double() @ right.double()
    close = {"rtol": TOLERANCE, "atol": TOLERANCE}
    torch.testing.assert_close(product(left, right).double(), exact, **close)
    bias = drawn(k, 1, columns, seed=2)
    torch.testing.assert_close(sum_and_product(bias, left, right).double(), bias + exact, **close)
    into = drawn(k, rows, columns, seed=3)
    wanted = 0.5 * into.double() - 2.0 * exact
    add_product(into, left, right, 0.5, -2.0)
    torch.testing.assert_close(into.double(), wanted, **close)
    one = right[0]
    torch.testing.assert_close(product_with_one(left, one), left @ one, **close)


@pytest.mark.usefixtures("_library")
def test_what_was_there_before_does_not_matter_where_it_is_not_added() -> None:
    left, right = drawn(4, 10, 64), drawn(4, 64, 128, seed=1)
    into = torch.full((4, 10, 128), torch.nan)
    add_product(into, left, right, 0.0, 1.0)
    torch.testing.assert_close(into, torch.bmm(left, right), rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.usefixtures("_library")
def test_numbers_that_are_not_finite_stay_so() -> None:
    left, right = drawn(4, 10, 64), drawn(4, 64, 128, seed=1)
    left[2, 3, 5], left[1, 0, 0] = torch.nan, torch.inf
    found = torch.isfinite(product(left, right))
    assert not found[2, 3].any() and not found[1, 0].any()
    assert found[0].all() and found[3].all() and found[2, :3].all() and found[2, 4:].all()


@pytest.mark.usefixtures("_library")
def test_matrices_that_do_not_fit_together_are_an_error() -> None:
    """And not whatever lies behind them in memory."""
    left, right, into = drawn(2, 3, 4), drawn(2, 4, 5), torch.zeros(2, 3, 5)
    for wrong in (drawn(2, 3, 5), drawn(1, 4, 5), drawn(3, 4, 5)):
        with pytest.raises(RuntimeError):
            product(left, wrong)
    for other in (into[:1], into[:, :2], into[:, :, :4].contiguous()):
        with pytest.raises(RuntimeError):
            add_product(other, left, right, 1.0, 1.0)
    with pytest.raises(RuntimeError):
        product_with_one(left, right[0, :3])
    assert product_with_one(left[:, :, :0], right[0, :0]).shape == (2, 3, 5)


@pytest.mark.usefixtures("_library")
def test_float64_is_as_exact_as_ever() -> None:
    left, right = drawn(4, 10, 64).double(), drawn(4, 64, 128, seed=1).double()
    assert torch.equal(product(left, right), torch.bmm(left, right))
    bias = drawn(4, 1, 128, seed=2).double()
    assert torch.equal(sum_and_product(bias, left, right), torch.baddbmm(bias, left, right))


@pytest.mark.usefixtures("_library")
def test_a_bias_stays_as_it_is() -> None:
    """Also of one row, of which a copy could be the bias itself."""
    for rows in (1, 10):
        left, right, bias = drawn(4, rows, 64), drawn(4, 64, 8, seed=1), drawn(4, 1, 8, seed=2)
        before = bias.clone()
        found = sum_and_product(bias, left, right)
        assert torch.equal(bias, before)
        torch.testing.assert_close(found, torch.baddbmm(bias, left, right))


@pytest.mark.usefixtures("_library")
def test_threads_do_not_mix_their_matrices_up() -> None:
    pairs = [(drawn(20, 10, 64, seed=at), drawn(20, 64, 32, seed=100 + at)) for at in range(8)]
    wanted = [product(*pair) for pair in pairs]
    with ThreadPoolExecutor(4) as pool:
        for _ in range(20):
            for found, one in zip(
                pool.map(lambda pair: product(*pair), pairs), wanted, strict=True
            ):
                assert torch.equal(found, one)


@pytest.mark.skipif(not HAS_AVX512, reason="the kernels are for processors with AVX-512")
def test_matrices_that_lie_otherwise_are_left_to_torch() -> None:
    blas = products.loaded()
    assert isinstance(blas, Blas)
    left, right, into = drawn(2, 3, 4), drawn(2, 4, 5), torch.zeros(2, 3, 5)
    sparse = drawn(2, 3, 8)[:, :, ::2]  # no side of it lies in one piece
    assert not blas.multiply(into, sparse, right, 0.0, 1.0)
    assert not blas.multiply(into, left.double(), right, 0.0, 1.0)
    assert not blas.multiply(into.transpose(1, 2).contiguous().transpose(1, 2), left, right, 0, 1)
    assert not blas.multiply(into, left[:, :, :0], right[:, :0], 0.0, 1.0)
    assert not blas.multiply(into[:1].expand(2, 3, 5), left, right, 0.0, 1.0)
    assert not into.any()
    assert blas.multiply(into, left, right, 0.0, 1.0) and into.any()


def test_loading_it_leaves_the_environment_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "7")
    monkeypatch.delenv("OPENBLAS_CORETYPE", raising=False)
    with products._environment(OPENBLAS_NUM_THREADS="1", OPENBLAS_CORETYPE="SkylakeX"):
        assert os.environ["OPENBLAS_CORETYPE"] == "SkylakeX"
    assert os.environ["OPENBLAS_NUM_THREADS"] == "7"
    assert "OPENBLAS_CORETYPE" not in os.environ


@pytest.mark.parametrize("capability", ["DEFAULT", "AVX2"])
def test_it_is_never_taken_without_the_instructions_that_it_needs(
    capability: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    assert not products._has_width_that_torch_leaves()


@pytest.mark.skipif(not HAS_AVX512, reason="the kernels are for processors with AVX-512")
def test_a_library_that_somebody_loaded_with_other_kernels_is_left_alone() -> None:
    """In a process of its own: what is loaded stays."""
    program = (
        "import os; os.environ['OPENBLAS_CORETYPE'] = 'Haswell'; import scipy_openblas32\n"
        "from consortium.torch.products import loaded; print(loaded())"
    )
    command = [sys.executable, "-c", program]
    assert subprocess.run(command, capture_output=True, check=True).stdout == b"None\n"


def test_without_the_package_torch_does_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products.importlib.util, "find_spec", lambda name: None)
    assert products.loaded() is None
