"""Checkpoints, cosignatures, proofs on paper, and the witness's refusals."""

from __future__ import annotations

import base64
from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consortium.core.ids import Secret
from consortium.core.participant import Participant, decide, evolve
from consortium.crypto.recipes import SigningKey
from consortium.errors import NoteError, ProofError, WitnessError, WrongRoundError
from consortium.ledger.notary import Notary, origin_of
from consortium.ledger.note import (
    Checkpoint,
    Signer,
    Verifier,
    cosign,
    cosignatures,
    open_checkpoint,
    parse_text,
    sign_checkpoint,
)
from consortium.ledger.proof import Proof, read_proof, verify_growth, verify_proof
from consortium.ledger.witness import Offer, endorse, examine
from consortium.store.memory import MemoryCache, MemoryLog

LOG = Signer("coordinator", SigningKey.from_secret(Secret(bytes(range(32)))))
NEW = Signer("coordinator", SigningKey.from_secret(Secret(bytes(range(1, 33)))))
SITE = Signer("site-1", SigningKey.from_secret(Secret(bytes(range(2, 34)))))
ORIGIN = origin_of("study")


class World:
    """A log of some records with its notary."""

    def __init__(self, size: int, stream: str = "study") -> None:
        self.log = MemoryLog()
        self.log.append(stream, 0, [b"%s %d" % (stream.encode(), at) for at in range(size)])
        self.notary = Notary(self.log, stream, MemoryCache(), origin_of(stream), [LOG, NEW])

    def note(self, size: int) -> str:
        return self.notary.checkpoint(size, LOG.key.public)

    def offer(self, since: int, size: int) -> Offer:
        return self.notary.offer(since, size, self.note(size))


def test_a_checkpoint_has_the_form_of_the_specification() -> None:
    checkpoint = Checkpoint(ORIGIN, 41, bytes(range(32)))
    note = sign_checkpoint(checkpoint, LOG)
    text, signature = note.split("\n\n")
    assert text.split("\n") == [ORIGIN, "41", base64.b64encode(bytes(range(32))).decode()]
    name, encoded = signature.removeprefix("— ").rstrip("\n").split(" ")
    raw = base64.b64decode(encoded)
    assert name == "coordinator"
    assert raw[:4] == sha256(b"coordinator\n\x01" + LOG.key.public).digest()[:4]
    assert raw[4:] == LOG.key.sign((text + "\n").encode())
    assert open_checkpoint(note, ORIGIN, [LOG.verifier]) == checkpoint


def test_a_cosignature_has_the_form_of_the_specification() -> None:
    note = cosign(sign_checkpoint(Checkpoint(ORIGIN, 1, bytes(32)), LOG), SITE, 1_700_000_000)
    text = note.split("\n\n")[0] + "\n"
    line = note.rstrip("\n").split("\n")[-1]
    raw = base64.b64decode(line.split(" ")[-1])
    assert raw[:4] == sha256(b"site-1\n\x04" + SITE.key.public).digest()[:4]
    assert int.from_bytes(raw[4:12], "big") == 1_700_000_000
    assert raw[12:] == SITE.key.sign(b"cosignature/v1\ntime 1700000000\n" + text.encode())
    (found,) = cosignatures(note, [SITE.verifier])
    assert (found.witness, found.time_s) == ("site-1", 1_700_000_000)
    assert cosignatures(note, [NEW.verifier]) == []
    assert open_checkpoint(note, ORIGIN, [LOG.verifier]).size == 1


def test_a_cosignature_that_does_not_verify_is_an_error() -> None:
    note = cosign(sign_checkpoint(Checkpoint(ORIGIN, 1, bytes(32)), LOG), SITE, 5)
    *lines, last = note.rstrip("\n").split("\n")
    raw = bytearray(base64.b64decode(last.split(" ")[-1]))
    raw[-1] ^= 1
    forged = "\n".join([*lines, f"— site-1 {base64.b64encode(raw).decode()}"]) + "\n"
    with pytest.raises(NoteError):
        cosignatures(forged, [SITE.verifier])


@given(st.data())
def test_any_changed_character_of_a_checkpoint_is_found(data: st.DataObject) -> None:
    note = sign_checkpoint(Checkpoint(ORIGIN, 41, bytes(range(32))), LOG)
    at = data.draw(st.integers(0, len(note) - 1))
    other = data.draw(st.characters(codec="utf-8").filter(lambda new: new != note[at]))
    with pytest.raises(NoteError):
        open_checkpoint(note[:at] + other + note[at + 1 :], ORIGIN, [LOG.verifier])
    with pytest.raises(NoteError):
        open_checkpoint(note[:at] + note[at + 1 :], ORIGIN, [LOG.verifier])


def test_a_checkpoint_of_another_log_or_key_is_refused() -> None:
    note = sign_checkpoint(Checkpoint(ORIGIN, 41, bytes(32)), LOG)
    with pytest.raises(NoteError, match="another log"):
        open_checkpoint(note, origin_of("other"), [LOG.verifier])
    with pytest.raises(NoteError, match="no signature"):
        open_checkpoint(note, ORIGIN, [NEW.verifier])


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\n1\nAA==\n",
        "o\n01\nAA==\n",
        "o\n-1\nAA==\n",
        "o\n1\nAA==\n",
        "o\n1\nAB==\n",
        "o\n1\n!!\n",
        f"o\n1\n{'A' * 43}=\nmore\n",
        f"o\x00\n1\n{'A' * 43}=\n",
    ],
)
def test_a_malformed_checkpoint_is_refused(text: str) -> None:
    with pytest.raises(NoteError):
        parse_text(text)


@pytest.mark.parametrize("note", ["", "x", "a\n\nb", "a\n\n— n\n", "a\n\n- n AA==\n", "x" * 70_000])
def test_a_malformed_note_is_refused(note: str) -> None:
    with pytest.raises(NoteError):
        cosignatures(note, [])


@pytest.mark.parametrize("name", ["", "a b", "a+b", "x" * 201])
def test_a_key_needs_a_plain_name(name: str) -> None:
    with pytest.raises(NoteError):
        Verifier(name, LOG.key.public)


# ---- proofs -------------------------------------------------------------------------


def test_a_proof_verifies_with_the_public_key_alone() -> None:
    world = World(300)
    text = world.notary.proof(270, 300, world.note(300)).text()
    proof = read_proof(text)
    assert proof.record == b"study 270"
    assert verify_proof(proof, ORIGIN, [LOG.verifier]).size == 300
    with pytest.raises(NoteError):
        verify_proof(proof, ORIGIN, [NEW.verifier])


@given(st.data())
def test_any_changed_byte_of_a_proof_is_found(data: st.DataObject) -> None:
    world = World(9)
    text = world.notary.proof(3, 9, world.note(9)).text()
    at = data.draw(st.integers(0, len(text) - 1))
    other = data.draw(st.sampled_from([new for new in "AB9=\n x" if new != text[at]]))
    with pytest.raises((ProofError, NoteError)):
        verify_proof(read_proof(text[:at] + other + text[at + 1 :]), ORIGIN, [LOG.verifier])


@pytest.mark.parametrize(
    "text",
    [
        "",
        "consortium-proof/v1\n1\n\n",
        "x\n1\nAA==\n\n",
        "consortium-proof/v1\nx\nAA==\n\nn",
        "consortium-proof/v1\n1\n?\n\nn",
    ],
)
def test_what_is_no_proof_is_refused(text: str) -> None:
    with pytest.raises(ProofError):
        read_proof(text)


def test_a_notary_signs_only_with_keys_that_it_has() -> None:
    with pytest.raises(NoteError, match="not here"):
        World(3).notary.checkpoint(3, SITE.key.public)


def test_a_rotation_is_signed_with_both_keys() -> None:
    note = World(3).notary.checkpoint(3, NEW.key.public, previous=LOG.key.public)
    assert open_checkpoint(note, ORIGIN, [LOG.verifier]) == open_checkpoint(
        note, ORIGIN, [NEW.verifier]
    )


# ---- the witness --------------------------------------------------------------------


class Site:
    """A site's machine as a witness."""

    def __init__(self) -> None:
        self.state = Participant()

    @property
    def seen(self) -> Checkpoint:
        return Checkpoint(ORIGIN, self.state.seen_size, self.state.seen_root or b"")

    def look(self, offer: Offer) -> int:
        shown = examine(offer, self.seen, [LOG.verifier], now_ms=5)
        for fact in decide(self.state, shown):
            evolve(self.state, fact)
        return self.state.seen_size


def test_a_witness_follows_a_log_that_grows() -> None:
    world, site = World(20), Site()
    assert site.look(world.offer(0, 5)) == 5
    assert site.look(world.offer(5, 5)) == 5
    assert site.look(world.offer(5, 20)) == 20
    note = endorse(world.offer(5, 20), SITE, 7)
    assert len(cosignatures(note, [SITE.verifier])) == 1


def test_a_witness_refuses_a_log_that_shrank() -> None:
    world, site = World(20), Site()
    site.look(world.offer(0, 20))
    with pytest.raises(WitnessError, match="has 10 facts; this site has seen 20"):
        site.look(world.offer(20, 10))
    assert site.state.seen_size == 20


def test_a_witness_refuses_a_log_that_forked() -> None:
    world, site = World(20), Site()
    site.look(world.offer(0, 10))
    other = World(20)
    other.log._streams["study"][3] = b"rewritten"
    with pytest.raises(WitnessError, match="does not contain"):
        site.look(other.offer(10, 20))
    with pytest.raises(WitnessError, match="two roots"):
        site.look(other.offer(10, 10))


def test_a_witness_asks_for_the_proof_from_what_it_has_seen() -> None:
    world, site = World(20), Site()
    site.look(world.offer(0, 10))
    with pytest.raises(WrongRoundError, match="does not start"):
        site.look(world.offer(5, 20))
    with pytest.raises(WitnessError):
        site.look(Offer(10, (), world.note(20)))


def test_growth_is_of_one_log_and_an_empty_log_needs_no_proof() -> None:
    old, new = Checkpoint(ORIGIN, 0, b""), Checkpoint(ORIGIN, 3, bytes(32))
    verify_growth(old, new, ())
    with pytest.raises(ProofError):
        verify_growth(old, new, (bytes(32),))
    with pytest.raises(ProofError, match="different logs"):
        verify_growth(Checkpoint("other", 0, b""), new, ())


def test_a_proof_is_small() -> None:
    world = World(1000)
    proof = world.notary.proof(7, 1000, world.note(1000))
    assert isinstance(proof, Proof)
    assert len(proof.text()) < 1000


def test_a_notary_knows_its_keys_and_roots() -> None:
    world = World(5)
    assert world.notary.has_key(LOG.key.public)
    assert not world.notary.has_key(SITE.key.public)
    assert parse_text(world.note(5).partition("\n\n")[0] + "\n").root == world.notary.root(5)


def test_a_signature_of_the_wrong_length_does_not_fit() -> None:
    text = Checkpoint(ORIGIN, 1, bytes(32)).text()
    raw = base64.b64encode(LOG.verifier.key_id() + bytes(63)).decode()
    with pytest.raises(NoteError, match="does not fit"):
        open_checkpoint(f"{text}\n— coordinator {raw}\n", ORIGIN, [LOG.verifier])
