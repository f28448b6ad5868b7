"""A coordinator that tells sites different stories, with one site of six that
colludes with it.

Six sites share their seeds in one session. Each of them is told one list of those who shared, and
one split, as it demands; but to different sites different ones. Where sites would answer without a
look at what others have signed, the coordinator puts together the first site's own seed and the
pairwise seeds of all that it masked with: what the site sent lies open, though nobody gave away two
shares of one site, nor answered twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from consortium.core import duties as d
from consortium.core import secagg_facts as m
from consortium.core.ids import Seat, SiteId
from consortium.crypto.hazmat import masks
from consortium.crypto.hazmat.masks import U32
from consortium.crypto.secure_sum import coordinator, keys
from consortium.crypto.secure_sum.site import Answer, Site
from consortium.drive.secret_sum import read_answer, sealed_for, split_of
from consortium.errors import InsufficientParticipantsError, SignatureError, VerificationError
from consortium.model import read_update_header
from consortium.site import secret_sums
from consortium.testing.bare import Sight, laid_bare
from consortium.wire.secret_sum import unpacked
from tests.site.test_secret_sums import FORM, NUMBER, PLAN, SIZE, Scene

Story = tuple[tuple[int, ...], tuple[int, ...]]
Stories = dict[int, Story]
VICTIM = 0  # the first of six is to be read; the last colludes
ALL = (0, 1, 2, 3, 4, 5)
# Of each honest site: who shared and who is in the sum, as it is told. Every story is one that an
# honest coordinator might tell: four of six are enough, and the site itself is among them.
STORIES: Stories = {
    0: ((0, 1, 2, 5), (0, 1, 2, 5)),  # it masks with two who will count as dropped, and 5
    1: (ALL, (0, 1, 3, 5)),  # gives pairwise shares of 2
    2: (ALL, (0, 2, 3, 5)),  # gives pairwise shares of 1
    3: (ALL, (0, 3, 4, 5)),  # gives own shares of 0, pairwise ones of 1 and 2
    4: (ALL, (0, 3, 4, 5)),
}
HONEST: Stories = dict.fromkeys(range(5), (ALL, (0, 1, 2, 3, 5)))  # site 4 did drop out
# With two that collude, one story that enough sign, and one list that only the first is told.
OF_TWO: Stories = {0: ((0, 1, 4, 5), (0, 1, 4, 5)), 1: (ALL, ALL)}
OF_TWO |= {2: (ALL, (0, 2, 3, 4, 5)), 3: (ALL, (0, 2, 3, 4, 5))}


@dataclass(slots=True)
class Liar:
    """All that a coordinator and those who collude with it come to know."""

    scene: Scene
    colluding: tuple[int, ...]
    rows: dict[int, U32] = field(default_factory=dict)  # as they were, to compare
    masked: dict[SiteId, U32] = field(default_factory=dict)
    peers: dict[SiteId, frozenset[SiteId]] = field(default_factory=dict)
    own: dict[SiteId, dict[SiteId, bytes]] = field(default_factory=dict)  # by holder, by owner
    mask: dict[SiteId, dict[SiteId, bytes]] = field(default_factory=dict)

    def named(self, sites: tuple[int, ...]) -> frozenset[SiteId]:
        return frozenset(self.scene.names[at] for at in sites)

    def gather_rows(self, stories: Stories) -> None:
        scene, rng = self.scene, np.random.default_rng(3)
        for at, (sharers, _) in stories.items():
            self.rows[at] = rng.integers(0, 2**32, SIZE, np.uint32)
            scene.shared = m.SharesClosed(NUMBER, tuple(Seat(one + 1) for one in sharers), 99, 5)
            everybody = scene.files
            scene.files = {scene.names[one]: everybody[scene.names[one]] for one in sharers}
            data = scene.sites[at]._home.blobs.get(scene.mask_row(at, self.rows[at]))
            scene.files = everybody
            _, _, start = read_update_header(data, FORM)
            name = scene.names[at]
            self.masked[name] = np.frombuffer(data, np.uint32, FORM.size, start)
            self.peers[name] = self.named(sharers) - {name}

    def collude(self) -> None:
        """Those who do open all that was sealed for them, and give shares of both seeds."""
        scene = self.scene
        for at in self.colluding:
            me = scene.names[at]
            site = Site(scene.session, me, scene.sites[at]._secrets.seeds(NUMBER))
            held = site.open_shares(sealed_for(scene.session, me, scene.blobs, scene.files))
            self.own[me] = {owner: one.own.reveal() for owner, one in held.items()}
            self.mask[me] = {owner: one.mask.reveal() for owner, one in held.items()}

    def signatures(self, stories: Stories) -> dict[int, m.ConsentReceived]:
        """What each honest site signs when it is asked to."""
        scene = self.scene
        return {at: scene.signed(at, scene.split(story[1])) for at, story in stories.items()}

    def asked(self, story: Story, signatures: list[m.ConsentReceived]) -> d.Unmask:
        """Those who collude sign whatever the site was told."""
        scene, told = self.scene, split_of(*map(self.named, story)).to_sign(self.scene.session)
        scene.split(story[1])
        theirs = [
            m.ConsentReceived(NUMBER, Seat(at + 1), scene.keys[at].sign(told), 5)
            for at in self.colluding
        ]
        return scene.tell_consents(*signatures, *theirs)

    def hear(self, at: int, story: Story, asked: d.Unmask) -> None:
        scene, name = self.scene, self.scene.names[at]
        scene.sites[at].look_at(asked, PLAN)
        data = unpacked(scene.sites[at].answer(NUMBER, asked.split).shares)
        told: Answer = read_answer(scene.session, name, split_of(*map(self.named, story)), data)
        self.own[name], self.mask[name] = dict(told.own), dict(told.mask)

    # ---- what follows from it -------------------------------------------------------

    def seed(self, owner: SiteId, told: dict[SiteId, dict[SiteId, bytes]]) -> bytes | None:
        try:
            return coordinator._seed(self.scene.session, owner, told)
        except InsufficientParticipantsError:
            return None

    def bare(self) -> list[frozenset[SiteId]]:
        """The groups of honest sites whose sum is known."""
        names = self.scene.names
        own = {name for name in names if self.seed(name, self.own)}
        pairwise = {name for name in names if self.seed(name, self.mask)} | self.named(
            self.colluding
        )
        return laid_bare(Sight(self.peers, own, pairwise))

    def sum_of(self, group: frozenset[SiteId]) -> U32:
        """Without every mask that is known: what is left of the others cancels, or does not."""
        total = np.zeros(SIZE, np.uint32)
        for name in group:
            total += self.masked[name]
            plus, minus = [], list(self._own_mask(name))
            for peer in self.peers[name]:
                for key in self._pair_mask(name, peer):
                    (minus if name < peer else plus).append(key)
            masks.add_masks(total, plus, minus)
        return total

    def _own_mask(self, name: SiteId) -> Iterator[bytes]:
        seed = self.seed(name, self.own)
        if seed is not None:
            yield keys.own_mask(self.scene.session, name, seed)

    def _pair_mask(self, name: SiteId, peer: SiteId) -> Iterator[bytes]:
        """By the pairwise seed of either."""
        session, colluding = self.scene.session, self.named(self.colluding)
        for one, other in ((name, peer), (peer, name)):
            seed = self.seed(one, self.mask)
            if one in colluding:
                site = self.scene.sites[self.scene.names.index(one)]
                seed = site._secrets.seeds(NUMBER).mask.reveal()
            if seed is not None:
                pair = keys.mask_pair(session.name, one, seed)
                yield keys.pair_mask(session, pair, one, other)
                return


def liar_with(folder: Path, *colluding: int) -> Liar:
    scene = Scene(folder, 6)
    scene.gather_keys()
    scene.share_all()
    made = Liar(scene, colluding)
    made.collude()
    return made


@pytest.fixture
def liar(tmp_path: Path) -> Liar:
    return liar_with(tmp_path, 5)


def test_different_stories_get_no_answer_and_nothing_is_laid_bare(liar: Liar) -> None:
    liar.gather_rows(STORIES)
    signed = liar.signatures(STORIES)
    for at, story in STORIES.items():
        fitting = [signed[one] for one, other in STORIES.items() if other == story]
        with pytest.raises(VerificationError, match="have signed who is in the sum, and it takes"):
            liar.hear(at, story, liar.asked(story, fitting))
        with pytest.raises(SignatureError):
            liar.hear(at, story, liar.asked(story, list(signed.values())))
    assert liar.bare() == []


def test_the_same_stories_lay_a_site_bare_where_nobody_looks_at_signatures(
    liar: Liar, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So the attack is one, and it is the signatures that stop it."""
    monkeypatch.setattr(secret_sums, "check_consents", lambda *_: None)
    liar.gather_rows(STORIES)
    for at, story in STORIES.items():
        liar.hear(at, story, liar.asked(story, []))
    victim = frozenset({liar.scene.names[VICTIM]})
    assert liar.bare() == [victim]
    assert liar.sum_of(victim).tolist() == liar.rows[VICTIM].tolist()


def test_where_all_are_told_the_same_the_sum_alone_is_known(liar: Liar) -> None:
    """The other side of it: the same arithmetic gives the sum of four, and of no fewer."""
    liar.gather_rows(HONEST)
    members = {at: story for at, story in HONEST.items() if at != 4}
    signed = liar.signatures(members)
    for at, story in members.items():
        liar.hear(at, story, liar.asked(story, list(signed.values())))
    four = liar.named((0, 1, 2, 3))
    assert liar.bare() == [four]
    total = np.sum([liar.rows[at] for at in range(4)], axis=0, dtype=np.uint32)
    assert liar.sum_of(four).tolist() == total.tolist()


def test_two_of_six_that_collude_are_too_many(tmp_path: Path) -> None:
    """What is promised is of fewer than a third, and no more would be true."""
    liar = liar_with(tmp_path, 4, 5)
    liar.gather_rows(OF_TWO)
    signed = liar.signatures(OF_TWO)
    for at in (2, 3):
        liar.hear(at, OF_TWO[at], liar.asked(OF_TWO[at], [signed[2], signed[3]]))
    victim = frozenset({liar.scene.names[VICTIM]})
    assert victim in liar.bare()
    assert liar.sum_of(victim).tolist() == liar.rows[VICTIM].tolist()
