"""Sources of noise: known answers, distributions, what they do not repeat and do not tell.

Distributions are those of fixed keys, so nothing here fails by chance; a source that is right
would look stranger than `STRANGE` once in a million keys.
"""

from __future__ import annotations

import copy
import inspect
import math
import pickle
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from mpmath import mp, mpf

from consortium.errors import ImpossiblePlanError, InternalError
from consortium.privacy import discrete_gaussian as module
from consortium.privacy.discrete_gaussian import DiscreteGaussian
from consortium.privacy.keystream import U64, Keystream, Words
from consortium.privacy.noise import Noise, SecretNoise, SideBySide, SimulatedNoise
from consortium.privacy.normal import coins, normals
from tests.privacy.distribution import (
    are_apart,
    exact,
    fits_discrete,
    fits_moments,
    fits_normal,
)

KEY = bytes(range(32))
STRANGE = 1e-6
COUNT = 300_000
KNOWN_NORMALS = [
    -0.5103279641181555,
    -0.08023893208789797,
    0.38583706272406115,
    -1.1715779593847049,
]


def by_hand(key: bytes, count: int) -> U64:
    """The words of a key, from single blocks that count by themselves."""
    blocks = b"".join(at.to_bytes(16, "big") for at in range((count + 1) // 2))
    encryptor = Cipher(algorithms.AES256(key), modes.ECB()).encryptor()
    return np.frombuffer(encryptor.update(blocks), "<u8")[:count].astype(np.uint64)


# ---- words ---------------------------------------------------------------------------


def test_words_of_the_zero_key_are_the_published_ones() -> None:
    """Blocks 0, 1 and 2 are H, the tag of case 13 and the text of case 14 of McGrew & Viega,
    The Galois/Counter Mode of Operation (2005), appendix B."""
    published = (
        "dc95c078a2408989ad48a21492842087"
        "530f8afbc74536b9a963b4f1c4cb738b"
        "cea7403d4d606b6e074ec5d3baf39d18"
    )
    assert Keystream(bytes(32)).words(6).astype("<u8").tobytes().hex() == published


@pytest.mark.parametrize("pieces", [[40_000], [1, 0, 2, 8_190, 3, 8_192, 23_612], [2] * 20_000])
def test_words_go_on_across_calls_and_parts(pieces: list[int]) -> None:
    stream, wanted = Keystream(KEY), by_hand(KEY, 40_000)
    found = np.concatenate([stream.words(size) for size in pieces])
    assert (found == wanted).all()


def test_a_fresh_key_is_another_one() -> None:
    assert (Keystream.fresh().words(4) != Keystream.fresh().words(4)).any()
    assert KEY.hex() not in repr(Keystream(KEY))
    with pytest.raises(InternalError):
        pickle.dumps(Keystream(KEY))


# ---- normal numbers ------------------------------------------------------------------


def test_normal_numbers_of_a_known_key() -> None:
    """Box & Muller in 40 digits, with the words from single blocks."""
    count = 1001
    pairs, drawn = 501, by_hand(KEY, 1002)
    with mp.workdps(40):
        radii = [mp.sqrt(-2 * mp.log((mpf(int(u)) + 0.5) / 2**64)) for u in drawn[:pairs]]
        # Half the angle goes from -π/2 to π/2.
        angles = [
            2 * mp.pi * ((mpf(int(u) >> 11) + 0.5) / 2**53 - mpf(1) / 2) for u in drawn[pairs:]
        ]
        wanted = [float(r * mp.cos(a)) for r, a in zip(radii, angles, strict=True)]
        wanted += [float(r * mp.sin(a)) for r, a in zip(radii, angles, strict=True)]
    found = normals(count, Keystream(KEY).words)
    assert found.shape == (count,)
    assert np.allclose(found, wanted[:count], rtol=1e-12, atol=1e-14)


def test_first_normal_numbers_of_a_known_key_as_they_were_when_written() -> None:
    found = normals(4, Keystream(KEY).words)
    assert found.tolist() == pytest.approx(KNOWN_NORMALS, rel=1e-12)


def test_the_ends_of_the_words_are_numbers() -> None:
    largest = (1 << 64) - 1
    for first, second in ((0, 0), (0, largest), (largest, 0), (largest, largest), (0, 1 << 63)):
        words = np.array([first, second], np.uint64)
        found = normals(2, lambda _, words=words: words)  # type: ignore[misc]
        assert np.isfinite(found).all()
        assert math.hypot(*found) == pytest.approx(9.49 if first == 0 else 0.0, abs=0.01)


def test_normal_numbers_are_normal() -> None:
    found = normals(COUNT, Keystream(KEY).words)
    assert fits_normal(found) > STRANGE
    assert fits_moments(found, 1.0) > STRANGE
    assert are_apart(found) > STRANGE


def again_and_again(_: int = 0) -> Words:
    """A planted fault: every part begins at the counter's zero."""
    return lambda count: Keystream(KEY).words(count)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: normals(COUNT, again_and_again()),
        lambda: normals(COUNT, Keystream(KEY).words) * 1.01,
        lambda: normals(COUNT, Keystream(KEY).words) + 0.01,
        lambda: np.clip(normals(COUNT, Keystream(KEY).words), -4, 4),
        lambda: normals(COUNT, lambda count: Keystream(KEY).words(2 * count)[::2] >> np.uint64(1)),
        lambda: np.random.default_rng(0).uniform(-(3**0.5), 3**0.5, COUNT),
    ],
)
def test_checks_catch_planted_normal_numbers(wrong: Callable[[], np.ndarray]) -> None:
    found = wrong()
    assert min(fits_normal(found), fits_moments(found, 1.0), are_apart(found)) < STRANGE


# ---- coins ---------------------------------------------------------------------------


@pytest.mark.parametrize("rate", [0.5, 0.01, 0.3, 2**-11, 1 - 2**-53])
def test_coins_compare_all_bits_and_an_equal_word_is_no_head(rate: float) -> None:
    limit = Fraction(rate) * 2**64
    assert limit.denominator == 1
    at = int(limit)
    words = np.array([0, at - 1, at, (1 << 64) - 1], np.uint64)
    assert coins(4, rate, lambda _: words).tolist() == [True, True, False, False]


def test_coins_at_the_ends_of_the_range() -> None:
    words = np.array([0, (1 << 64) - 1], np.uint64)
    assert coins(2, 1.0, lambda _: words).all()
    assert not coins(2, 0.0, lambda _: words).any()
    assert not coins(2, 2.0**-70, lambda _: words).any()  # rounded down, never up
    for rate in (-0.1, 1.1, math.nan):
        with pytest.raises(ImpossiblePlanError):
            SecretNoise().coins(1, rate)


@pytest.mark.parametrize("rate", [0.01, 0.5, 0.9])
def test_coins_fall_as_often_as_they_should(rate: float) -> None:
    found = coins(COUNT, rate, Keystream(KEY).words)
    spread = math.sqrt(COUNT * rate * (1 - rate))
    assert abs(found.sum() - COUNT * rate) < 5 * spread  # once in two million keys
    assert are_apart(found) > STRANGE


# ---- the discrete Gaussian -----------------------------------------------------------


@pytest.mark.parametrize("sigma", [0.05, 0.3, 1.0, 2.5, 7.9, 8.0, 16.5, 40.0, 300.0])
def test_discrete_numbers_have_the_exact_probabilities(sigma: float) -> None:
    found = DiscreteGaussian(sigma).draw(COUNT, Keystream(KEY).words)
    assert found.dtype == np.int64
    if sigma > 0.1:
        assert fits_discrete(found, sigma) > STRANGE
        assert are_apart(found) > STRANGE
    else:
        assert not found.any()  # 1 has probability e**-200


@pytest.mark.parametrize("power", [10, 20, 30, 40])
def test_large_discrete_numbers_are_normal_to_the_eye(power: int) -> None:
    sigma = 2.0**power
    found = DiscreteGaussian(sigma).draw(COUNT, Keystream(KEY).words)
    spread = np.random.default_rng(0).uniform(-0.5, 0.5, COUNT)  # fills the steps of the grid
    assert fits_normal((found + spread) / sigma) > STRANGE
    assert fits_moments(found, sigma**2) > STRANGE
    assert are_apart(found) > STRANGE
    for bit in range(power - 4):  # the low bits are coins
        assert abs(int((found >> bit & 1).sum()) - COUNT / 2) < 5.2 * math.sqrt(COUNT / 4)


@pytest.mark.parametrize("sigma", [0.3, 1.0, 3.7, 16.0, 31.9, 75.0])
def test_total_variation_is_as_small_as_it_says(sigma: float) -> None:
    """The probability of every number, from the sampler's own table and exact decisions."""
    sampler = DiscreteGaussian(sigma)
    shift, cuts = sampler._shift, [*sampler._cuts, 1 << 192]
    with mp.workdps(80):
        most, bits = (len(cuts) - 1 << shift) - 1, 63 - shift + 128
        got = []
        for x in range(most + 1):
            at = x >> shift
            share = mpf(cuts[at + 1] - cuts[at]) / 2**192 / 2**shift
            chance = mpf(module._parts(sampler._chance(at << shift, x), bits)) / 2**bits
            got.append(share * (chance if shift else 1))
        total = 2 * mp.fsum(got) - got[0]
        wanted = exact(sigma, most + math.ceil(2 * sigma) + 20)
        wanted, beyond = wanted[: most + 1], mp.fsum(wanted[most + 1 :])
        apart = [abs(one / total - right) for one, right in zip(got, wanted, strict=True)]
        assert mp.fsum(apart) + beyond < mpf(2) ** -130


def test_floating_point_decides_as_eighty_digits_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a slack of two nothing is left to floating-point numbers."""
    for sigma in (16.5, 1000.0, 2.0**30 + 0.1, 2.0**40):
        sampler = DiscreteGaussian(sigma)
        words = Keystream(KEY).words
        bins = sampler._bins(words(4000), words)
        first, rest = bins << sampler._shift, words(4000)
        offset = (rest & np.uint64((1 << sampler._shift) - 1)).view(np.int64)
        fraction = rest >> np.uint64(sampler._shift + 1)
        quick = sampler._is_kept(first, offset, fraction, words)
        with monkeypatch.context() as patch:
            patch.setattr(module, "_SLACK", 2.0)
            slow = sampler._is_kept(first, offset, fraction, words)
        assert (quick == slow).all()
        assert 0.93 < slow.mean() < 1.0


def test_what_is_too_near_to_call_gets_more_bits() -> None:
    """A fraction of 46 bits that is exactly the chance's first 46 bits: the rest decides."""
    sampler = DiscreteGaussian(2.0**20)
    shift, first, offset = sampler._shift, 1 << 20, 77_777
    bits = 63 - shift
    chance = module._parts(sampler._chance(first, first + offset), bits + 128)
    at, more = chance >> 128, chance & (1 << 128) - 1
    for behind, is_kept in ((more - 1, True), (more, False), (more + 1, False)):
        extra = np.array([behind >> 64, behind & (1 << 64) - 1], np.uint64)
        found = sampler._is_kept(
            np.array([first]),
            np.array([offset]),
            np.array([at], np.uint64),
            lambda _, extra=extra: extra,  # type: ignore[misc]
        )
        assert found.tolist() == [is_kept]


class Planted(DiscreteGaussian):
    """A sampler with one thing wrong."""

    def __init__(self, sigma: float, fault: str) -> None:
        super().__init__(sigma)
        if fault == "square":  # σ² in place of 2σ² when a number is kept
            self._twice_square /= 2
        if fault == "shift":  # every bin begins where the one before should
            self._cuts = [*self._cuts[1:], 1 << 192]
            self._guide = module._guide([0, *self._cuts[1:]])
        self.fault = fault

    def _proposed(self, count: int, words: Words) -> np.ndarray:
        found = super()._proposed(count, words)
        if self.fault == "zero":  # minus zero counts
            zeros = int((found == 0).sum())
            return np.concatenate([found, np.zeros(zeros, np.int64)])
        if self.fault == "floor":  # -0.5 becomes -1
            return np.where(found < 0, found - 1, found)
        return found

    def _is_kept(self, *given: object) -> np.ndarray:
        kept = super()._is_kept(*given)  # type: ignore[arg-type]
        return np.ones_like(kept) if self.fault == "all" else kept

    def draw(self, count: int, words: Words) -> np.ndarray:
        if self.fault == "counter":
            return super().draw(count, again_and_again())
        if self.fault == "variance":  # σ for σ²
            return DiscreteGaussian(math.sqrt(16.5)).draw(count, words)
        return super().draw(count, words)


@pytest.mark.parametrize(
    "fault", ["square", "shift", "zero", "floor", "all", "counter", "variance"]
)
def test_checks_catch_planted_discrete_numbers(fault: str) -> None:
    found = Planted(16.5, fault).draw(COUNT, Keystream(KEY).words)
    assert min(fits_discrete(found, 16.5), are_apart(found)) < STRANGE


@pytest.mark.parametrize("sigma", [0.0, -1.0, math.nan, math.inf, 2.0**41])
def test_a_sigma_that_cannot_be_is_refused(sigma: float) -> None:
    with pytest.raises(ImpossiblePlanError):
        SecretNoise().discrete(1, sigma)


def test_no_numbers_at_all_and_the_smallest_sigma() -> None:
    source = SecretNoise()
    assert len(source.normal(0)) == len(source.discrete(0, 1.0)) == len(source.coins(0, 0.5)) == 0
    assert source.discrete(3, 5e-324).tolist() == [0, 0, 0]


# ---- what a secret source does not do ------------------------------------------------

FORKED = """
import os, sys
import numpy as np
from consortium.privacy.keystream import Keystream
from consortium.privacy.noise import SecretNoise

class Kept:  # planted: the key outlives the call
    stream = Keystream.fresh()
    def normal(self, count):
        return self.stream.words(count).astype(float)

source = {"secret": SecretNoise, "kept": Kept}[sys.argv[1]]()
source.normal(2)
pairs = []
for _ in range(3):
    reader, writer = os.pipe()
    if os.fork() == 0:
        os.write(writer, source.normal(2).tobytes())
        os._exit(0)
    pairs.append(os.read(reader, 16))
    os.wait()
pairs.append(source.normal(2).tobytes())
print(len(set(pairs)))
"""


@pytest.mark.parametrize(("source", "different"), [("secret", 4), ("kept", 1)])
def test_forked_children_do_not_repeat_their_parent(source: str, different: int) -> None:
    command = [sys.executable, "-c", FORKED, source]
    assert int(subprocess.check_output(command, timeout=60)) == different


def test_nothing_comes_twice_in_one_process_or_in_threads() -> None:
    source = SecretNoise()
    with ThreadPoolExecutor(4) as pool:
        drawn = list(pool.map(lambda _: source.normal(8).tobytes(), range(64)))
        whole = list(pool.map(lambda _: source.discrete(8, 2.0**30).tobytes(), range(64)))
        coins = list(pool.map(lambda _: source.coins(128, 0.5).tobytes(), range(64)))
    assert len({*drawn}) == len({*whole}) == len({*coins}) == 64


def test_a_secret_source_takes_no_seed_and_shows_and_keeps_nothing() -> None:
    assert not inspect.signature(SecretNoise).parameters
    source = SecretNoise()
    assert repr(source) == "SecretNoise()"
    assert not hasattr(source, "__dict__") and not SecretNoise.__slots__
    for write in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(InternalError):
            write(source)


def test_secret_numbers_are_of_the_same_code_as_the_known_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("os.urandom", lambda size: KEY[:size])
    source, words = SecretNoise(), Keystream(KEY).words
    assert (source.normal(500) == normals(500, words)).all()
    words = Keystream(KEY).words
    assert (source.discrete(500, 9.5) == DiscreteGaussian(9.5).draw(500, words)).all()
    assert (source.coins(500, 0.3) == coins(500, 0.3, Keystream(KEY).words)).all()


# ---- simulation ----------------------------------------------------------------------


def simulated(seed: int) -> Noise:
    return SimulatedNoise(np.random.default_rng(seed))


def test_simulated_noise_comes_again_with_its_seed_and_is_distributed_alike() -> None:
    one, two, other = simulated(3), simulated(3), simulated(4)
    assert (one.normal(9) == two.normal(9)).all()
    assert (one.coins(99, 0.5) == two.coins(99, 0.5)).all()
    assert (one.discrete(9, 1e6) == two.discrete(9, 1e6)).all()
    assert (one.discrete(9, 1e6) != other.discrete(9, 1e6)).any()
    assert fits_normal(one.normal(COUNT)) > STRANGE
    assert fits_discrete(one.discrete(COUNT, 7.0), 7.0) > STRANGE
    assert abs(int(one.coins(COUNT, 0.25).sum()) - COUNT / 4) < 5.2 * math.sqrt(COUNT * 3 / 16)


def test_side_by_side_each_row_has_what_its_source_gives_alone() -> None:
    together = SideBySide([simulated(1), simulated(2)])
    apart = [simulated(1), simulated(2)]
    for one in ("normal", "coins", "discrete"):
        more = {"normal": (), "coins": (0.5,), "discrete": (1e6,)}[one]
        rows = getattr(together, one)(40, *more).reshape(2, 20)
        for row, source in zip(rows, apart, strict=True):
            assert (row == getattr(source, one)(20, *more)).all()
    for wrong, count in ((together, 41), (SideBySide([]), 0)):
        with pytest.raises(InternalError):
            wrong.normal(count)
