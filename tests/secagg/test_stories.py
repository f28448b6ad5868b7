"""All stories that a coordinator can tell the sites of a small secret sum, and what they lay bare.

Every honest site is told one list of those who shared and one split, any that it would agree to;
it masks by the list, signs the split, and answers when it is shown enough signatures on the same.
The others tell the coordinator all that they know, and sign whatever it wants. With as many of
them as `tolerated` says no sum of fewer is known than of a quorum without them, and planted bugs
are found. One more, and it would not be true.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import combinations, product
from random import Random

import pytest

from consortium.core.ids import Secret, SiteId
from consortium.crypto.recipes import SigningKey
from consortium.crypto.secure_sum import consent
from consortium.crypto.secure_sum.consent import check_consents
from consortium.crypto.secure_sum.graph import threshold_for
from consortium.crypto.secure_sum.keys import SEED_BYTES, Seeds, make_keys
from consortium.crypto.secure_sum.session import RoundName, Session, Split, Terms, terms_for
from consortium.crypto.secure_sum.site import Site
from consortium.errors import ConsortiumError
from consortium.testing.bare import Sight, Sites, laid_bare

Patch = pytest.MonkeyPatch
Stories = dict[SiteId, Split]
Holders = dict[SiteId, set[SiteId]]
NAME = RoundName("stories", 1)
TRIES = 30


def tolerated(sites: int) -> int:
    """The most that may collude: fewer than 2t - n, with t two thirds of n."""
    return 2 * -(-2 * sites // 3) - sites - 1


class Scene:
    """So many sites, of whom the last ones collude."""

    def __init__(self, count: int, colluding: int, terms: Terms | None = None) -> None:
        self.sites = tuple(SiteId(str(number)) for number in range(count))
        self.honest, self.colluding = self.sites[: count - colluding], self.sites[-colluding:]
        if not colluding:
            self.honest, self.colluding = self.sites, ()
        seeds = {
            site: Seeds.from_secret(Secret(bytes([at]) * 4 * SEED_BYTES))
            for at, site in enumerate(self.sites)
        }
        adverts = [make_keys(NAME, site, seeds[site]) for site in self.sites]
        self.session = Session(NAME, terms or terms_for(count), adverts)
        self.parties = {site: Site(self.session, site, seeds[site]) for site in self.honest}
        self.keys = {
            site: SigningKey.from_secret(Secret(bytes([at + 1]) * 32))
            for at, site in enumerate(self.sites)
        }
        self.agrees = cache(self._agrees)

    @cache  # noqa: B019  # a scene lives as long as its test
    def stories(self, me: SiteId) -> tuple[Split, ...]:
        """All that this site would agree to."""
        return tuple(split for split in self._splits() if self._would(me, split))

    def _splits(self) -> Iterator[Split]:
        for sharers in _subsets(self.sites):
            for members in _subsets(sorted(sharers)):
                yield Split(members, sharers - members)

    def _would(self, me: SiteId, split: Split) -> bool:
        try:
            self.parties[me]._check_left(split.survivors | split.dropped)
            self.parties[me]._check_left(split.survivors)
        except ConsortiumError:
            return False
        return True

    def _agrees(self, split: Split, signers: Sites) -> bool:
        """Whether a site that was told of this split answers, when it sees these signatures on
        what they were told to be the same."""
        told = {site: self.signature(site, split) for site in signers}
        identities = {site: key.public for site, key in self.keys.items()}
        try:
            check_consents(self.session, split, told, identities)
        except ConsortiumError:
            return False
        return True

    @cache  # noqa: B019
    def told(self, split: Split) -> bytes:
        return split.to_sign(self.session)

    @cache  # noqa: B019
    def signature(self, site: SiteId, split: Split) -> bytes:
        return self.keys[site].sign(self.told(split))

    def holders(self, stories: Stories) -> tuple[Holders, Holders]:
        """Of each site's own seed, and of its pairwise one: whose shares the coordinator has when
        every honest site has heard its story."""
        fitting: dict[bytes, set[SiteId]] = {}
        for site, split in stories.items():
            fitting.setdefault(self.told(split), set()).add(site)
        own, pairwise = ({site: set(self.colluding) for site in self.sites} for _ in range(2))
        for site, split in stories.items():
            if self.agrees(split, frozenset((*fitting[self.told(split)], *self.colluding))):
                for owner in split.survivors:
                    own[owner].add(site)
                for owner in split.dropped:
                    pairwise[owner].add(site)
        for kind in (own, pairwise):
            for owner, holders in kind.items():
                holders &= self.held_by(owner)
        return own, pairwise

    @cache  # noqa: B019
    def held_by(self, owner: SiteId) -> Sites:
        return frozenset(self.session.holders(owner))

    def bare(self, stories: Stories) -> list[Sites]:
        """Which sums are known then."""
        least = self.session.terms.threshold
        own, pairwise = (
            {site for site, holders in kind.items() if len(holders) >= least}
            for kind in self.holders(stories)
        )
        masked = {
            site: ((one.survivors | one.dropped) & self.held_by(site)) - {site}
            for site, one in stories.items()
        }
        return laid_bare(Sight(masked, own, pairwise | set(self.colluding)))

    def leaks(self, stories: Stories) -> bool:
        """Whether the sum of fewer honest sites is known than `tolerated_for` says."""
        terms = self.session.terms
        least = (terms.quorum if terms.degree is None else terms.threshold) - len(self.colluding)
        return any(len(group) < max(2, least) for group in self.bare(stories))

    # ---- which stories --------------------------------------------------------------

    def every(self) -> Iterator[Stories]:
        for told in product(*map(self.stories, self.honest)):
            yield dict(zip(self.honest, told, strict=True))

    def sought(self, tries: int, seed: int) -> Iterator[Stories]:
        """Stories on the way to the first site: each step changes what one site is told, to
        whatever leaves the fewest shares to be found."""
        rng = Random(seed)
        for _ in range(tries):
            few = rng.sample(self.stories(self.honest[0]), 3)
            stories = {}
            for site in self.honest:
                known = self.stories(site)
                # In the order of a list: that of a set is another one in every process.
                stories[site] = rng.choice([one for one in few if one in known] or known)
            for site in rng.sample(self.honest, len(self.honest)) * 2:
                yield stories
                tried = [{**stories, site: one} for one in self.stories(site)]
                lacking = [self._lacking(one) for one in tried]
                best = [
                    one for one, lack in zip(tried, lacking, strict=True) if lack <= min(lacking)
                ]
                stories = rng.choice(best)
            yield stories

    def _lacking(self, stories: Stories) -> int:
        """How many shares are missing to read the first site."""
        own, pairwise = self.holders(stories)
        first, least = self.honest[0], self.session.terms.threshold
        peers = (stories[first].survivors | stories[first].dropped) & self.held_by(first)
        needed = [own[first], *(pairwise[site] for site in self.honest[1:] if site in peers)]
        return sum(max(0, least - len(holders)) for holders in needed)


def _subsets(sites: tuple[SiteId, ...] | list[SiteId]) -> Iterator[Sites]:
    for size in range(1, len(sites) + 1):
        yield from map(frozenset, combinations(sites, size))


# ---- nobody is laid bare ------------------------------------------------------------


@pytest.mark.parametrize(("count", "colluding"), [(3, 0), (4, 1), (5, 1), (5, 2)])
def test_no_story_lays_fewer_bare_than_a_sum_has(count: int, colluding: int) -> None:
    assert colluding <= tolerated(count)
    scene, seen, sums = Scene(count, colluding), 0, 0
    for stories in scene.every():
        assert not scene.leaks(stories), stories
        seen, sums = seen + 1, sums + bool(scene.bare(stories))
    assert seen >= 64 and sums > 0


@pytest.mark.parametrize(("count", "colluding"), [(6, 1), (7, 2)])
def test_no_story_of_many_lays_fewer_bare(count: int, colluding: int) -> None:
    assert colluding == tolerated(count)
    scene, sums = Scene(count, colluding), 0
    for stories in scene.sought(TRIES, seed=count):
        assert not scene.leaks(stories), stories
        sums += bool(scene.bare(stories))
    assert sums > 0


@pytest.mark.parametrize("count", [4, 5, 6, 7])
def test_with_one_more_that_colludes_some_story_does(count: int) -> None:
    scene = Scene(count, tolerated(count) + 1)
    assert any(scene.leaks(stories) for stories in scene.sought(TRIES, seed=1))


# ---- where sites have neighbours ----------------------------------------------------


def sparse(count: int, degree: int, colluding: int, seed: int) -> Scene:
    """As of more than a hundred sites: who is whose neighbour, the seed decides."""
    terms = Terms(threshold_for(degree + 1), threshold_for(count), degree, bytes([seed]) * 32)
    return Scene(count, colluding, terms)


@pytest.mark.parametrize(("count", "degree", "colluding"), [(7, 4, 2), (8, 4, 2), (8, 6, 2)])
def test_no_story_lays_a_site_with_neighbours_bare(count: int, degree: int, colluding: int) -> None:
    """Fewer than 2t - h of all collude, so fewer of any site's holders."""
    assert colluding < 2 * threshold_for(degree + 1) - (degree + 1)
    sums = 0
    for seed in range(4):
        scene = sparse(count, degree, colluding, seed)
        for stories in scene.sought(4, seed=seed):
            assert not scene.leaks(stories), stories
            sums += bool(scene.bare(stories))
    assert sums > 0


def test_with_one_more_that_colludes_some_story_lays_a_site_with_neighbours_bare() -> None:
    scenes = (sparse(7, 4, 3, seed) for seed in range(8))
    told = ((scene, stories) for scene in scenes for stories in scene.sought(4, seed=1))
    assert any(scene.leaks(stories) for scene, stories in told)


# ---- planted bugs -------------------------------------------------------------------


def no_look(patch: Patch) -> None:
    """A site answers whatever others have signed."""
    patch.setattr(Scene, "_agrees", lambda self, split, signers: True)


def members_not_signed(patch: Patch) -> None:
    """They sign who shared, and not who of them is in the sum."""
    real = Split.to_sign

    def to_sign(self: Split, session: Session) -> bytes:
        return real(Split(self.survivors | self.dropped, frozenset()), session)

    patch.setattr(Split, "to_sign", to_sign)


def half_is_enough(patch: Patch) -> None:
    patch.setattr(consent, "threshold_for", lambda sites: sites // 2)


def anything_is_signed(patch: Patch) -> None:
    """A site signs every split that it is told of, and not only the first."""
    real = Scene._agrees
    patch.setattr(
        Scene, "_agrees", lambda self, split, signers: real(self, split, signers | split.survivors)
    )


PLANTED = {
    "no look": (no_look, 6),
    "members not signed": (members_not_signed, 6),
    "half is enough": (half_is_enough, 7),
    "anything is signed": (anything_is_signed, 6),
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_bug_is_found(name: str, monkeypatch: Patch) -> None:
    plant, count = PLANTED[name]
    plant(monkeypatch)
    scene = Scene(count, tolerated(count))
    assert any(scene.leaks(stories) for stories in scene.sought(TRIES, seed=1))
