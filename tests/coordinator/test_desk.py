"""A federation at a coordinator, in one process: enrol, ask, upload, be counted, be told."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from consortium.coordinator import office as office_module
from consortium.coordinator.desk import Desk
from consortium.coordinator.office import INVITE_MS, Office
from consortium.coordinator.rows import SiteRow
from consortium.core import duties as d
from consortium.core import inputs as i
from consortium.core.ids import Digest
from consortium.crypto.authority import request_certificate
from consortium.crypto.recipes import SigningKey
from consortium.drive.clock import SystemClock
from consortium.drive.directory import SIGNER_NAME
from consortium.errors import (
    AlreadySubmittedError,
    BadTokenError,
    DeadlineExpiredError,
    MissingBlobError,
    StoreFailedError,
    TooStaleError,
    UnauthorizedClientError,
    UnknownFederationError,
    UnsignedRequestError,
    VerificationError,
    WireError,
    WrongRoundError,
)
from consortium.ledger.note import Verifier, parse_text
from consortium.ledger.proof import read_proof, verify_proof
from consortium.model import Layout, Update, digest_of, load_model, save_update
from consortium.testing.processes import Shape
from consortium.wire.invitation import Invitation, open_invitation
from consortium.wire.messages import (
    Answer,
    Ask,
    ClientRegister,
    Enrol,
    Enrolled,
    FailureNote,
    Report,
    ScoreNote,
    Submission,
)
from consortium.wire.token import read_token
from consortium.wire.words import WORDS_SHOWN

SIZE = 8


@dataclass
class Player:
    """A site that plays by hand."""

    office: Office
    key: SigningKey
    row: SiteRow
    log_key: bytes

    @property
    def desk(self) -> Desk:
        return self.office.desk_of(self.row)

    def ask(self, **about: object) -> Answer:
        values: dict[str, object] = {"seen_size": 0, "own_size": 0} | about
        return self.desk.answer(self.row, Ask.model_validate(values))

    def invitation(self) -> Invitation:
        signed = self.ask().invitation
        assert signed is not None
        return open_invitation(signed, [self.log_key])

    def train(self) -> tuple[int, bytes]:
        """The update of this site in the open round."""
        duty = self.invitation().duty
        assert isinstance(duty, d.Train)
        step = np.zeros(SIZE, np.float32)
        step[duty.seat - 1] = 1.0
        return duty.round, save_update(Update(step, 1.0, duty.base))

    def upload(self, data: bytes) -> Digest:
        digest = digest_of(data)
        chunk = self.office.uploads.receive(self.row.id, digest, 0)
        chunk.write(data)
        chunk.commit(digest)
        return digest

    def submit(self, number: int, data: bytes) -> str:
        digest = self.upload(data)
        body = Submission(update=digest.hex(), size_bytes=len(data))
        return self.desk.submit(self.row, number, body, b"envelope").proof


def until(holds: Callable[[], bool]) -> None:
    ends = time.monotonic() + 10.0
    while not holds():
        assert time.monotonic() < ends, "it did not happen"
        time.sleep(0.005)


def has_ended(desk: Desk, number: int) -> bool:
    ended = desk.state.ended
    return ended is not None and ended.number == number


def enrol(office: Office, name: str) -> Player:
    token = read_token(office.invite("counting", name)[0])
    key = SigningKey.generate()
    told = office.enrol(
        Enrol(
            federation=token.federation,
            name=name,
            secret=token.secret,
            certificate_request=request_certificate(key).decode(),
        )
    )
    return Player(office, key, office.site(told.site), bytes.fromhex(told.log_key))


@pytest.fixture
def study(tmp_path: Path) -> Path:
    folder = tmp_path / "study"
    Shape(sites=3, rounds=2, size=SIZE, quorum=2).write(folder)
    return folder / "consortium.toml"


@pytest.fixture
def office(tmp_path: Path, study: Path) -> Iterator[Office]:
    office = Office(tmp_path / "data", SystemClock(), url="https://localhost:1")
    office.host(study)
    troubles: list[object] = []
    office.start(troubles.append)
    yield office
    office.close()
    assert not troubles


def test_whole_study_by_hand(office: Office) -> None:
    players = [enrol(office, f"site-{n}") for n in range(3)]
    desk = players[0].desk
    for number in (1, 2):
        until(lambda: players[2].ask().invitation is not None)
        for player in players:
            made_in, data = player.train()
            assert made_in == number
            proof = read_proof(player.submit(number, data))
            origin = proof.note.partition("\n")[0]
            verify_proof(proof, origin, [Verifier(SIGNER_NAME, player.log_key)])
        until(lambda number=number: has_ended(desk, number))
        assert players[0].ask(unsettled=number).settled is not None
    assert desk.is_finished
    model = desk.state.versions[desk.state.current].model
    study = desk.study_of_plan()
    assert isinstance(study.layout, Layout)
    vector = load_model(study.layout, desk.blobs.get(model))
    assert vector[:3] == pytest.approx(2 / 3)
    teller = office.teller_named("counting")
    assert [one["counted"] for one in teller.rounds()] == [3, 3]
    assert [one["version"] for one in teller.models()] == [0, 1, 2]
    assert teller.status()["finished"] == "rounds_done"
    assert {one["fact"] for one in teller.round(1)["events"]} >= {"RoundClosed", "ModelPublished"}


def test_site_is_told_of_an_end_and_of_the_next_invitation_at_once_and_of_nothing_twice(
    office: Office,
) -> None:
    players = [enrol(office, f"site-{n}") for n in range(3)]
    first, desk = players[0], players[0].desk

    def is_news(have: str, unsettled: int) -> bool:
        ask = Ask(seen_size=0, own_size=0, have=have, unsettled=unsettled, wait_ms=1000)
        return desk.has_news(first.row, ask)

    until(lambda: first.ask().invitation is not None)
    have = first.ask(unsettled=1).mark
    assert not is_news(have, 1) and is_news("", 1) and is_news("0" * 48, 1)
    first.submit(*first.train())
    assert not is_news(have, 1)  # its own answer
    seen: list[bool] = []
    desk.watch(lambda: seen.append(desk.state.round is not None or desk.is_finished))
    for player in players[1:]:
        player.submit(*player.train())
    until(lambda: has_ended(desk, 1) and first.ask().invitation is not None)
    until(lambda: is_news(have, 1))
    assert all(seen), "somebody was told of the end alone"
    told = first.ask(unsettled=1)
    assert told.settled is not None and told.invitation is not None and told.version == 1
    assert not is_news(told.mark, 1)  # asked again before it was settled
    assert not is_news(told.mark, 0)  # settled
    assert is_news(first.ask().mark, 1)  # it was not told yet


def test_submissions_of_one_site_are_taken_one_after_another(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a site could put another file into the place of the one that was compared."""
    players = [enrol(office, f"site-{n}") for n in range(3)]
    first, uploads = players[0], office.uploads
    until(lambda: first.ask().invitation is not None)
    number, data = first.train()
    digest = first.upload(data)
    taken, go_on = [], threading.Event()
    take, adopt = uploads.take, first.desk.blobs.adopt

    def noted(*of: Any) -> Any:
        taken.append(of)
        return take(*of)

    def held(*of: Any, **how: Any) -> None:
        assert go_on.wait(10)
        adopt(*of, **how)

    monkeypatch.setattr(uploads, "take", noted)
    monkeypatch.setattr(first.desk.blobs, "adopt", held)
    body = Submission(update=digest.hex(), size_bytes=len(data))
    with ThreadPoolExecutor(2) as pool:
        told = [
            pool.submit(first.desk.submit, first.row, number, body, b"envelope") for _ in range(2)
        ]
        time.sleep(0.1)
        assert len(taken) == 1
        go_on.set()
        # The second may be told of the check, which the worker makes meanwhile.
        assert {one.result(10).status for one in told} <= {"received", "accepted"}
    assert len(taken) == 1


def test_withdrawn_invitation_is_news(office: Office) -> None:
    """To a site that has not answered."""
    players = [enrol(office, f"site-{n}") for n in range(3)]
    slow, desk = players[2], players[0].desk
    until(lambda: slow.ask().invitation is not None)
    ask = Ask(seen_size=0, own_size=0, have=slow.ask().mark, wait_ms=1000)
    assert not desk.has_news(slow.row, ask)
    desk.feed(i.Hold(0))
    desk.feed(i.CancelRound(1, 0))
    until(lambda: slow.ask().invitation is None)
    assert desk.has_news(slow.row, ask)


def test_restarted_office_goes_on_with_the_same_round(tmp_path: Path, study: Path) -> None:
    first = Office(tmp_path / "data", SystemClock(), url="https://localhost:1")
    first.host(study)
    first.start(lambda error: None)
    players = [enrol(first, f"site-{n}") for n in range(3)]
    until(lambda: players[2].ask().invitation is not None)
    number, data = players[0].train()
    kept = players[0].submit(number, data)
    first.close()
    second = Office(tmp_path / "data", SystemClock(), url="https://localhost:1")
    second.host(study)
    second.start(lambda error: None)
    for player in players:
        player.office = second
        assert player.submit(*player.train() if player is not players[0] else (number, data))
    until(lambda: has_ended(players[0].desk, 1))
    assert players[0].ask(unsettled=1).settled.is_counted  # type: ignore[union-attr]
    again = read_proof(players[0].desk.receipt(players[0].row, 1).proof)
    assert again.record == read_proof(kept).record
    second.close()


def test_token_works_once_and_the_same_key_may_come_again(office: Office) -> None:
    token = read_token(office.invite("counting", "a")[0])

    def body(key: SigningKey) -> Enrol:
        return Enrol(
            federation=token.federation,
            name="a",
            secret=token.secret,
            certificate_request=request_certificate(key).decode(),
        )

    winner = SigningKey.generate()
    first = office.enrol(body(winner))
    assert office.enrol(body(winner)).site == first.site
    with pytest.raises(BadTokenError):
        office.enrol(body(SigningKey.generate()))


def test_token_is_refused_before_words_are_made(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They take 25 ms of our time: not for a token that does not hold."""
    desk, registry = office.teller_named("counting").desk, office.registry
    now_ms, one, two = office.clock.now_ms(), SigningKey.generate(), SigningKey.generate()
    free, used, left = (registry.invite(desk.id, name, now_ms, INVITE_MS) for name in "abc")
    expired = registry.invite(desk.id, "d", now_ms - 2, 1)

    def ask(name: str, secret: str, key: SigningKey) -> Enrolled:
        request = request_certificate(key).decode()
        told = {"federation": desk.id, "name": name, "secret": secret}
        return office.enrol(Enrol(certificate_request=request, **told))

    ask("b", used, one)
    desk.leave(office.site(ask("c", left, two).site))
    monkeypatch.setattr(office_module, "words_of", lambda *_: pytest.fail("it makes words"))
    for refused in (
        ("a", "A" * 27, SigningKey.generate()),
        ("e", free, SigningKey.generate()),
        ("b", used, two),
        ("c", left, two),
        ("d", expired, SigningKey.generate()),
    ):
        with pytest.raises(BadTokenError):
            ask(*refused)


def test_words_are_kept_with_the_seat(office: Office) -> None:
    player = enrol(office, "site-0")
    assert (player.row.seat, len(player.row.words)) == (1, WORDS_SHOWN)
    (told,) = office.teller_named("counting").sites()
    assert tuple(told["words"]) == player.row.words


def test_site_gets_what_it_needs_and_nobody_elses_update(office: Office) -> None:
    players = [enrol(office, f"site-{n}") for n in range(3)]
    desk = players[0].desk
    until(lambda: players[2].ask().invitation is not None)
    number, data = players[0].train()
    players[0].submit(number, data)
    sheet = desk.study()
    for text in (sheet.plan, sheet.layout, sheet.bundle, sheet.lock):
        assert desk.may_read(players[1].row, Digest(bytes.fromhex(text)))
    assert desk.may_read(players[1].row, players[1].invitation().duty.base)
    assert not desk.may_read(players[1].row, digest_of(data))
    assert not desk.may_read(players[0].row, digest_of(data))


def test_another_update_for_the_same_round_is_refused(office: Office) -> None:
    players = [enrol(office, f"site-{n}") for n in range(3)]
    until(lambda: players[2].ask().invitation is not None)
    number, data = players[0].train()
    players[0].submit(number, data)
    other = save_update(Update(np.ones(SIZE, np.float32), 1.0, players[1].invitation().duty.base))
    with pytest.raises(AlreadySubmittedError):
        players[0].submit(number, other)
    assert players[0].submit(number, data)


def test_unfinished_upload_is_not_taken(office: Office) -> None:
    players = [enrol(office, f"site-{n}") for n in range(3)]
    until(lambda: players[2].ask().invitation is not None)
    number, data = players[0].train()
    body = Submission(update=digest_of(data).hex(), size_bytes=len(data))
    with pytest.raises(MissingBlobError):
        players[0].desk.submit(players[0].row, number, body, b"envelope")


def test_failure_and_unknown_failure(office: Office) -> None:
    players = [enrol(office, f"site-{n}") for n in range(3)]
    until(lambda: players[2].ask().invitation is not None)
    desk, row = players[0].desk, players[0].row
    with pytest.raises(WireError):
        desk.fail(row, 1, FailureNote(failure="NO_SUCH"), b"")
    desk.fail(row, 1, FailureNote(failure="TRAINING"), b"")
    assert players[0].ask().invitation is None
    assert office.teller_named("counting").status()["round"]["fallen"] == {"site-0": "training"}


def test_score_without_evaluation_is_refused(office: Office) -> None:
    player, *_ = [enrol(office, f"site-{n}") for n in range(3)]
    until(lambda: player.ask().invitation is not None)
    note = ScoreNote(model="0" * 64, samples=1, candidate=[1.0], base=[1.0])
    with pytest.raises((DeadlineExpiredError, UnauthorizedClientError)):
        player.desk.score(player.row, 1, note, b"")


def test_revoked_site_is_nobody(office: Office) -> None:
    players = [enrol(office, f"site-{n}") for n in range(3)]
    until(lambda: players[0].ask().invitation is not None)
    office.teller_named("counting").revoke("site-0")
    with pytest.raises(UnsignedRequestError):
        office.site(players[0].row.id)
    with pytest.raises(UnauthorizedClientError):
        players[0].ask()
    with pytest.raises(UnauthorizedClientError):
        office.teller_named("counting").revoke("site-0")


def test_waiting_costs_a_mark(office: Office) -> None:
    players = [enrol(office, f"site-{n}") for n in range(2)]
    first = players[0].ask()
    ask = Ask(seen_size=0, own_size=0, have=first.mark)
    assert not players[0].desk.has_news(players[0].row, ask)
    enrol(office, "site-2")
    until(lambda: players[0].desk.has_news(players[0].row, ask))


def test_coordinator_remembers_how_long_a_sites_log_was(office: Office) -> None:
    player = enrol(office, "site-0")
    assert player.ask(own_size=7).own_size == 7
    assert player.ask(own_size=3).own_size == 7


def test_objection_is_shown_and_taken_back(office: Office) -> None:
    player = enrol(office, "site-0")
    teller = office.teller_named("counting")
    player.ask(objection="E0903")
    assert teller.sites()[0]["objection"] == "E0903"
    player.ask()
    assert teller.sites()[0]["objection"] is None


def test_cosignature_is_kept_only_when_it_holds(office: Office) -> None:
    from consortium.ledger.note import Signer, cosign

    player = enrol(office, "site-0")
    note = player.ask().offer.note
    player.ask(cosignature=note)
    assert player.desk.heard.notes()[player.row.id].cosignature == ""
    signed = cosign(note, Signer(player.row.id, player.key), 1)
    player.ask(cosignature=signed)
    assert player.desk.heard.notes()[player.row.id].cosignature == signed
    assert parse_text(note.partition("\n\n")[0] + "\n").size > 0


def test_register_of_the_first_design(office: Office) -> None:
    player = enrol(office, "site-0")
    body = ClientRegister(location_id="site-0", model_type="study")
    assert player.desk.register(player.row, body).client_id == "counting.site-0"
    with pytest.raises(UnauthorizedClientError):
        player.desk.register(player.row, ClientRegister(location_id="b", model_type="study"))
    with pytest.raises(WireError):
        player.desk.register(player.row, ClientRegister(location_id="site-0", model_type="cnn"))


def test_report_stands_in_the_list_of_sites(office: Office) -> None:
    player = enrol(office, "site-0")
    player.desk.report(player.row, Report(report={"memory_gb": 16, "region": "north"}))
    told = office.teller_named("counting").sites()[0]
    assert told["report"] == {"memory_gb": 16, "region": "north"}


def test_changed_task_is_not_hosted_with_the_old_lock(office: Office, study: Path) -> None:
    (study.parent / "task.py").write_text("# another\n")
    with pytest.raises(VerificationError):
        office.host(study)


def test_unknown_federation(office: Office) -> None:
    with pytest.raises(UnknownFederationError):
        office.teller_named("other")


def test_operator_file_is_secret_and_stays_the_same(office: Office) -> None:
    path = office.write_operator_file()
    before = path.read_text()
    assert path.stat().st_mode & 0o77 == 0
    assert office.write_operator_file().read_text() == before


def test_site_that_left_or_was_put_out_does_not_come_back_with_its_token(office: Office) -> None:
    for is_revoked in (False, True):
        name = f"gone-{is_revoked}"
        token = read_token(office.invite("counting", name)[0])
        key = SigningKey.generate()
        body = Enrol(
            federation=token.federation,
            name=name,
            secret=token.secret,
            certificate_request=request_certificate(key).decode(),
        )
        row = office.site(office.enrol(body).site)
        desk = office.desk_of(row)
        if is_revoked:
            office.teller_named("counting").revoke(name)
        else:
            desk.leave(row)
        with pytest.raises(BadTokenError):
            office.enrol(body)
        with pytest.raises(UnsignedRequestError):
            office.site(row.id)
        with pytest.raises(UnauthorizedClientError):
            desk.may_read(row, Digest(bytes.fromhex(desk.study().bundle)))
        assert office.invite("counting", name)  # the name is free


def test_refused_failures_leave_nothing_behind(office: Office) -> None:
    player = enrol(office, "site-0")
    before = len(list(player.desk.blobs.digests()))
    with pytest.raises((UnauthorizedClientError, WrongRoundError)):
        player.desk.fail(player.row, 7, FailureNote(failure="TRAINING"), b"x" * 100)
    assert len(list(player.desk.blobs.digests())) == before


def test_update_of_another_size_is_refused_the_second_time_too(office: Office) -> None:
    players = [enrol(office, f"site-{n}") for n in range(3)]
    until(lambda: players[2].ask().invitation is not None)
    number, data = players[0].train()
    digest = players[0].upload(data)
    players[0].desk._adopt(players[0].row, digest, len(data))  # and then it was killed
    assert office.uploads.is_done(players[0].row.id, digest)
    wrong = Submission(update=digest.hex(), size_bytes=0)
    with pytest.raises(WireError):
        players[0].desk.submit(players[0].row, number, wrong, b"envelope")
    body = Submission(update=digest.hex(), size_bytes=len(data))
    assert players[0].desk.submit(players[0].row, number, body, b"envelope").proof


def test_worker_goes_on_after_whatever_happens(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = office.teller_named("counting").desk
    assert desk.is_working
    until(lambda: not desk._has_ended)
    fails = iter([StoreFailedError("full"), MemoryError(), None])

    def keep() -> None:
        error = next(fails, None)
        if error is not None:
            raise error

    troubles: list[object] = []
    monkeypatch.setattr(desk._loop, "_on_trouble", troubles.append)
    monkeypatch.setattr(desk.coordinator, "keep_checkpoint", keep)
    desk._has_ended = True
    until(lambda: len(troubles) == 2 and not desk._has_ended)
    assert desk.is_working


# ---- without a barrier ----------------------------------------------------------------


@pytest.fixture
def waiting_for_nobody(tmp_path: Path) -> Iterator[Office]:
    """Two updates move the model, and none may be older than one version."""
    shape = Shape(sites=4, rounds=20, size=SIZE, quorum=2, buffer=2, max_staleness=1)
    shape.write(tmp_path / "study")
    office = Office(tmp_path / "data", SystemClock(), url="https://localhost:1")
    office.host(tmp_path / "study" / "consortium.toml")
    troubles: list[object] = []
    office.start(troubles.append)
    yield office
    office.close()
    assert not troubles


def _flush(players: list[Player]) -> int:
    """These send by their newest invitations; the round that has them in its sum."""
    desk = players[0].desk
    number = desk.state.last_number
    for player in players:
        until(lambda player=player: player.ask().invitation is not None)
        player.submit(*player.train())
    until(lambda: has_ended(desk, number))
    until(lambda: desk.state.round is not None and desk.state.round.number == number + 1)
    return number


def test_site_passes_on_into_later_rounds_and_is_counted_once(waiting_for_nobody: Office) -> None:
    players = [enrol(waiting_for_nobody, f"site-{n}") for n in range(4)]
    fast, slow, desk = players[:2], players[3], players[0].desk
    until(lambda: slow.ask().invitation is not None)
    number, data = slow.train()
    assert number == 1
    _flush(fast)
    assert slow.train() == (number, data)  # it is asked for the same, from the same model
    assert slow.ask(unsettled=1).settled is None
    proof = slow.submit(number, data)
    assert slow.submit(number, data) and slow.desk.receipt(slow.row, 1).status != "counted"
    second = desk.state.last_number
    until(lambda: fast[0].ask().invitation is not None)
    fast[0].submit(*fast[0].train())
    until(lambda: has_ended(desk, second))
    until(lambda: slow.ask(unsettled=1).settled is not None)
    assert slow.ask(unsettled=1).settled.is_counted  # type: ignore[union-attr]
    _flush(fast)
    _flush(fast)  # now only the log knows
    assert slow.desk._is_counted(1, desk.seat(slow.row)) is True
    told = slow.desk.receipt(slow.row, 1)
    assert told.status == "counted" and read_proof(told.proof).record == read_proof(proof).record
    teller = waiting_for_nobody.teller_named("counting")
    events = teller.round(second)["events"]
    assert any(one["fact"] == "InvitationsKept" for one in events)


def test_update_of_a_model_that_is_too_old_is_refused(waiting_for_nobody: Office) -> None:
    players = [enrol(waiting_for_nobody, f"site-{n}") for n in range(4)]
    fast, slow = players[:2], players[3]
    until(lambda: slow.ask().invitation is not None)
    number, data = slow.train()
    _flush(fast)
    _flush(fast)
    with pytest.raises(TooStaleError):
        slow.submit(number, data)
    assert slow.ask(unsettled=number).settled.is_counted is False  # type: ignore[union-attr]
    newer, data = slow.train()  # it is asked again, with the present model
    assert newer > number and slow.submit(newer, data)


def test_site_may_upload_between_rounds_and_is_told_why_it_may_not(
    waiting_for_nobody: Office,
) -> None:
    players = [enrol(waiting_for_nobody, f"site-{n}") for n in range(4)]
    fast, slow, desk = players[:2], players[3], players[0].desk
    until(lambda: slow.ask().invitation is not None)
    _flush(fast)
    assert slow.desk.upload_limit(slow.row) > 0
    base = desk.state.versions[0].model
    assert slow.desk.may_read(slow.row, base)
    waiting_for_nobody.teller_named("counting").cancel(desk.state.last_number)
    waiting_for_nobody.teller_named("counting").stop()
    with pytest.raises(WrongRoundError, match="withdrawn"):
        slow.desk.upload_limit(slow.row)
