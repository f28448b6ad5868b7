"""Two whole rounds, byte for byte: the product, the plain version, and the file."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from consortium.core.ids import Secret, SiteId
from consortium.crypto.secure_sum.coordinator import MaskedSum, unmask
from consortium.crypto.secure_sum.keys import Seeds, make_keys
from consortium.crypto.secure_sum.session import RoundName, Session, Terms
from consortium.crypto.secure_sum.site import Site
from tests.secagg.plain_round import CASES, Case, Said, plain_said, raw_of, read_vectors


def our_words(case: Case) -> Iterator[tuple[str, bytes]]:
    """All that is said, with the product's functions."""
    name = RoundName(case.federation, case.round)
    terms = Terms(case.threshold, case.quorum, case.degree, case.seed)
    seeds = {site: Seeds.from_secret(Secret(case.seeds(site))) for site in case.sites}
    adverts = [make_keys(name, SiteId(site), seeds[site]) for site in case.sites]
    for advert in adverts:
        yield f"{advert.site} mask key", advert.mask_key
        yield f"{advert.site} seal key", advert.seal_key
        yield f"{advert.site} commitment", advert.commitment
    session = Session(name, terms, reversed(adverts))
    yield "session", session.digest
    sites = {SiteId(site): Site(session, SiteId(site), seeds[site]) for site in case.sites}
    sent = {site: sites[site].make_shares() for site in map(SiteId, case.present(2))}
    for sender, sealed in sent.items():
        yield from ((f"{sender} to {peer}", sealed[peer]) for peer in sorted(sealed))
    total = MaskedSum(session, sent.keys(), case.size)
    for site in map(SiteId, case.present(3)):
        masked = sites[site].mask(np.array(case.vector(site), np.uint32), sent.keys())
        yield f"{site} masked", masked.astype("<u4").tobytes()
        total.add(site, masked)
    answers = []
    for site in map(SiteId, case.present(4)):
        sealed = {owner: row[site] for owner, row in sent.items() if site in row}
        answers.append(sites[site].answer(total.split(), sites[site].open_shares(sealed)))
        given = {**answers[-1].own, **answers[-1].mask}
        yield from ((f"{site} answers for {owner}", given[owner]) for owner in sorted(given))
    yield "sum", unmask(total, answers).astype("<u4").tobytes()


def our_said(case: Case) -> Said:
    return {f"{case.name}: {what}": raw.hex() for what, raw in our_words(case)}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_byte_is_that_of_the_plain_version_and_of_the_file(case: Case) -> None:
    vectors = {what: raw for what, raw in read_vectors().items() if what.startswith(case.name)}
    assert plain_said(case) == vectors
    assert our_said(case) == vectors


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_sum_of_the_file_is_that_of_the_survivors(case: Case) -> None:
    columns = zip(*[case.vector(site) for site in case.present(3)], strict=True)
    wanted = raw_of([sum(column) % 2**32 for column in columns]).hex()
    assert read_vectors()[f"{case.name}: sum"] == wanted
