"""Server optimisers against a loop over single numbers, and the bits of the plain step."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from consortium.aggregate.server import ServerOptimiser
from consortium.errors import InternalError
from tests.plain_mean import step

NAMES = ["sgd", "momentum", "adam", "yogi", "adagrad"]


def plain(optimiser: ServerOptimiser, x: float, means: list[float]) -> tuple[float, float, float]:
    """Reddi et al. 2021, Algorithm 2, one number, as it is written."""
    b1, b2, tau, lr = optimiser.beta1, optimiser.beta2, optimiser.adaptivity, optimiser.lr
    m, v = 0.0, tau**2
    for delta in means:
        if optimiser.name == "sgd":
            x += lr * delta
        elif optimiser.name == "momentum":
            m = b1 * m + delta
            x += lr * m
        else:
            m = b1 * m + (1 - b1) * delta
            if optimiser.name == "adagrad":
                v = v + delta**2
            elif optimiser.name == "yogi":
                sign = (v > delta**2) - (v < delta**2)
                v = v - (1 - b2) * delta**2 * sign
            else:
                v = b2 * v + (1 - b2) * delta**2
            x += lr * m / (math.sqrt(v) + tau)
    return x, m, v


def begun(optimiser: ServerOptimiser, size: int) -> dict[str, npt.NDArray[np.float64]]:
    return {name: np.full(size, optimiser.initial(name)) for name in optimiser.state_names}


@pytest.mark.parametrize("name", NAMES)
def test_five_rounds_agree_with_a_loop_over_numbers(name: str) -> None:
    optimiser = ServerOptimiser(name, lr=0.3, beta1=0.8, beta2=0.95, adaptivity=1e-2)
    rng = np.random.default_rng(0)
    means = rng.normal(size=(5, 11)) * 10.0 ** rng.integers(-4, 2, 11)
    start = rng.normal(size=11)
    model, state = start, begun(optimiser, 11)
    for mean in means:
        model, state = optimiser.step(model, mean, state)
    for at in range(11):
        x, m, v = plain(optimiser, float(start[at]), [float(mean) for mean in means[:, at]])
        assert model[at] == pytest.approx(x, rel=1e-12, abs=1e-12)
        for key, expected in (("m", m), ("v", v)):
            if key in state:
                assert state[key][at] == pytest.approx(expected, rel=1e-12, abs=1e-12)


@given(st.integers(0, 2**32), st.sampled_from([np.float32, np.float64]), st.floats(0.01, 2))
def test_sgd_has_the_bits_of_the_plain_step(seed: int, dtype: type, lr: float) -> None:
    rng = np.random.default_rng(seed)
    base, mean = rng.normal(size=50).astype(dtype), rng.normal(size=50)
    moved, state = ServerOptimiser("sgd", lr).step(base, mean, {})
    assert moved.dtype == np.float64 and state == {}
    assert moved.astype(dtype).tobytes() == step(base, mean, lr).tobytes()


@pytest.mark.parametrize("name", NAMES)
def test_chunks_of_columns_give_the_same_bits(name: str) -> None:
    optimiser, rng = ServerOptimiser(name, lr=0.1), np.random.default_rng(1)
    base, mean = rng.normal(size=1000).astype(np.float32), rng.normal(size=1000)
    state = {key: np.abs(rng.normal(size=1000)) for key in optimiser.state_names}
    whole, after = optimiser.step(base, mean, state)
    pieces = [
        optimiser.step(base[cut], mean[cut], {key: value[cut] for key, value in state.items()})
        for cut in (slice(0, 7), slice(7, 501), slice(501, 1000))
    ]
    assert np.concatenate([piece for piece, _ in pieces]).tobytes() == whole.tobytes()
    for key in optimiser.state_names:
        joined = np.concatenate([part[key] for _, part in pieces])
        assert joined.tobytes() == after[key].tobytes()


@pytest.mark.parametrize("name", NAMES)
def test_a_step_may_be_done_twice(name: str) -> None:
    optimiser = ServerOptimiser(name, lr=0.5)
    base, mean, state = np.ones(3, np.float32), np.full(3, 0.25), begun(optimiser, 3)
    first, after = optimiser.step(base, mean, state)
    second, again = optimiser.step(base, mean, state)
    assert first.tobytes() == second.tobytes()
    assert {key: value.tobytes() for key, value in after.items()} == {
        key: value.tobytes() for key, value in again.items()
    }
    np.testing.assert_array_equal(base, 1.0)


def test_states_and_what_they_start_from() -> None:
    names = {name: ServerOptimiser(name, 1.0).state_names for name in NAMES}
    assert names["sgd"] == () and names["momentum"] == ("m",)
    assert names["adam"] == names["yogi"] == names["adagrad"] == ("m", "v")
    adam = ServerOptimiser("adam", 1.0, adaptivity=0.1)
    assert adam.initial("m") == 0.0 and adam.initial("v") == pytest.approx(0.01)
    with pytest.raises(InternalError):
        ServerOptimiser("momentum", 1.0).initial("v")


def test_what_is_not_an_optimiser_is_refused() -> None:
    with pytest.raises(InternalError):
        ServerOptimiser("lion", 1.0)
    for wrong in ({"beta1": 1.0}, {"beta2": -0.1}, {"adaptivity": 0.0}):
        with pytest.raises(InternalError):
            ServerOptimiser("adam", 1.0, **wrong)
