"""What a secure sum must do, as checks that planted bugs must fail. Each returns or raises."""

from __future__ import annotations

import numpy as np

from consortium.core.ids import SiteId
from consortium.crypto.hazmat import masks, shamir
from consortium.crypto.hazmat.masks import U32
from consortium.crypto.secure_sum import keys
from consortium.crypto.secure_sum.session import Split, Terms
from consortium.errors import InvalidInputError
from tests.secagg.scene import Scene, scene

ROUNDS = 200
SIZE = 1024
SPARSE = Terms(3, 6, 4, bytes(32))


def exact_sum() -> None:
    """With somebody who drops: full and sparse."""
    for here in (scene(4), scene(11, SPARSE)):
        survivors = here.everybody() - {here.sites[1]}
        found = here.result(here.everybody(), survivors, survivors)
        assert (found == here.true_sum(survivors)).all(), "the sum is not that of the vectors"


def no_correlation() -> None:
    """A masked vector beside the true one. Of 200 independent pairs, one is beyond 4 / √d in one
    of 79 sets of rounds; these rounds are fixed."""
    true = np.cumsum(np.ones(SIZE)) * 4e6
    vector = true.astype(np.uint32)  # over the whole ring, so that low bits alone do not hide it
    for number in range(ROUNDS):
        here = scene(3, round=number)
        masked = here.parties[here.sites[1]].mask(vector, here.everybody())
        found = float(np.corrcoef(true, masked.astype(np.float64))[0, 1])
        assert abs(found) < 4 / SIZE**0.5, f"round {number}: correlation {found:.3f}"


def even_masks() -> None:
    """Each bit of a mask is there half of the time, to 5 σ; of 32 bits, one is beyond in one of
    55,000 keys."""
    total = np.zeros(1 << 16, np.uint32)
    masks.add_masks(total, [bytes(range(16))])
    bits = np.unpackbits(total.view(np.uint8)).reshape(len(total), 32).mean(axis=0)
    assert (np.abs(bits - 0.5) < 5 * 0.5 / 256).all(), "a bit of the mask is not even"


def fresh_masks() -> None:
    """A site that has the same seeds in the next round, by mistake, still has other masks."""
    zero = np.zeros(64, np.uint32)
    rows = []
    for number in (1, 2):
        here = scene(3, round=number)
        rows.append(here.parties[here.sites[0]].mask(zero, here.everybody()))
    assert (rows[0] != rows[1]).any(), "two rounds have one mask"


def laid_bare(here: Scene, splits: list[Split], victim: SiteId) -> U32:
    """The attack: both seeds of a site, from what all others answer to these splits."""
    everybody, others = here.everybody(), [site for site in here.sites if site != victim]
    answers = [
        here.parties[site].answer(split, here.held(site, everybody))
        for split in splits
        for site in others
    ]
    found = []
    for kind in ("own", "mask"):
        by_site = {
            one.site: getattr(one, kind)[victim] for one in answers if victim in getattr(one, kind)
        }
        points = [at for at, site in enumerate(here.session.holders(victim), 1) if site in by_site]
        shares = shamir.shares_of([by_site[here.session.holders(victim)[at - 1]] for at in points])
        threshold = here.terms.threshold
        found.append(shamir.join(tuple(points[:threshold]), shares[:threshold]))
    bare = here.parties[victim].mask(here.vector(victim), everybody)
    pair = keys.mask_pair(here.name, victim, found[1])
    plus, minus = [], [keys.own_mask(here.session, victim, found[0])]
    for peer in others:
        (minus if victim < peer else plus).append(keys.pair_mask(here.session, pair, victim, peer))
    masks.add_masks(bare, plus, minus)
    return bare


def overlap_is_refused() -> None:
    """A split that has a site on both sides does not lay it bare."""
    here = scene(4)
    split = Split(here.everybody(), frozenset({here.sites[3]}))
    try:
        found = laid_bare(here, [split], here.sites[3])
    except InvalidInputError:
        return
    assert (found != here.vector(here.sites[3])).any(), "a vector was laid bare"


def fewer_shares_tell_nothing() -> None:
    """One share less than the threshold does not give a site's seed."""
    here = scene(5)
    party, seed = here.parties[here.sites[0]], here.seeds[here.sites[0]].mask.reveal()
    shares = [pair[0] for pair in party._shares_for(here.session.holders(here.sites[0]))]
    few = range(1, here.terms.threshold)
    try:
        found = shamir.join(tuple(few), shares[: len(few)])
    except InvalidInputError:
        return
    assert found != seed, "too few shares gave the seed"


CHECKS = {
    check.__name__: check
    for check in (
        exact_sum,
        no_correlation,
        even_masks,
        fresh_masks,
        overlap_is_refused,
        fewer_shares_tell_nothing,
    )
}
