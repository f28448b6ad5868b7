"""Secret sums in a `World`: their terms, their numbers, and the coordinator's desk for them.

The arithmetic is the real one, on rows of a few numbers. What is told to sites are records of the
log, as over the network.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from hashlib import sha512
from random import Random
from typing import TYPE_CHECKING

import numpy as np

from consortium.core import inputs as i
from consortium.core.facts import RoundClosed
from consortium.core.ids import Seat, SiteId
from consortium.core.secagg_facts import ConsentReceived, KeysClosed, KeysReceived, SharesClosed
from consortium.core.state import Federation, Round
from consortium.core.terms import MINUTE_MS, PPM, Close, Masking, Metric
from consortium.crypto.hazmat.masks import U32
from consortium.crypto.secure_sum.session import Session, Split
from consortium.drive import secret_sum
from consortium.drive.hands import CoordinatorHands, Masked
from consortium.errors import InvalidInputError
from consortium.model import Form, Layout, Vector, masked_row_form
from consortium.plan.strategy import StrategySection
from consortium.testing.world_setting import Setting
from consortium.testing.world_wire import Answers, Consents, Keys, Request, Shares
from consortium.update.ring import Ring

if TYPE_CHECKING:
    from consortium.testing.world import World
    from consortium.testing.world_coordinator import CoordinatorPlayer

_CLIP = 2.0
_BITS = 24
_SCORED = 0.5  # of all worlds
_METRICS = (Metric("loss", higher_is_better=False),)
ILL_FORMED = "E-ill-formed"


def with_masks(setting: Setting, rng: Random) -> Setting:
    """The same day for a federation whose sums are secret."""
    sites = setting.sites
    quorum = rng.choice((3, 3, max(3, sites - 1)))
    terms = replace(
        setting.terms,
        rounds=rng.choice((1, 2, 3, 3)),
        quorum=quorum,
        wait_for=rng.randrange(quorum, sites + 1),
        target=rng.choice((0, sites, max(quorum, sites - 1))),
        fraction_ppm=PPM,
        duration_ms=rng.choice((6, 10, 20)) * MINUTE_MS,
        close=Close.ALL_OR_DEADLINE,
        norm_factor=0,
        metrics=(),
        judged_by="",
        evaluation_quorum=0,
        is_gated=False,
        masking=Masking(rng.choice((3, 6, 10)) * MINUTE_MS),
    )
    # A round has twice the messages, and fails at any of four deadlines: on fewer bad days.
    intensity = setting.intensity * rng.choice((0.25, 0.5, 1.0))
    if rng.random() < _SCORED:  # last: worlds without scores go as they always went
        terms = replace(terms, metrics=_METRICS, judged_by="loss", has_scored_sums=True)
    return replace(setting, terms=terms, steps=2 * setting.steps, intensity=intensity)


# ---- numbers ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Numbers:
    """What a masked row consists of in one world."""

    layout: Layout
    sites: int
    has_scores: bool = False

    @property
    def ring(self) -> Ring:
        most = float(self.sites)
        return Ring(_CLIP, self.sites, _BITS, (most, most) if self.has_scores else ())

    def scores(self, seat: Seat) -> tuple[float, ...]:
        """What a site says of the model: half of its test records count. The first has none."""
        return ((seat - 1) / 2, float(seat - 1)) if self.has_scores else ()

    @property
    def form(self) -> Form:
        return masked_row_form(self.layout.size + self.ring.extra)

    def row(self, step: Vector, weight: float, seat: Seat) -> U32:
        """A step that weighs at most one, and the site's scores, on the ring: as near as can be,
        not by chance."""
        ring, scores = self.ring, self.scores(seat)
        return ring.encode(step, weight, scores, lambda count: np.full(count, 1 << 63, np.uint64))


def masked_hands(world: World, player: CoordinatorPlayer) -> CoordinatorHands:
    """The real hands, which take the masks off."""
    assert world.numbers is not None
    return CoordinatorHands(
        world.layout,
        StrategySection(),
        player.blobs,
        player.clock,
        lambda number: world.rng.randbytes(32),
        masked=Masked(world.numbers.ring),
    )


# ---- what sites are told ------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SessionSheet:
    """Those who mask with each other."""

    seed: bytes
    keys: tuple[tuple[SiteId, KeysReceived], ...]
    closed: KeysClosed


@dataclass(frozen=True, slots=True)
class SharingSheet:
    """Who shared, and what those sealed for this site."""

    closed: SharesClosed
    sealed: tuple[tuple[SiteId, bytes], ...]


@dataclass(frozen=True, slots=True)
class SplitSheet:
    """Who is in the sum, and who has signed that, once there are enough."""

    closed: RoundClosed
    consents: tuple[ConsentReceived, ...] = ()


Sheet = SessionSheet | SharingSheet | SplitSheet


def session_of(state: Federation, known: Round) -> Session:
    keys = [(known.named[seat], fact) for seat, fact in known.keys.items()]
    return secret_sum.make_session(state.id, known.seed, known.quorum, keys)


def split_in(known: Round) -> Split:
    members = (known.named[one] for one in known.members)
    return secret_sum.split_of({known.named[one] for one in known.sharers}, members)


def key_of(seat: Seat) -> bytes:
    """The identity of a site, as it was admitted."""
    return b"key of seat %d" % seat


def signed(key: bytes, session: Session, split: Split) -> bytes:
    """In a world a signature is a digest that nobody can make without the site's key."""
    return sha512(key + split.to_sign(session)).digest()


def sheet_for(player: CoordinatorPlayer, seat: Seat) -> Sheet | None:
    """The list that a site must see before it agrees to what it is asked for now."""
    state = player.coordinator().driver.state
    known = state.round
    if known is None or known.keyed is None or seat not in known.keys:
        return None
    if known.closed is not None:
        return SplitSheet(known.closed, tuple(known.consents[one] for one in known.agreed))
    if known.shared is not None:
        files = {known.named[one]: known.shares[one] for one in known.sharers}
        session = session_of(state, known)
        sealed = secret_sum.sealed_for(session, known.named[seat], player.blobs, files)
        return SharingSheet(known.shared, tuple(sealed.items()))
    named = tuple((known.named[one], fact) for one, fact in known.keys.items())
    return SessionSheet(known.seed, named, known.keyed)


# ---- what sites give ----------------------------------------------------------------


def why_not(player: CoordinatorPlayer, request: Request) -> str:
    """What is wrong with the bytes of shares or an answer; empty: nothing that could be seen.
    A coordinator that is behind looks again before it says no."""
    if not isinstance(request.body, Shares | Consents | Answers):
        return ""
    driver = player.coordinator().driver
    if not _is_right(driver.state, request):
        driver.catch_up()
    return "" if _is_right(driver.state, request) else ILL_FORMED


def _is_right(state: Federation, request: Request) -> bool:
    body, known = request.body, state.round
    assert isinstance(body, Shares | Consents | Answers)
    if known is None or known.number != body.round:
        return True  # it is the core that knows what was said before
    name = known.session if isinstance(body, Shares) else known.split
    site = known.named.get(request.seat)
    if name != body.by or site is None:
        return False
    session = session_of(state, known)
    try:
        if isinstance(body, Shares):
            secret_sum.check_shares_file(session, site, body.data)
        elif isinstance(body, Consents):
            return body.signature == signed(request.key, session, split_in(known))
        else:
            secret_sum.read_answer(session, site, split_in(known), body.data)
    except InvalidInputError:
        return False
    return True


def masked_input(player: CoordinatorPlayer, request: Request, now_ms: int) -> i.Input:
    """What the core is told of it. Bytes are durable before the fact that names them."""
    body, seat = request.body, request.seat
    match body:
        case Keys():
            parts = body.mask_key, body.seal_key, body.commitment
            return i.GiveKeys(body.round, seat, *parts, bytes(64), now_ms)
        case Shares():
            return i.GiveShares(body.round, seat, player.blobs.put(body.data), None, now_ms)
        case Consents():
            return i.GiveConsent(body.round, seat, body.signature, now_ms)
        case Answers():
            return i.GiveAnswer(body.round, seat, player.blobs.put(body.data), None, now_ms)
        case _:
            raise AssertionError("not about a secret sum")
