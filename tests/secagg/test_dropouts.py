"""Every site leaves before one of the four phases, or stays: all cases, and sparse graphs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice

import numpy as np
import pytest

from consortium.crypto.hazmat.masks import U32
from consortium.crypto.secure_sum import coordinator
from consortium.crypto.secure_sum.coordinator import MaskedSum, unmask
from consortium.crypto.secure_sum.session import Session, Split, Terms, terms_for
from consortium.crypto.secure_sum.site import Answer
from consortium.errors import InsufficientParticipantsError
from consortium.testing import secure_dropouts
from consortium.testing.secure_dropouts import (
    Campaign,
    Case,
    campaign,
    every_case,
    random_cases,
)
from tests.secagg.scene import Ids, Scene, ids, scene
from tests.secagg.test_planted import sign_flipped_at_the_coordinator

Patch = pytest.MonkeyPatch


def run(cases: Iterable[Case]) -> Campaign:
    seen = Campaign()
    seen.run(cases)
    return seen


@pytest.mark.parametrize(("count", "sums"), [(3, 10), (4, 17), (5, 21)])
def test_every_dropout_gives_the_exact_sum_or_a_refusal(count: int, sums: int) -> None:
    """Of 5**n cases there is a sum in 1 + 4n: nobody leaves, or one, before any phase. Of three
    sites none can leave before the keys: no sum is of two alone."""
    seen = run(every_case(count))
    assert (seen.violations, seen.sums, seen.refusals) == ([], sums, 5**count - sums)


def test_some_dropouts_of_six_give_the_exact_sum_or_a_refusal() -> None:
    """One of 23; `make soak` has all."""
    seen = run(islice(every_case(6), 0, None, 23))
    assert seen.violations == [] and seen.sums > 5 and seen.refusals > 500


@pytest.mark.parametrize(("number", "is_sum"), [(0, True), (3, False)])
def test_a_hundred_sites_give_the_exact_sum_or_a_refusal(number: int, is_sum: bool) -> None:
    """`make soak` has two hundred of these."""
    (case,) = islice(random_cases(number + 1, 100, seed=0), number, None)
    seen = run([case])
    assert (seen.violations, seen.sums, seen.refusals) == ([], is_sum, not is_sum)


def test_a_campaign_counts_what_it_has_run() -> None:
    told = campaign([3], 2, 4, seed=1)
    assert told["cases"] == 127 == told["exact_sums"] + told["refusals"]
    assert told["violations"] == []


# ---- bugs that the cases must find ---------------------------------------------------


def sum_at_any_rate(patch: Patch) -> None:
    """A coordinator that gives what it has when seeds do not come back."""

    def careless(masked: MaskedSum, answers: Iterable[Answer]) -> U32:
        try:
            return unmask(masked, answers)
        except InsufficientParticipantsError:
            return masked.total

    patch.setattr(secure_dropouts, "unmask", careless)


def one_too_many(patch: Patch) -> None:
    """A coordinator that wants one survivor more than it takes."""
    real = Session.check_enough

    def check_enough(self: Session, sites: Ids) -> None:
        real(self, sites)
        if len(sites) == self.terms.quorum:
            raise InsufficientParticipantsError("one more")

    patch.setattr(Session, "check_enough", check_enough)


def dropped_forgotten(patch: Patch) -> None:
    """Masks of those who dropped stay in the sum."""
    patch.setattr(coordinator, "_pair_keys", lambda *_: [])


def counted_out(patch: Patch) -> None:
    """A site is told of a split without one that dropped."""
    real = MaskedSum.split

    def split(self: MaskedSum) -> Split:
        found = real(self)
        return Split(found.survivors, frozenset(sorted(found.dropped)[1:]))

    patch.setattr(MaskedSum, "split", split)


PLANTED: dict[str, tuple[Callable[[Patch], None], str]] = {
    "wrong sign": (sign_flipped_at_the_coordinator, "the sum is not that of the survivors"),
    "sum at any rate": (sum_at_any_rate, "there is a sum, and too few answered"),
    "one too many": (one_too_many, "refused, and enough of them answered"),
    "dropped forgotten": (dropped_forgotten, "the sum is not that of the survivors"),
    "counted out": (counted_out, "refused for another reason"),
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_bug_is_found_by_the_cases(name: str, monkeypatch: Patch) -> None:
    plant, words = PLANTED[name]
    plant(monkeypatch)
    seen = run(every_case(4))
    assert any(words in one for one in seen.violations)
    assert seen.sums + seen.refusals + len(seen.violations) == 5**4


def test_a_violation_says_which_case_it_was(monkeypatch: Patch) -> None:
    dropped_forgotten(monkeypatch)
    seen = run([Case((4, 2, 4, 4))])
    said = "4 sites, site-001 before vector: the sum is not that of the survivors"
    assert seen.violations == [said]


# ---- other graphs and sizes ----------------------------------------------------------


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
