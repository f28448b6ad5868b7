"""What is derived from a site's four seeds, and from what two sites agree on.

Both sides of a pair derive the same, and the coordinator derives it again from a seed that was
given back: so all of it is here once. `info` names purpose, round, session, both sites and keys.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from hashlib import sha256

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from consortium.core.ids import Secret, SiteId
from consortium.crypto.hazmat import agreement, masks, sealing, shamir
from consortium.crypto.hazmat.framing import framed
from consortium.crypto.secure_sum.session import Advert, RoundName, Session
from consortium.errors import InternalError

SEED_BYTES = shamir.SECRET_BYTES


@dataclass(frozen=True, slots=True)
class Seeds:
    """All that a site must keep secret for one round, new in every round.

    `mask` and `own` are shared among the holders, and one of the two is given to the coordinator:
    never both. `seal` and `shares` never leave the site. Everything follows from them, so a site
    that starts anew says the same again.
    """

    mask: Secret
    own: Secret
    seal: Secret
    shares: Secret

    @classmethod
    def fresh(cls) -> Seeds:
        """Seeds of the operating system's random source."""
        return cls.from_secret(Secret(os.urandom(4 * SEED_BYTES)))

    @classmethod
    def from_secret(cls, secret: Secret) -> Seeds:
        """The seeds that `secret` put into one."""
        raw = secret.reveal()
        if len(raw) != 4 * SEED_BYTES:
            raise InternalError(f"the seeds of a round have {4 * SEED_BYTES} bytes")
        cuts = range(0, len(raw), SEED_BYTES)
        return cls(*[Secret(raw[at : at + SEED_BYTES]) for at in cuts])

    def secret(self) -> Secret:
        """For a file that only its owner can read, until the round is over."""
        parts = (self.mask, self.own, self.seal, self.shares)
        return Secret(b"".join(part.reveal() for part in parts))


def make_keys(name: RoundName, site: SiteId, seeds: Seeds) -> Advert:
    """What the site tells everybody. Its identity signs `to_sign` of it."""
    return Advert(
        site,
        agreement.public_bytes(mask_pair(name, site, seeds.mask.reveal())),
        agreement.public_bytes(seal_pair(name, site, seeds.seal.reveal())),
        commitment(name, site, seeds.own.reveal()),
    )


def mask_pair(name: RoundName, site: SiteId, seed: bytes) -> X25519PrivateKey:
    info = framed("mask-pair", name.federation, name.round, site)
    return agreement.private_key(seed, info)


def seal_pair(name: RoundName, site: SiteId, seed: bytes) -> X25519PrivateKey:
    info = framed("seal-pair", name.federation, name.round, site)
    return agreement.private_key(seed, info)


def commitment(name: RoundName, site: SiteId, own: bytes) -> bytes:
    """Shows that a seed that was given back is the site's. It has 128 even bits: its hash does
    not tell it."""
    return sha256(framed("commitment", name.federation, name.round, site, own)).digest()


def own_mask(session: Session, site: SiteId, own: bytes) -> bytes:
    """The key of the mask that a site takes for itself."""
    info = _info("own-mask", session, site)
    return agreement.derive(own, info, masks.KEY_BYTES)


def pair_mask(session: Session, mine: X25519PrivateKey, me: SiteId, peer: SiteId) -> bytes:
    """The key of the mask of two sites. The first of the two, in the order of ids, adds it, the
    other takes it away."""
    first, second = session.advert(min(me, peer)), session.advert(max(me, peer))
    fields = (first.site, second.site, first.mask_key, second.mask_key)
    shared = agreement.agree(mine, session.advert(peer).mask_key)
    return agreement.derive(shared, _info("pair-mask", session, *fields), masks.KEY_BYTES)


def seal_key(session: Session, shared: bytes, sender: SiteId, receiver: SiteId) -> bytes:
    """The key of the one text that one site seals for another."""
    keys = session.advert(sender).seal_key, session.advert(receiver).seal_key
    info = _info("seal", session, sender, receiver, *keys)
    return agreement.derive(shared, info, sealing.KEY_BYTES)


def share_label(session: Session, sender: SiteId, receiver: SiteId) -> bytes:
    """What is sealed along with shares."""
    return framed("shares", session.name.federation, session.name.round, sender, receiver)


def coefficients(session: Session, site: SiteId, seed: bytes) -> list[list[int]]:
    """Of the two polynomials, of the mask's seed and of the site's own."""
    key = agreement.derive(seed, _info("coefficients", session, site), masks.KEY_BYTES)
    count = session.terms.threshold - 1
    drawn = shamir.elements(masks.keystream(key, 2 * count * shamir.WIDE_BYTES))
    return [drawn[:count], drawn[count:]]


def _info(purpose: str, session: Session, *fields: bytes | str) -> bytes:
    name = session.name
    return framed(purpose, name.federation, name.round, session.digest, *fields)
