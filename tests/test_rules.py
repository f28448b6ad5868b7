"""Rules of aggregation: known answers, the same bits however they are cut, hostile rows."""

from __future__ import annotations

import itertools
import tracemalloc
from functools import reduce

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from consortium.aggregate.block import BLOCK, Partial
from consortium.aggregate.columns import CHUNK, Source, for_columns
from consortium.aggregate.robust import distances, gram_matrix, hostile_count, rounded
from consortium.aggregate.rules import combined, make_rule
from consortium.errors import InsufficientParticipantsError, InternalError
from tests.plain_mean import WeightedMean, blocks, joined, sum_block

Stack = npt.NDArray[np.float64] | npt.NDArray[np.float32]  # (n, d)

ROBUST = ["median", "trimmed_mean", "krum", "multi_krum", "geometric_median", "centred_clipping"]
COUNTS = [1, 2, 3, 64, 65, 130]
# A mean of n float64 numbers is off by at most n roundings; coefficients keep 24 digits.
EXACT, ROUNDED = 1e-13, 1e-6


def sources_of(stack: Stack, weight: float = 1.0) -> list[Source]:
    return [Source(rank, row, weight) for rank, row in enumerate(stack)]


def normal(n: int, d: int, seed: int = 0, dtype: npt.DTypeLike = np.float32) -> Stack:
    return np.random.default_rng(seed).normal(size=(n, d)).astype(dtype)


# ---- column chunks ------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 5 * CHUNK + 7])
@pytest.mark.parametrize("threads", [None, 1, 2, 3])
def test_every_column_is_visited_once(size: int, threads: int | None) -> None:
    visits = np.zeros(size, np.int64)

    def work(lo: int, hi: int) -> None:
        visits[lo:hi] += 1

    for_columns(size, work, threads)
    assert (visits == 1).all()


def test_an_error_in_a_thread_reaches_the_caller() -> None:
    def work(lo: int, hi: int) -> None:
        if lo == 2 * CHUNK:
            raise InternalError("planted")

    with pytest.raises(InternalError, match="planted"):
        for_columns(4 * CHUNK, work, 2)


def test_threads_keep_the_callers_way_with_overflow() -> None:
    large = np.full(2 * CHUNK, 1e300)
    with np.errstate(over="ignore"):
        for_columns(len(large), lambda lo, hi: large[lo:hi] * large[lo:hi], 2)
    with np.errstate(over="raise"), pytest.raises(FloatingPointError):
        for_columns(len(large), lambda lo, hi: large[lo:hi] * large[lo:hi], 2)


@pytest.mark.parametrize("name", ["mean", *ROBUST])
def test_threads_and_cuts_do_not_change_a_bit(name: str) -> None:
    stack = normal(7, 2 * CHUNK + 11)
    stack[:, ::5] = np.float32([0.0, -0.0, 0.0, -0.0, -0.0, 0.0, -0.0])[:, None]
    sources, rule = sources_of(stack, 3.0), make_rule(name, hostile=0.2)
    one = combined(rule, sources, threads=1).tobytes()
    assert combined(rule, sources, threads=2).tobytes() == one
    edges = [0, 1, 3, 1000, 16_384, 16_391, CHUNK + 5, stack.shape[1]]
    combine = rule.columns(sources)
    pieces = [combine(lo, hi) for lo, hi in itertools.pairwise(edges)]
    assert np.concatenate(pieces).tobytes() == one


@pytest.mark.parametrize("name", ["mean", *ROBUST])
def test_rows_are_read_only_and_may_be_mixed(name: str) -> None:
    stack = normal(7, 33, dtype=np.float64).astype(np.float32)
    mixed = [row.astype(np.float64) if at % 2 else row.copy() for at, row in enumerate(stack)]
    for row in mixed:
        row.setflags(write=False)
    mixed_sources = [Source(rank, row, 1.0) for rank, row in enumerate(mixed)]
    rule = make_rule(name)
    result = combined(rule, mixed_sources)
    assert result.dtype == np.float64
    assert result.tobytes() == combined(rule, sources_of(stack)).tobytes()


# ---- the mean -----------------------------------------------------------------------


def streamed(sources: list[Source]) -> npt.NDArray[np.float64]:
    """What the stream of block sums gives: the oracle. Sums of cohorts come first."""
    sources = sorted(sources, key=lambda source: source.rank)
    sums = [Partial(s.rank // BLOCK, s.values[:], s.weight) for s in sources if s.is_sum]
    everything = [*sums, *blocks((s.rank, s.values[:], s.weight) for s in sources if not s.is_sum)]
    mean = WeightedMean()
    for block in sorted({partial.block for partial in everything}):
        mean.merge(reduce(joined, [partial for partial in everything if partial.block == block]))
    return mean.finish()


def weighted(n: int, d: int, seed: int, dtype: npt.DTypeLike = np.float32) -> list[Source]:
    """Rows of very different size, with gaps between their ranks, weight one among others."""
    rng = np.random.default_rng(seed)
    ranks = np.sort(rng.choice(2 * n, n, replace=False))
    stack = normal(n, d, seed, dtype) * (10.0 ** rng.integers(-6, 6, (n, 1))).astype(dtype)
    weights = rng.choice([1.0, 0.3, 17.0, 1e5], n)
    return [Source(int(r), row, float(w)) for r, row, w in zip(ranks, stack, weights, strict=True)]


@pytest.mark.parametrize("n", COUNTS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_mean_has_the_bits_of_the_stream(n: int, dtype: npt.DTypeLike) -> None:
    sources = weighted(n, 20_001, n, dtype)
    assert combined(make_rule("mean"), sources).tobytes() == streamed(sources).tobytes()


@given(st.integers(1, 200), st.integers(0, 2**32), st.randoms(use_true_random=False))
def test_sums_of_simulated_blocks_have_the_bits_of_the_stream(n, seed, random) -> None:
    rows = weighted(n, 5, seed)
    sources: list[Source] = []
    for _, group in itertools.groupby(rows, key=lambda row: row.rank // BLOCK):
        members = list(group)
        cohort = [row for row in members if random.random() < 0.5]
        for part in (cohort[::2], cohort[1::2]):  # two cohorts may share a block
            if part:
                total = sum_block((row.rank, row.values[:], row.weight) for row in part)
                sources.append(Source(part[0].rank, total.total, total.weight, is_sum=True))
        sources.extend(row for row in members if row not in cohort)
    before = [source.values[:].tobytes() for source in sources]
    random.shuffle(sources)
    assert combined(make_rule("mean"), sources).tobytes() == streamed(sources).tobytes()
    assert sorted(source.values[:].tobytes() for source in sources) == sorted(before)


def test_a_mean_of_three_by_hand() -> None:
    rows = [Source(0, np.float32([1, 0]), 1000.0), Source(1, np.float32([0, 1]), 800.0)]
    rows.append(Source(2, np.float32([4, 4]), 200.0))
    np.testing.assert_array_equal(combined(make_rule("mean"), rows), [0.9, 0.8])


def test_minus_zero_stays_minus_zero() -> None:
    result = combined(make_rule("mean"), sources_of(np.float32([[-0.0], [-0.0]])))
    assert np.signbit(result[0])


def test_nothing_to_average_is_refused() -> None:
    for name in ["mean", *ROBUST]:
        with pytest.raises(InsufficientParticipantsError):
            make_rule(name).columns([])
    with pytest.raises(InsufficientParticipantsError):
        make_rule("mean").columns(sources_of(normal(3, 2), weight=0.0))


def test_a_rank_twice_and_rows_of_unequal_length_are_refused() -> None:
    row = np.ones(2)
    for name in ["mean", "median"]:
        with pytest.raises(InternalError):
            make_rule(name).columns([Source(4, row, 1.0), Source(4, row, 1.0)])
        with pytest.raises(InternalError):
            make_rule(name).columns([Source(0, row, 1.0), Source(1, np.ones(3), 1.0)])


# ---- medians and trimmed means ------------------------------------------------------


def trimmed(stack: Stack, f: int) -> npt.NDArray[np.float64]:
    ordered = np.sort(stack.astype(np.float64), axis=0)
    return ordered[f : len(stack) - f].mean(axis=0)


@pytest.mark.parametrize("n", [*COUNTS, 4, 5, 10, 50])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_column_rules_agree_with_numpy(n: int, dtype: npt.DTypeLike) -> None:
    stack = normal(n, 3001, n, dtype)
    median = combined(make_rule("median"), sources_of(stack))
    np.testing.assert_array_equal(median, np.median(stack.astype(np.float64), axis=0))
    for hostile in (0.0, 0.1, 0.2, 0.3, 0.45):
        f = hostile_count(n, hostile)
        if n > 2 * f:
            mean = combined(make_rule("trimmed_mean", hostile), sources_of(stack))
            np.testing.assert_allclose(mean, trimmed(stack, f), rtol=EXACT, atol=EXACT)


tables = st.integers(1, 17).flatmap(
    lambda n: st.lists(
        st.lists(st.floats(-1e6, 1e6, width=32), min_size=n, max_size=n), min_size=1, max_size=4
    )
)


@given(tables, st.floats(0, 0.49), st.randoms(use_true_random=False))
def test_the_order_of_sites_does_not_matter_to_column_rules(by_column, hostile, random) -> None:
    stack = np.array(by_column, np.float32).T  # (n, d)
    order = list(range(len(stack)))
    random.shuffle(order)
    median = make_rule("median")
    first = combined(median, sources_of(stack))
    assert first.tobytes() == combined(median, sources_of(stack[order])).tobytes()
    np.testing.assert_array_equal(first, np.median(stack.astype(np.float64), axis=0))
    f = hostile_count(len(stack), hostile)
    if len(stack) > 2 * f:  # the kept numbers are the same; their sum is rounded in their order
        mean = make_rule("trimmed_mean", hostile)
        one, other = combined(mean, sources_of(stack)), combined(mean, sources_of(stack[order]))
        np.testing.assert_allclose(one, other, rtol=EXACT, atol=1e-8)
        np.testing.assert_allclose(one, trimmed(stack, f), rtol=EXACT, atol=1e-8)


@given(st.integers(3, 20), st.floats(0.05, 0.45), st.integers(0, 2**32))
def test_hostile_rows_cannot_leave_the_honest_hull(n: int, hostile: float, seed: int) -> None:
    f = hostile_count(n, hostile)
    if n <= 2 * f:
        return
    rng = np.random.default_rng(seed)
    stack = normal(n, 9, seed)
    liars = rng.choice(n, f, replace=False)
    stack[liars] = rng.choice(np.float32([-1e38, -5, 0, 5, 1e38]), (f, 9))
    honest = np.delete(stack, liars, axis=0).astype(np.float64)
    for name in ("trimmed_mean", "median"):
        result = combined(make_rule(name, hostile), sources_of(stack))
        assert (result >= honest.min(axis=0) - EXACT).all(), name
        assert (result <= honest.max(axis=0) + EXACT).all(), name


def test_a_number_that_is_none_is_not_hidden() -> None:
    stack = normal(9, 4)
    stack[3, 1] = np.nan
    for name in ("median", "trimmed_mean"):
        is_nan = np.isnan(combined(make_rule(name), sources_of(stack)))
        np.testing.assert_array_equal(is_nan, [False, True, False, False])


def test_the_scratch_of_a_thread_does_not_grow_with_the_sites() -> None:
    stack = normal(700, 9000)
    rows, rule = sources_of(stack), make_rule("median")
    tracemalloc.start()
    result = combined(rule, rows, threads=1)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    np.testing.assert_array_equal(result, np.median(stack.astype(np.float64), axis=0))
    assert peak < 8 << 20  # all rows are 25 MB


# ---- rules from distances -----------------------------------------------------------


def pairwise_squares(stack: Stack) -> npt.NDArray[np.float64]:
    wide = stack.astype(np.float64)
    return np.array([[np.sum((a - b) ** 2) for b in wide] for a in wide])


def krum_order(stack: Stack, f: int) -> list[int]:
    """Blanchard et al. 2017, as it is written."""
    squares, n = pairwise_squares(stack), len(stack)
    others = [[squares[i, j] for j in range(n) if j != i] for i in range(n)]
    scores = [sum(sorted(row)[: n - f - 2]) for row in others]
    return sorted(range(n), key=lambda i: (scores[i], i))


@pytest.mark.parametrize("n", [3, 7, 10, 64, 65])
def test_krum_and_multi_krum_agree_with_the_paper(n: int) -> None:
    hostile = 0.2 if n > 6 else 0.0
    stack, f = normal(n, 501, n), hostile_count(n, hostile)
    order = krum_order(stack, f)
    one = combined(make_rule("krum", hostile), sources_of(stack))
    np.testing.assert_array_equal(one, stack[order[0]].astype(np.float64))
    many = combined(make_rule("multi_krum", hostile), sources_of(stack))
    best = stack[sorted(order[: n - f])].astype(np.float64).mean(axis=0)
    np.testing.assert_allclose(many, best, rtol=EXACT, atol=EXACT)


def test_krum_by_hand() -> None:
    """n = 5, f = 1, two neighbours: 1 + 2.25, 0.25 + 1, 0.25 + 2.25, 6.25 + 9, and far away."""
    stack = np.float32([[0, 0], [1, 0], [1.5, 0], [4, 0], [50, 50]])
    np.testing.assert_array_equal(combined(make_rule("krum"), sources_of(stack)), [1, 0])
    mean = combined(make_rule("multi_krum"), sources_of(stack))
    np.testing.assert_array_equal(mean, [6.5 / 4, 0])


def test_of_equal_scores_the_lowest_rank_wins() -> None:
    stack = np.zeros((7, 3), np.float32)
    stack[:, 0] = [1, 0, 0, 0, 0, 0, 1]
    sources = sources_of(stack)[::-1]
    np.testing.assert_array_equal(combined(make_rule("krum"), sources), [0, 0, 0])
    symmetric = np.float32([[-1.0], [1.0], [-1.0], [1.0]])
    ordered = [Source(9 - at, row, 1.0) for at, row in enumerate(symmetric)]
    assert combined(make_rule("krum", 0.0), ordered)[0] == 1.0  # rank 6


@pytest.mark.parametrize(("n", "hostile", "f"), [(5, 0.2, 1), (6, 0.2, 2), (50, 0.2, 10)])
def test_how_many_hostile_sites_are_assumed(n: int, hostile: float, f: int) -> None:
    assert hostile_count(n, hostile) == f


@pytest.mark.parametrize(
    ("name", "n", "hostile"),
    [("krum", 4, 0.2), ("multi_krum", 6, 0.2), ("trimmed_mean", 2, 0.4), ("trimmed_mean", 1, 0.1)],
)
def test_too_few_updates_for_the_rule_are_refused(name: str, n: int, hostile: float) -> None:
    with pytest.raises(InsufficientParticipantsError) as caught:
        make_rule(name, hostile).columns(sources_of(normal(n, 2)))
    assert caught.value.hint


def weiszfeld(stack: Stack) -> npt.NDArray[np.float64]:
    """On the rows themselves, long enough to arrive."""
    wide = stack.astype(np.float64)
    point = wide.mean(axis=0)
    for _ in range(5000):
        near = 1.0 / np.maximum(np.linalg.norm(wide - point, axis=1), 1e-12)
        point = (near[:, None] * wide).sum(axis=0) / near.sum()
    return point


@pytest.mark.parametrize("n", [1, 2, 3, 10, 65])
def test_the_geometric_median_agrees_with_a_plain_iteration(n: int) -> None:
    stack = normal(n, 40, n)
    result = combined(make_rule("geometric_median"), sources_of(stack))
    np.testing.assert_allclose(result, weiszfeld(stack), rtol=0, atol=ROUNDED * 10)


def test_the_geometric_median_of_a_triangle_is_its_fermat_point() -> None:
    """Vertices (±1, 0), (0, 3): sides are seen under 120 degrees from (0, 1/√3)."""
    stack = np.array([[-1.0, 0], [1, 0], [0, 3]])
    result = combined(make_rule("geometric_median"), sources_of(stack))
    np.testing.assert_allclose(result, [0, 1 / np.sqrt(3)], atol=ROUNDED)


def test_a_majority_at_one_point_is_the_geometric_median() -> None:
    stack = np.array([[1.0, 2.0]] * 5 + [[7, 7], [-9, 4], [1, 100]])
    result = combined(make_rule("geometric_median"), sources_of(stack))
    np.testing.assert_allclose(result, [1, 2], atol=ROUNDED * 10)


def clipped(stack: Stack, radius: float | None, steps: int = 10) -> npt.NDArray[np.float64]:
    """Karimireddy et al. 2021 on the rows themselves."""
    wide = stack.astype(np.float64)
    centre = np.zeros(stack.shape[1])
    for _ in range(steps):
        away = wide - centre
        lengths = np.linalg.norm(away, axis=1)
        limit = np.median(lengths) if radius is None else radius
        factors = np.array([min(1.0, limit / length) if length else 1.0 for length in lengths])
        centre = centre + (away * factors[:, None]).mean(axis=0)
    return centre


@pytest.mark.parametrize("n", COUNTS)
@pytest.mark.parametrize("radius", [None, 0.5, 1e9])
def test_centred_clipping_agrees_with_a_plain_iteration(n: int, radius: float | None) -> None:
    stack = normal(n, 30, n)
    result = combined(make_rule("centred_clipping", radius=radius), sources_of(stack))
    np.testing.assert_allclose(result, clipped(stack, radius), rtol=ROUNDED, atol=ROUNDED)


def test_centred_clipping_by_hand() -> None:
    """Radius 1, two rows at 10: the first step is 1, the tenth arrives."""
    stack = np.float32([[10], [10]])
    rule = make_rule("centred_clipping", radius=1.0)
    np.testing.assert_allclose(combined(rule, sources_of(stack)), [10], rtol=ROUNDED)
    rule = make_rule("centred_clipping", radius=0.25)
    np.testing.assert_allclose(combined(rule, sources_of(stack)), [2.5], rtol=ROUNDED)


@pytest.mark.parametrize("name", ROBUST)
@pytest.mark.parametrize("size", [5.0, 1e6, 1e30, 1e200])
def test_a_fifth_of_liars_cannot_carry_a_robust_rule_away(name: str, size: float) -> None:
    """1e200: its square is not a number any more, and the rule must stand."""
    stack = 1.0 + 0.1 * normal(20, 50, 3, np.float64)
    stack[[2, 7, 11, 19]] = -size * (1.0 + normal(4, 50, 4, np.float64))
    result = combined(make_rule(name), sources_of(stack))
    distance = np.linalg.norm(result - 1.0) / np.sqrt(50)
    assert distance < 0.25, distance
    with np.errstate(over="ignore"):
        assert np.linalg.norm(combined(make_rule("mean"), sources_of(stack)) - 1.0) > 0.5


def test_when_no_row_has_a_length_the_rule_says_so() -> None:
    stack = np.full((5, 2), 1e200)
    for name in ("geometric_median", "centred_clipping"):
        with pytest.raises(InsufficientParticipantsError):
            make_rule(name).columns(sources_of(stack))


@pytest.mark.parametrize("name", ROBUST)
def test_robust_rules_ignore_weights_and_refuse_sums(name: str) -> None:
    stack, rule = normal(8, 6), make_rule(name)
    assert not rule.linear and rule.name == name
    greedy = [Source(rank, row, 1e12 if rank == 3 else 1.0) for rank, row in enumerate(stack)]
    assert combined(rule, greedy).tobytes() == combined(rule, sources_of(stack)).tobytes()
    with pytest.raises(InternalError):
        rule.columns([*sources_of(stack), Source(64, np.ones(6), 2.0, is_sum=True)])


@pytest.mark.parametrize("name", ["median", "geometric_median", "centred_clipping"])
def test_one_site_alone_is_its_own_answer(name: str) -> None:
    row = np.float32([[3, -4]])
    np.testing.assert_allclose(combined(make_rule(name), sources_of(row)), [3, -4], rtol=ROUNDED)
    np.testing.assert_array_equal(
        combined(make_rule("trimmed_mean", 0.0), sources_of(row)), [3, -4]
    )


@settings(deadline=None)
@given(st.integers(1, 12), st.integers(1, 40), st.integers(0, 2**32))
def test_distances_come_out_of_products(n: int, d: int, seed: int) -> None:
    stack = normal(n, d, seed)
    products = gram_matrix(sources_of(stack))
    wide = stack.astype(np.float64)
    np.testing.assert_allclose(products, wide @ wide.T, rtol=EXACT, atol=EXACT)
    squared = distances(products)
    assert (squared >= 0).all()
    np.testing.assert_allclose(squared, pairwise_squares(stack), rtol=0, atol=1e-11)
    half = gram_matrix(sources_of(stack), d // 2)
    np.testing.assert_allclose(half, wide[:, : d // 2] @ wide[:, : d // 2].T, atol=EXACT)


@given(st.floats(-1e300, 1e300))
def test_rounding_keeps_24_digits_and_hides_the_last_bits(value: float) -> None:
    near = rounded(np.array([value]))
    assert abs(near[0] - value) <= abs(value) * 2.0**-24
    assert rounded(near)[0] == near[0]


def test_an_unknown_rule_and_impossible_settings_are_refused() -> None:
    for arguments in [("best", 0.2, None), ("krum", 0.5, None), ("krum", -0.1, None)]:
        with pytest.raises(InternalError):
            make_rule(*arguments)
    with pytest.raises(InternalError):
        make_rule("centred_clipping", radius=0.0)
