"""A site's half of secret sums: what it believes, what it gives, and that it does so once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from consortium.core import duties as d
from consortium.core import facts as f
from consortium.core import secagg_facts as m
from consortium.core.codec import encode
from consortium.core.ids import Digest, Seat, SiteId
from consortium.core.names import session_name, sharing_name, split_name
from consortium.core.secagg import two_thirds
from consortium.crypto.hazmat.masks import U32
from consortium.crypto.recipes import SigningKey
from consortium.crypto.secure_sum.coordinator import MaskedSum, unmask
from consortium.drive.secret_sum import (
    lifted,
    make_session,
    read_answer,
    sealed_for,
    split_of,
)
from consortium.errors import (
    CorruptStoreError,
    InsufficientParticipantsError,
    InvalidInputError,
    PolicyError,
    SignatureError,
    VerificationError,
)
from consortium.model import Update, load_update, masked_row_form, save_update
from consortium.plan.values import Plan
from consortium.site.home import SiteHome
from consortium.site.members import Members, fingerprint
from consortium.site.policy import Policy
from consortium.site.round_secrets import RoundSecrets
from consortium.site.secret_sums import SecretSums
from consortium.site.transport import Client
from consortium.store.files import FileBlobs
from consortium.wire.secret_sum import (
    ConsentSheet,
    Identity,
    Sealed,
    SessionSheet,
    SharingSheet,
    SplitSheet,
    packed,
    unpacked,
)

FEDERATION, SIZE, NUMBER = "f" * 32, 40, 7
FORM = masked_row_form(SIZE)
BASE = Digest(bytes(32))
SEED = bytes(32)  # of the round
PLAN = Plan()


class Scene:
    """A few sites, and a coordinator that tells them what this scene says."""

    def __init__(self, folder: Path, count: int = 4) -> None:
        self.folder, self.number, self.quorum = folder, NUMBER, two_thirds(count)
        self.keys = [SigningKey.generate() for _ in range(count)]
        self.names = [SiteId(f"{at:032x}") for at in range(1, count + 1)]
        self.sites = [self._site(at) for at in range(count)]
        self.sheets: dict[str, Any] = {}
        self.blobs = FileBlobs(folder / "coordinator")

    def _site(self, at: int) -> SecretSums:
        path = self.folder / str(at)
        path.mkdir(exist_ok=True)
        held = SimpleNamespace(site=self.names[at], federation=FEDERATION)
        home = SimpleNamespace(
            path=path,
            key=self.keys[at],
            enrolment=held,
            policy_file=path / "policy.toml",
            blobs=FileBlobs(path / "blobs"),
        )
        client = SimpleNamespace(call=lambda _, route, **__: self.sheets[route.split("/")[-1]])
        return SecretSums(cast(SiteHome, home), cast(Client, client))

    def again(self, at: int) -> SecretSums:
        """The same site after a crash."""
        self.sites[at] = self._site(at)
        return self.sites[at]

    # ---- the coordinator ------------------------------------------------------------

    def gather_keys(self) -> None:
        facts = []
        for at, site in enumerate(self.sites):
            note = site.keys(self.number)
            told = (note.mask_key, note.seal_key, note.commitment, note.signature)
            parts = [bytes.fromhex(part) for part in told]
            facts.append(m.KeysReceived(self.number, Seat(at + 1), *parts, 5))
        seats = tuple(fact.seat for fact in facts)
        self.keyed = m.KeysClosed(self.number, seats, self.quorum, 9, 5)
        self.facts = facts
        self.tell_session()

    def tell_session(self, **changes: Any) -> d.Share:
        identities = [
            Identity(seat=at + 1, site=self.names[at], key=self.keys[at].public.hex())
            for at in range(len(self.sites))
        ]
        sheet = SessionSheet(
            seed=SEED.hex(),
            sites=identities,
            keys=[encode(fact).hex() for fact in self.facts],
            closed=encode(self.keyed).hex(),
        ).model_copy(update=changes)
        self.sheets["session"] = sheet
        name = session_name(SEED, self.facts, self.keyed)
        return d.Share(self.number, Seat(1), name, 9)

    def share_all(self) -> d.Train:
        named = list(zip(self.names, self.facts, strict=True))
        self.session = make_session(FEDERATION, SEED, self.quorum, named)
        name = session_name(SEED, self.facts, self.keyed)
        self.files = {}
        for at, site in enumerate(self.sites):
            site.look_at(self.tell_session(), PLAN)
            sealed = unpacked(site.shares(self.number, name).sealed)
            self.files[self.names[at]] = self.blobs.put(sealed)
        self.shared = m.SharesClosed(self.number, self.keyed.seats, 99, 5)
        return self.asked_to_mask()

    def asked_to_mask(self) -> d.Train:
        ground = (BASE, None, BASE, BASE)
        return d.Train(self.number, Seat(1), *ground, 99, False, sharing_name(self.shared))

    def tell_sharing(self, at: int) -> None:
        found = sealed_for(self.session, self.names[at], self.blobs, self.files)
        sealed = [Sealed(site=owner, shares=packed(data)) for owner, data in found.items()]
        self.sheets["sharing"] = SharingSheet(closed=encode(self.shared).hex(), sealed=sealed)

    def mask(self, at: int, values: int) -> Any:
        """What leaves a site that made so many ones."""
        return self.mask_row(at, np.full(SIZE, values, np.uint32))

    def mask_row(self, at: int, row: U32) -> Any:
        site = self.sites[at]
        self.tell_sharing(at)
        site.look_at(self.asked_to_mask(), PLAN)
        update = site._home.blobs.put(save_update(Update(cast(Any, row), 1.0, BASE), FORM))
        made = site.masked(self.number, sharing_name(self.shared), update, FORM)
        assert not site._home.blobs.has(update)
        return made

    def split(self, members: tuple[int, ...]) -> d.Agree:
        self.closed = f.RoundClosed(self.number, tuple(Seat(at + 1) for at in members), 5)
        self.sheets["split"] = SplitSheet(closed=encode(self.closed).hex())
        return d.Agree(self.number, Seat(1), split_name(self.closed), 9)

    def signed(self, at: int, asked: d.Agree) -> m.ConsentReceived:
        """What a site signs that is told of this split."""
        self.sites[at].look_at(asked, PLAN)
        note = self.sites[at].consent(self.number, asked.split)
        return m.ConsentReceived(self.number, Seat(at + 1), bytes.fromhex(note.signature), 5)

    def tell_consents(self, *facts: m.ConsentReceived) -> d.Unmask:
        self.sheets["consents"] = ConsentSheet(consents=[encode(fact).hex() for fact in facts])
        return d.Unmask(self.number, Seat(1), split_name(self.closed), 9)

    def agree(self, members: tuple[int, ...]) -> d.Unmask:
        """All members have signed the split."""
        asked = self.split(members)
        return self.tell_consents(*[self.signed(at, asked) for at in members])


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    made = Scene(tmp_path)
    made.gather_keys()
    return made


# ---- a whole round ------------------------------------------------------------------


def test_sum_of_those_who_stayed_comes_out(scene: Scene) -> None:
    scene.share_all()
    made = {at: scene.mask(at, at + 1) for at in (0, 1, 3)}
    asked = scene.agree((0, 1, 3))
    for at, digest in made.items():
        scene.blobs.put(scene.sites[at]._home.blobs.get(digest))
    answers = []
    for at in made:
        scene.sites[at].look_at(asked, PLAN)
        told = unpacked(scene.sites[at].answer(NUMBER, asked.split).shares)
        answers.append((scene.names[at], scene.blobs.put(told)))
    members = tuple(scene.names[at] for at in made)
    named = tuple(zip(scene.names, scene.facts, strict=True))
    lifting = d.Lifting(
        FEDERATION, bytes(32), 3, named, tuple(scene.names), members, tuple(answers)
    )
    assert lifted(scene.blobs, FORM, lifting, list(made.values())).tolist() == [1 + 2 + 4] * SIZE
    few = replace(lifting, answers=lifting.answers[:2])
    with pytest.raises(InsufficientParticipantsError):
        lifted(scene.blobs, FORM, few, list(made.values()))
    false = scene.blobs.put(bytes(17 * 4))
    wrong = replace(lifting, answers=((answers[0][0], false), *answers[1:]))
    with pytest.raises(InvalidInputError):
        lifted(scene.blobs, FORM, wrong, list(made.values()))


def test_after_a_crash_a_site_gives_the_same_again(scene: Scene) -> None:
    before = scene.sites[0].keys(NUMBER)
    assert scene.again(0).keys(NUMBER) == before
    scene.share_all()
    name = session_name(SEED, scene.facts, scene.keyed)
    shares = scene.sites[0].shares(NUMBER, name)
    assert scene.again(0).shares(NUMBER, name) == shares
    for at in range(4):
        scene.mask(at, 1)
    asked = scene.agree((0, 1, 2))
    consent = scene.sites[0].consent(NUMBER, asked.split)
    assert scene.again(0).consent(NUMBER, asked.split) == consent
    scene.sites[0].look_at(asked, PLAN)
    answer = scene.sites[0].answer(NUMBER, asked.split)
    assert scene.again(0).answer(NUMBER, asked.split) == answer


def test_second_training_sends_the_first_masked_file(scene: Scene) -> None:
    """Two files under one mask would tell their difference."""
    scene.share_all()
    first = scene.mask(0, 1)
    scene.again(0)
    assert scene.mask(0, 5) == first
    row = load_update(scene.sites[0]._home.blobs.get(first), FORM).row
    assert len(set(np.asarray(row[:]).tolist())) > SIZE // 2, "it is masked"
    scene.sites[0]._home.blobs.drop(first)
    with pytest.raises(CorruptStoreError, match="gone"):
        scene.mask(0, 5)


def test_keys_of_another_round_are_others_and_the_old_seeds_go(scene: Scene) -> None:
    before = scene.sites[0].keys(NUMBER)
    after = scene.sites[0].keys(NUMBER + 1)
    assert before.mask_key != after.mask_key and before.seal_key != after.seal_key
    assert not list((scene.folder / "0" / "secrets").glob(f"round-{NUMBER}.*"))
    scene.sites[0].forget()
    assert not list((scene.folder / "0" / "secrets").glob("*"))


# ---- what it does not believe -------------------------------------------------------


def test_session_of_another_name_is_refused(scene: Scene) -> None:
    asked = replace(scene.tell_session(), session=Digest(b"x" * 32))
    with pytest.raises(VerificationError, match="not the one that the coordinator has signed"):
        scene.sites[0].look_at(asked, PLAN)


def test_session_with_another_seed_than_others_were_told_is_refused(scene: Scene) -> None:
    """Of many sites it decides about neighbours."""
    with pytest.raises(VerificationError, match="not the one that the coordinator has signed"):
        scene.sites[0].look_at(scene.tell_session(seed="11" * 32), PLAN)


def test_keys_that_their_site_did_not_sign_are_refused(scene: Scene) -> None:
    scene.facts[2] = replace(scene.facts[2], signature=bytes(64))
    with pytest.raises(SignatureError):
        scene.sites[0].look_at(scene.tell_session(), PLAN)


def test_keys_of_another_round_are_refused(scene: Scene) -> None:
    scene.facts = [replace(fact, round=NUMBER + 1) for fact in scene.facts]
    with pytest.raises(VerificationError):
        scene.sites[0].look_at(scene.tell_session(), PLAN)


@pytest.mark.parametrize("text", ["00", "ff" * 4, encode(f.FederationHeld(5)).hex()])
def test_what_is_no_record_of_a_session_is_refused(scene: Scene, text: str) -> None:
    with pytest.raises(VerificationError):
        scene.sites[0].look_at(scene.tell_session(closed=text), PLAN)


def test_session_that_would_sum_a_minority_is_refused(scene: Scene) -> None:
    small = PLAN.model_copy(update={"federation": PLAN.federation.model_copy(update={"quorum": 4})})
    with pytest.raises(VerificationError, match="fewer sites than the plan says"):
        scene.sites[0].look_at(scene.tell_session(), small)


def test_session_of_more_sites_than_the_plan_says_is_refused(scene: Scene) -> None:
    """Beyond a hundred, sites would mask with some alone; and a sum could wrap."""
    few, enough = (
        PLAN.model_copy(update={"selection": PLAN.selection.model_copy(update={"target": target})})
        for target in (3, 4)
    )
    with pytest.raises(VerificationError, match="more sites than the plan's sums"):
        scene.sites[0].look_at(scene.tell_session(), few)
    scene.sites[0].look_at(scene.tell_session(), enough)


def test_sum_of_fewer_sites_than_the_policy_wants_is_refused(scene: Scene) -> None:
    Policy(min_sites=4).write(scene.folder / "0" / "policy.toml")
    with pytest.raises(PolicyError, match="4 are the fewest here"):
        scene.sites[0].look_at(scene.tell_session(), PLAN)


def test_second_session_of_a_round_is_refused_though_the_log_forgot_the_first(
    scene: Scene,
) -> None:
    scene.sites[0].look_at(scene.tell_session(), PLAN)
    scene.keyed = replace(scene.keyed, at_ms=6)
    with pytest.raises(VerificationError, match="has another session already"):
        scene.again(0).look_at(scene.tell_session(), PLAN)


def test_second_split_of_a_round_is_refused_though_the_log_forgot_the_first(scene: Scene) -> None:
    scene.share_all()
    scene.mask(0, 1)
    scene.sites[0].look_at(scene.split((0, 1, 2)), PLAN)
    with pytest.raises(VerificationError, match="has another split already"):
        scene.again(0).look_at(scene.split((0, 1, 3)), PLAN)


def test_site_answers_only_when_two_thirds_have_signed_what_it_was_told(scene: Scene) -> None:
    scene.share_all()
    for at in range(4):
        scene.mask(at, 1)
    asked = scene.split((0, 1, 2))
    facts = [scene.signed(at, asked) for at in (0, 1, 2)]
    scene.sites[0].look_at(scene.tell_consents(*facts), PLAN)
    for few in (facts[:2], [facts[0], facts[1], facts[1]], []):
        with pytest.raises(VerificationError, match="have signed who is in the sum, and it takes"):
            scene.again(0).look_at(scene.tell_consents(*few), PLAN)
    for false in (
        replace(facts[2], signature=bytes(64)),
        replace(facts[2], seat=Seat(4)),
        replace(facts[2], signature=facts[1].signature),
    ):
        with pytest.raises(SignatureError):
            scene.again(0).look_at(scene.tell_consents(*facts[:2], false), PLAN)
    for other, why in (
        (replace(facts[2], round=NUMBER + 1), "another round"),
        (replace(facts[2], seat=Seat(9)), "gave no keys"),
    ):
        asked_again = scene.tell_consents(*facts[:2], other)
        with pytest.raises(VerificationError, match=why):
            scene.again(0).look_at(asked_again, PLAN)


def test_sites_that_were_told_different_splits_answer_neither(scene: Scene) -> None:
    """Two of four hear of one split and two of another: no list of signatures fits a site."""
    scene.share_all()
    for at in range(4):
        scene.mask(at, 1)
    one = scene.split((0, 1, 2))
    facts = [scene.signed(at, one) for at in (0, 1)]
    other = scene.split((1, 2, 3))
    facts += [scene.signed(at, other) for at in (2, 3)]
    for at in (2, 3):
        with pytest.raises((SignatureError, VerificationError)):
            scene.sites[at].look_at(scene.tell_consents(*facts), PLAN)
    scene.split((0, 1, 2))
    for at in (0, 1):
        with pytest.raises((SignatureError, VerificationError)):
            scene.sites[at].look_at(scene.tell_consents(*facts), PLAN)


def test_sites_that_were_told_of_different_sharers_sign_different_things(scene: Scene) -> None:
    scene.share_all()
    for at in range(4):
        scene.mask(at, 1)
    asked = scene.split((0, 1, 2))
    facts = [scene.signed(at, asked) for at in (0, 1)]
    agreed = scene.sites[2]._agreed_in(NUMBER)
    fewer = split_of(frozenset(scene.names[:3]), scene.names[:3])  # as if the fourth never shared
    signature = scene.keys[2].sign(fewer.to_sign(agreed.session))
    false = m.ConsentReceived(NUMBER, Seat(3), signature, 5)
    with pytest.raises(SignatureError):
        scene.sites[0].look_at(scene.tell_consents(*facts, false), PLAN)


def test_split_with_a_stranger_or_too_few_is_refused(scene: Scene) -> None:
    scene.share_all()
    scene.mask(0, 1)
    with pytest.raises(VerificationError, match="gave no keys"):
        scene.sites[0].look_at(scene.split((0, 1, 7)), PLAN)
    with pytest.raises(InsufficientParticipantsError):
        scene.sites[0].look_at(scene.split((0, 1)), PLAN)


def test_split_that_counts_a_site_out_is_not_signed_by_it(scene: Scene) -> None:
    """Its signature would count for a sum that it is not in."""
    scene.share_all()
    scene.mask(3, 1)
    with pytest.raises(VerificationError, match="counts this site out"):
        scene.sites[3].look_at(scene.split((0, 1, 2)), PLAN)


def test_record_of_another_round_is_refused(scene: Scene) -> None:
    scene.share_all()
    scene.shared = replace(scene.shared, round=NUMBER + 1)
    scene.tell_sharing(0)
    with pytest.raises(VerificationError, match="another round"):
        scene.sites[0].look_at(scene.asked_to_mask(), PLAN)


def test_without_its_seeds_a_site_cannot_go_on(scene: Scene) -> None:
    scene.share_all()
    scene.sites[0].forget()
    with pytest.raises(CorruptStoreError):
        scene.sites[0].shares(NUMBER, session_name(SEED, scene.facts, scene.keyed))


# ---- files --------------------------------------------------------------------------


def test_seeds_open_with_the_sites_own_key_alone(tmp_path: Path) -> None:
    key = SigningKey.generate()
    made = RoundSecrets(tmp_path / "s", key).make_seeds(3)
    path = tmp_path / "s" / "round-3.seeds"
    assert path.stat().st_mode & 0o777 == 0o600
    assert made.secret().reveal() not in path.read_bytes()
    again = RoundSecrets(tmp_path / "s", key).seeds(3)
    assert again.secret().reveal() == made.secret().reveal()
    with pytest.raises(CorruptStoreError, match="not what this site has sealed"):
        RoundSecrets(tmp_path / "s", SigningKey.generate()).seeds(3)
    path.rename(tmp_path / "s" / "round-4.seeds")
    with pytest.raises(CorruptStoreError, match="not what this site has sealed"):
        RoundSecrets(tmp_path / "s", key).seeds(4)


def test_site_that_comes_with_another_key_is_refused(tmp_path: Path) -> None:
    members = Members(tmp_path)
    members.meet({"me": "00" * 32, "a": "11" * 32}, "me", (), 0)
    members.meet({"me": "22" * 32, "b": "33" * 32}, "me", (), 0)
    assert members.all() == {"a": "11" * 32, "b": "33" * 32}
    with pytest.raises(VerificationError, match="another key than before"):
        members.meet({"a": "44" * 32}, "me", (), 0)
    assert fingerprint("11" * 32) != fingerprint("33" * 32)
    (tmp_path / "members.json").write_text("no")
    with pytest.raises(CorruptStoreError):
        members.all()


def test_known_sites_are_counted_without_this_one(tmp_path: Path) -> None:
    members, known = Members(tmp_path), ("11" * 32, "00" * 32)
    sites = {"me": "00" * 32, "a": "11" * 32, "b": "22" * 32}
    members.meet(sites, "me", known, 1)
    with pytest.raises(PolicyError, match="1 of the others are known here; 2 are the fewest"):
        members.meet(sites, "me", known, 2)


def test_answer_for_another_split_does_not_fit(scene: Scene) -> None:
    scene.share_all()
    split = split_of(frozenset(scene.names), scene.names[:3])
    with pytest.raises(InvalidInputError, match="one share of every site"):
        read_answer(scene.session, scene.names[0], split, bytes(17 * 3))
    masked = MaskedSum(scene.session, frozenset(scene.names), SIZE)
    with pytest.raises(InsufficientParticipantsError):
        unmask(masked, [])
