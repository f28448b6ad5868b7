"""Every site leaves before one of the four phases, or stays: all cases, and sparse graphs."""

from __future__ import annotations

from functools import cache
from itertools import product

import numpy as np
import pytest

from consortium.crypto.secure_sum.session import Terms, terms_for
from consortium.errors import InsufficientParticipantsError
from tests.secagg.scene import Ids, Scene, ids, scene

PHASES = (1, 2, 3, 4, 5)  # before keys, before shares, before the vector, before the answer, never


@cache
def of_those(sites: Ids, terms: Terms) -> Scene:
    return Scene(tuple(sorted(sites)), terms)


def outcome(count: int, leaves: tuple[int, ...]) -> tuple[str, Ids]:
    """ "sum", or where it was refused; and who is in the sum."""
    terms = terms_for(count)
    left = dict(zip(ids(count), leaves, strict=True))
    keyed, sharers, survivors, answering = (
        frozenset(site for site, phase in left.items() if phase > at) for at in (1, 2, 3, 4)
    )
    try:
        found = of_those(keyed, terms).result(sharers, survivors, answering)
    except InsufficientParticipantsError:
        return "refused", survivors
    assert (found == of_those(keyed, terms).true_sum(survivors)).all()
    return "sum", survivors


def check_every_case(count: int) -> None:
    """The sum of the survivors, exactly, when enough of them answer; a refusal otherwise."""
    threshold, sums = terms_for(count).threshold, 0
    for leaves in product(PHASES, repeat=count):
        answering = sum(phase == 5 for phase in leaves)
        keyed = sum(phase > 1 for phase in leaves)
        is_enough = answering >= threshold and keyed >= 3
        assert outcome(count, leaves)[0] == ("sum" if is_enough else "refused"), leaves
        sums += is_enough
    assert 0 < sums < 5**count


@pytest.mark.parametrize("count", [3, 4, 5])
def test_every_dropout_gives_the_exact_sum_or_a_refusal(count: int) -> None:
    check_every_case(count)


@pytest.mark.parametrize("count", [0, 1, 2])
def test_fewer_than_three_sites_are_refused(count: int) -> None:
    with pytest.raises(InsufficientParticipantsError):
        _ = Scene(ids(count), Terms(2, 2)).session


@pytest.mark.parametrize("seed", range(12))
def test_sparse_graphs_give_the_exact_sum(seed: int) -> None:
    """Eleven sites, four neighbours each; whoever drops, no neighbourhood loses its threshold."""
    here = scene(11, Terms(3, 6, 4, bytes([seed]) * 32), size=40)
    rng = np.random.default_rng(seed)
    gone = here.sites[int(rng.integers(11))]
    late = here.sites[int(rng.integers(11))]
    sharers = here.everybody()
    survivors = sharers - {gone}
    found = here.result(sharers, survivors, survivors - {late})
    assert (found == here.true_sum(survivors)).all()


def test_a_neighbourhood_that_is_gone_is_refused_by_its_sites_and_by_the_coordinator() -> None:
    here = scene(11, Terms(3, 6, 4, bytes(32)))
    owner = here.sites[0]
    around = [site for site in here.session.holders(owner) if site != owner]
    survivors = here.everybody() - set(around[:3])
    total = here.masked(here.everybody(), survivors)
    with pytest.raises(InsufficientParticipantsError, match="holders"):
        here.parties[owner].answer(total.split(), here.held(owner, here.everybody()))
    with pytest.raises(InsufficientParticipantsError, match="holders"):
        here.result(here.everybody(), here.everybody(), here.everybody() - set(around[:3]))


def test_a_large_cohort_has_the_usual_graph_and_the_exact_sum() -> None:
    here = scene(110, terms_for(110, bytes(32)), size=9)
    assert here.session.graph.degree == 54
    survivors = here.everybody() - set(here.sites[:6])
    assert (here.result(here.everybody(), survivors, survivors) == here.true_sum(survivors)).all()


def test_masks_of_rows_longer_than_a_chunk_cancel_over_threads() -> None:
    here = scene(3, size=70_001)
    everybody = here.everybody()
    survivors = everybody - {here.sites[1]}
    assert (here.result(everybody, survivors, survivors) == here.true_sum(survivors)).all()


def test_a_site_that_starts_anew_says_the_same_again() -> None:
    first, again = scene(4), scene(4)
    site, everybody = first.sites[2], first.everybody()
    assert first.sealed == again.sealed
    vector = first.vector(site)
    masked = [one.parties[site].mask(vector, everybody) for one in (first, again)]
    assert (masked[0] == masked[1]).all()
    threaded = again.parties[site].mask(vector, everybody, threads=4)
    assert (threaded == masked[0]).all() and (vector == first.vector(site)).all()
