"""What a coordinator can try with all that it gets of one site, as checks that planted bugs fail.

Four sites; the first is the one that is looked at. Updates are written as the product does (clip,
ring, mask), and all seeds are given back to the coordinator by the product's own answers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

import numpy as np
import numpy.typing as npt

from consortium.crypto.hazmat import masks
from consortium.crypto.hazmat.masks import U32
from consortium.crypto.secure_sum import coordinator, keys
from consortium.crypto.secure_sum.session import RoundName, Split, terms_for
from consortium.privacy.keystream import Keystream
from consortium.update.ring import Ring, bits_for
from tests.secagg.scene import Scene, ids

Floats = npt.NDArray[np.float64]

SITES = 4
RING = Ring(1.0, SITES, bits_for(SITES))
SIZE = 4096
# Of two independent rows, |r| is beyond in one of 16,000; of 200 rounds with five looks each, in
# one of 16 sets of rounds. Keys and updates follow from the number of a round: this set is fixed.
MOST = 4 / SIZE**0.5
# The same seeds in every round, by mistake.
_OLD_SEEDS = "old seeds"


def correlation(one: Floats, other: Floats) -> float:
    return float(np.corrcoef(one, other)[0, 1])


@dataclass(frozen=True)
class Round:
    """One round, and what the coordinator has of the first site."""

    number: int
    has_old_seeds: bool = False

    def scene(self) -> Scene:
        tag = _OLD_SEEDS if self.has_old_seeds else f"new {self.number}"
        return Scene(ids(SITES), terms_for(SITES), tag=tag, name=RoundName("attacks", self.number))

    def update(self) -> Floats:
        """As long as the clip allows: it uses all levels that it can."""
        rng = np.random.default_rng(self.number)
        smooth = np.cumsum(rng.standard_normal(SIZE))
        update: Floats = smooth - smooth.mean()
        return update * (0.99 * RING.clip / np.linalg.norm(update))

    def views(self) -> Iterator[tuple[str, U32]]:
        """Rows that the coordinator can take for the update; the first is what it was sent."""
        here, row = self.scene(), encoded(self.update(), self.number)
        victim, gone, everybody = here.sites[0], here.sites[3], here.everybody()
        masked = here.parties[victim].mask(row, everybody)
        yield "its masked row", masked
        split = Split(everybody - {gone}, frozenset({gone}))
        without_own, without_all = stripped(here, masked, split)
        yield "its row without its own mask", without_own
        yield "its row without all masks that are known", without_all
        late = Split(everybody - {victim}, frozenset({victim}))
        yield "its row that comes when it counts as dropped", stripped(here, masked, late)[1]


def encoded(update: Floats, seed: int) -> U32:
    return RING.encode(update, 1.0, [], Keystream(seed.to_bytes(32, "big")).words)


def numbers(row: U32) -> Floats:
    return RING.decode(row).values


def stripped(here: Scene, masked: U32, split: Split) -> tuple[U32, U32]:
    """The first site's row, less its own mask, and less every mask of it that follows from the
    answers to a split."""
    victim, everybody = here.sites[0], here.everybody()
    answers = [
        here.parties[site].answer(split, here.held(site, everybody))
        for site in sorted(split.survivors)
    ]
    without_own = masked.copy()
    if victim in split.survivors:
        own = {answer.site: answer.own for answer in answers}
        seed = coordinator._seed(here.session, victim, own)
        masks.add_masks(without_own, [], [keys.own_mask(here.session, victim, seed)])
    without_all, shares = without_own.copy(), {answer.site: answer.mask for answer in answers}
    for owner in split.dropped:
        for peer, key in coordinator._pair_keys(here.session, owner, shares, split.survivors):
            if victim in (owner, peer):
                # The first of the two has added it.
                added, taken = ([], [key]) if victim == min(owner, peer) else ([key], [])
                masks.add_masks(without_all, added, taken)
    return without_own, without_all


def looks(rounds: int, *, has_old_seeds: bool = False) -> Iterator[tuple[int, str, float]]:
    """How each view of a site goes with its update, and how the difference of two rounds goes with
    that of the updates."""
    before: tuple[Floats, U32] | None = None
    for number in range(rounds):
        here = Round(number, has_old_seeds)
        update, views = here.update(), here.views()
        first, masked = next(views)
        for what, seen in chain([(first, masked)], views):
            yield number, what, correlation(update, numbers(seen))
        if before is not None:
            found = correlation(update - before[0], numbers(masked - before[1]))
            yield number, "the difference of two rounds", found
        before = update, masked


def tells_nothing(rounds: int, *, has_old_seeds: bool = False) -> None:
    """No look finds anything, and neither do all looks of a kind together."""
    squares: dict[str, list[float]] = {}
    for number, what, found in looks(rounds, has_old_seeds=has_old_seeds):
        assert abs(found) < MOST, f"round {number}: {what} goes with the update by {found:.3f}"
        squares.setdefault(what, []).append(found * found * SIZE)
    for what, each in squares.items():
        # Of independent rows, r √d has a variance of one: five deviations.
        most = 1.0 + 5.0 * (2.0 / len(each)) ** 0.5
        assert np.mean(each) < most, f"{what} goes with the update a little, again and again"
