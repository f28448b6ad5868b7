"""Who is in the sum, signed by those who are: so that all were told the same.

Bonawitz et al. 2017, section 6.2. A coordinator that tells sites different lists could get shares
of one site's seed from some of them and of its neighbours' seeds from others, and take the masks
off a single vector. So a site answers only when two thirds of all sites have signed what it was
told itself. Two different splits can both have as many only if a third of all sign both.
"""

from __future__ import annotations

from collections.abc import Mapping

from consortium.core.ids import SiteId
from consortium.crypto.recipes import verify
from consortium.crypto.secure_sum.graph import threshold_for
from consortium.crypto.secure_sum.session import Session, Split
from consortium.errors import InsufficientParticipantsError, InvalidInputError, SignatureError


def check_consents(
    session: Session,
    split: Split,
    signatures: Mapping[SiteId, bytes],
    identities: Mapping[SiteId, bytes],
) -> None:
    """Refuses fewer signatures on this split than two thirds of all sites give, strangers', and one
    that is not its site's. `identities` are the keys that the session's keys were signed with."""
    if not signatures.keys() <= set(session.sites):
        raise InvalidInputError("a site gave no keys for this round")
    told = split.to_sign(session)
    for site, signature in signatures.items():
        try:
            verify(identities[site], told, signature)
        except SignatureError:
            raise SignatureError(
                f"site {site} has not signed who is in the sum as this site was told"
            ) from None
    least = threshold_for(len(session.sites))
    if len(signatures) < least:
        raise InsufficientParticipantsError(
            f"{len(signatures)} of {len(session.sites)} sites have signed who is in the sum, and "
            f"it takes {least}"
        )
