"""The registry: names, tokens that work once, answers, notes, operators."""

from __future__ import annotations

import os
import re
import signal
import sqlite3
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from consortium.coordinator import database
from consortium.coordinator.access import Scope
from consortium.coordinator.registry import OperatorRow, Registry, SiteNote, SiteRow
from consortium.coordinator.rows import FORMAT
from consortium.core.ids import Secret
from consortium.crypto.recipes import SigningKey
from consortium.errors import (
    BadTokenError,
    ConsortiumError,
    CorruptStoreError,
    NoteError,
    NotEnrolledError,
    StoreFailedError,
    UnknownFederationError,
    UsageError,
    WeakKeyError,
)
from consortium.ledger.note import Checkpoint, Signer, sign_checkpoint

FEDERATION, OTHER = "f" * 32, "e" * 32
NOW_MS, HOUR_MS = 1_800_000_000_000, 3_600_000
WORDS = ("apple", "zebra")
REFUSED = "the token is unknown, used or expired"


def key_of(number: int) -> bytes:
    return SigningKey.from_secret(Secret(number.to_bytes(32, "big"))).public


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "registry.sqlite"


@pytest.fixture
def registry(path: Path) -> Iterator[Registry]:
    found = Registry(path)
    found.add_federation(FEDERATION, "heart", "clinic", NOW_MS)
    found.add_federation(OTHER, "lung", "clinic", NOW_MS)
    yield found
    found.close()


def join(registry: Registry, name: str, number: int, federation: str = FEDERATION) -> SiteRow:
    secret = registry.invite(federation, name, NOW_MS, HOUR_MS)
    return registry.redeem(federation, secret, f"site-{number}", key_of(number), NOW_MS)


def on_disk(path: Path) -> bytes:
    return b"".join(file.read_bytes() for file in sorted(path.parent.glob(path.name + "*")))


# ---- the coordinator's id, federations, studies --------------------------------------


def test_identity_is_made_once(registry: Registry, path: Path) -> None:
    assert len(bytes.fromhex(registry.identity())) == 16
    again = Registry(path)
    assert again.identity() == registry.identity() == registry.identity()
    again.close()


def test_federations_have_a_name_each(registry: Registry) -> None:
    assert [row.name for row in registry.federations()] == ["heart", "lung"]
    assert registry.federation_named("heart").id == FEDERATION
    with pytest.raises(UnknownFederationError):
        registry.federation_named("liver")


def test_federation_that_is_there_already_stays_as_it_is(registry: Registry) -> None:
    assert registry.add_federation(FEDERATION, "heart", "clinic", NOW_MS + 1).created_ms == NOW_MS
    for federation, name in ((FEDERATION, "liver"), ("d" * 32, "heart"), (OTHER, "heart")):
        with pytest.raises(UsageError) as caught:
            registry.add_federation(federation, name, "clinic", NOW_MS)
        assert caught.value.hint
    for federation, name in (("../x", "liver"), ("d" * 32, "a b"), ("d" * 32, "")):
        with pytest.raises(UsageError):
            registry.add_federation(federation, name, "clinic", NOW_MS)
    assert len(registry.federations()) == 2


def test_study_is_added_once(registry: Registry) -> None:
    study = (FEDERATION, "11" * 32, "22" * 32)
    assert registry.study(*study) is None
    for now_ms in (NOW_MS, NOW_MS + 1):
        registry.add_study(*study, "33" * 32, "44" * 32, now_ms)
    found = registry.study(*study)
    assert found is not None
    assert (found.bundle, found.lock, found.added_ms) == ("33" * 32, "44" * 32, NOW_MS)
    with pytest.raises(UsageError):
        registry.add_study(*study, "33" * 32, "55" * 32, NOW_MS)
    with pytest.raises(UnknownFederationError):
        registry.add_study("d" * 32, "11" * 32, "22" * 32, "33" * 32, "44" * 32, NOW_MS)


# ---- invitations ---------------------------------------------------------------------


def test_token_makes_a_site(registry: Registry) -> None:
    secret = registry.invite(FEDERATION, "charite", NOW_MS, HOUR_MS)
    row = registry.redeem(FEDERATION, secret, "site-1", key_of(1), NOW_MS + 5, name="charite")
    assert row == registry.site("site-1") == registry.enrolled("site-1")
    assert (row.name, row.key, row.enrolled_ms) == ("charite", key_of(1), NOW_MS + 5)
    assert (row.seat, row.words) == (None, ())
    assert (row.revoked_ms, row.certificate_serial) == (None, None)
    (invite,) = registry.invites(FEDERATION)
    assert (invite.name, invite.used_ms, invite.site) == ("charite", NOW_MS + 5, "site-1")


def test_winner_that_lost_the_reply_gets_the_same_place_again(registry: Registry) -> None:
    secret = registry.invite(FEDERATION, "charite", NOW_MS, HOUR_MS)
    first = registry.redeem(FEDERATION, secret, "site-1", key_of(1), NOW_MS)
    late_ms = NOW_MS + 2 * HOUR_MS
    assert registry.redeem(FEDERATION, secret, "site-9", key_of(1), late_ms) == first
    assert [row.id for row in registry.sites(FEDERATION)] == ["site-1"]


def refused(registry: Registry, secret: str, **changes: Any) -> str:
    asked = {"federation": FEDERATION, "site_id": "site-2", "key": key_of(2), "now_ms": NOW_MS}
    with pytest.raises(BadTokenError) as caught:
        registry.redeem(secret=secret, **asked | changes)
    text = f"{caught.value.message} | {caught.value.hint}"
    assert len(secret) < 27 or secret not in text
    return text


def test_unknown_used_and_expired_tokens_are_refused_alike(registry: Registry) -> None:
    secret = registry.invite(FEDERATION, "charite", NOW_MS, HOUR_MS)
    texts = {
        refused(registry, "x" * 27),
        refused(registry, ""),
        refused(registry, "\ud800"),
        refused(registry, secret, federation=OTHER),
        refused(registry, secret, federation="d" * 32),
        refused(registry, secret, name="another"),
        refused(registry, secret, now_ms=NOW_MS + HOUR_MS),
    }
    registry.redeem(FEDERATION, secret, "site-1", key_of(1), NOW_MS + HOUR_MS - 1)
    texts.add(refused(registry, secret))
    registry.revoke("site-1", NOW_MS)
    texts.add(refused(registry, secret, key=key_of(1)))
    assert len(texts) == 1 and texts.pop().startswith(REFUSED)
    assert len(registry.sites(FEDERATION)) == 1


def test_refused_tokens_cost_the_same_queries(registry: Registry) -> None:
    used = registry.invite(FEDERATION, "used", NOW_MS, HOUR_MS)
    registry.redeem(FEDERATION, used, "site-1", key_of(1), NOW_MS)
    expired = registry.invite(FEDERATION, "expired", NOW_MS, 1)
    seen: list[list[str]] = []
    for secret in ("unknown", used, expired):
        statements: list[str] = []
        with registry._database.writing() as run:
            run.set_trace_callback(statements.append)
        refused(registry, secret, now_ms=NOW_MS + HOUR_MS)
        with registry._database.writing() as run:
            run.set_trace_callback(None)
        seen.append([statement.partition("WHERE")[0] for statement in statements])
    assert seen[0] == seen[1] == seen[2]


def test_newer_invitation_replaces_the_older_one(registry: Registry) -> None:
    older = registry.invite(FEDERATION, "charite", NOW_MS, HOUR_MS)
    newer = registry.invite(FEDERATION, "charite", NOW_MS + 1, HOUR_MS)
    elsewhere = registry.invite(OTHER, "charite", NOW_MS, HOUR_MS)
    assert len({older, newer, elsewhere}) == 3
    refused(registry, older)
    assert registry.redeem(FEDERATION, newer, "site-1", key_of(1), NOW_MS).name == "charite"
    assert registry.redeem(OTHER, elsewhere, "site-2", key_of(1), NOW_MS).name == "charite"


def test_name_is_free_again_when_its_site_was_revoked(registry: Registry) -> None:
    join(registry, "charite", 1)
    with pytest.raises(UsageError) as caught:
        registry.invite(FEDERATION, "charite", NOW_MS, HOUR_MS)
    assert "revoke charite" in caught.value.hint
    registry.revoke("site-1", NOW_MS)
    assert join(registry, "charite", 2).name == "charite"


def test_key_joins_a_federation_once_even_after_it_was_revoked(registry: Registry) -> None:
    join(registry, "charite", 1)
    secret = registry.invite(FEDERATION, "other", NOW_MS, HOUR_MS)
    for _ in range(2):
        with pytest.raises(UsageError, match="joined before"):
            registry.redeem(FEDERATION, secret, "site-2", key_of(1), NOW_MS)
        registry.revoke("site-1", NOW_MS)
    assert registry.redeem(FEDERATION, secret, "site-2", key_of(2), NOW_MS).name == "other"


@pytest.mark.parametrize("key", [b"", bytes(32), bytes([1, *bytes(31)])])
def test_weak_key_does_not_use_a_token_up(registry: Registry, key: bytes) -> None:
    secret = registry.invite(FEDERATION, "charite", NOW_MS, HOUR_MS)
    with pytest.raises(WeakKeyError):
        registry.redeem(FEDERATION, secret, "site-1", key, NOW_MS)
    registry.redeem(FEDERATION, secret, "site-1", key_of(1), NOW_MS)


def test_what_cannot_be_invited(registry: Registry) -> None:
    for name in ("", "a b", "a.b.c", "ä", "x" * 65, "../etc"):
        with pytest.raises(UsageError):
            registry.invite(FEDERATION, name, NOW_MS, HOUR_MS)
    with pytest.raises(UsageError):
        registry.invite(FEDERATION, "charite", NOW_MS, 0)
    with pytest.raises(UnknownFederationError):
        registry.invite("d" * 32, "charite", NOW_MS, HOUR_MS)
    registry.invite(FEDERATION, "tenant.location", NOW_MS, HOUR_MS)


def test_secrets_are_nowhere_in_the_file(registry: Registry, path: Path) -> None:
    secrets = [
        registry.invite(FEDERATION, "charite", NOW_MS, HOUR_MS),
        registry.invite(FEDERATION, "other", NOW_MS, HOUR_MS),
        registry.new_operator("lead", "me", NOW_MS, HOUR_MS),
    ]
    registry.redeem(FEDERATION, secrets[0], "site-1", key_of(1), NOW_MS)
    shown = repr(registry.invites(FEDERATION)) + repr(registry.operators())
    raw = on_disk(path)
    assert b"charite" in raw  # the check can see
    for secret in secrets:
        assert secret.encode() not in raw and secret not in shown
        assert secret[:12].encode() not in raw


def test_file_is_its_owners_alone(registry: Registry, path: Path) -> None:
    files = list(path.parent.glob(path.name + "*"))
    assert len(files) == 3
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}


# ---- one winner ----------------------------------------------------------------------

CHILD = """
import sys, threading
from pathlib import Path
from consortium.coordinator.registry import Registry
from consortium.crypto.recipes import SigningKey
from consortium.errors import BadTokenError
registry = Registry(Path(sys.argv[1]))
def run(secret, number):
    key = SigningKey.generate().public
    try:
        row = registry.redeem(sys.argv[2], secret, f"{sys.argv[3]}-{number}", key, 1)
    except BadTokenError:
        return
    print("won", row.id, flush=True)
print("ready", flush=True)
for line in sys.stdin:
    secret, run_number = line.split()
    numbers = [f"{run_number}-{each}" for each in range(5)]
    threads = [threading.Thread(target=run, args=(secret, number)) for number in numbers]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    print("done", flush=True)
"""


def start_child(path: Path, name: str, script: str = CHILD) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", script, str(path), FEDERATION, name],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def lines_until(child: subprocess.Popen[str], last: str) -> list[str]:
    assert child.stdout is not None
    found: list[str] = []
    for line in child.stdout:
        if line.strip() == last:
            return found
        found.append(line.strip())
    raise AssertionError("the child ended")


def test_one_winner_among_50_threads_and_three_processes(registry: Registry, path: Path) -> None:
    children = [start_child(path, f"child{number}") for number in range(3)]
    for child in children:
        lines_until(child, "ready")
    keys = [key_of(number) for number in range(1, 1001)]
    try:
        for run in range(20):
            secret = registry.invite(FEDERATION, f"name-{run}", 0, HOUR_MS)
            with ThreadPoolExecutor(50) as pool:
                for child in children:
                    assert child.stdin is not None
                    child.stdin.write(f"{secret} {run}\n")
                    child.stdin.flush()
                tries = [
                    pool.submit(attempt, registry, secret, f"own-{run}-{each}", keys.pop())
                    for each in range(50)
                ]
                winners = [row for row in (each.result() for each in tries) if row]
            told = [line.split()[1] for child in children for line in lines_until(child, "done")]
            winners += told
            assert len(winners) == 1, (run, winners)
            assert registry.site(winners[0]).name == f"name-{run}"
            assert len(registry.sites(FEDERATION)) == run + 1
    finally:
        for child in children:
            child.communicate(timeout=60)


def attempt(registry: Registry, secret: str, site: str, key: bytes) -> str | None:
    try:
        return registry.redeem(FEDERATION, secret, site, key, 1).id
    except BadTokenError:
        return None


KILLED = """
import os, signal, sys
from pathlib import Path
from consortium.coordinator.registry import Registry
registry = Registry(Path(sys.argv[1]))
left, secret, key = int(sys.argv[4]), sys.argv[5], bytes.fromhex(sys.argv[6])
def die(statement=""):
    global left
    left -= 1
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
with registry._database.writing() as run:
    run.set_trace_callback(die)
registry.redeem(sys.argv[2], secret, sys.argv[3], key, 1)
die()
print("told")
"""


def test_killed_winner_finds_its_place_and_nobody_else_does(registry: Registry, path: Path) -> None:
    """A process dies before each statement of redeeming, and between its end and the reply:
    the token was used by its key, or not at all."""
    outcomes = []
    for point in range(2, 20):  # the first statement ends the transaction that sets the trap
        secret = registry.invite(FEDERATION, f"name-{point}", 0, HOUR_MS)
        mine = f"killed-{point}"
        arguments = [str(path), FEDERATION, mine, str(point), secret, key_of(point).hex()]
        done = subprocess.run(
            [sys.executable, "-c", KILLED, *arguments], capture_output=True, text=True
        )
        if done.stdout == "told\n":
            break
        assert done.returncode == -signal.SIGKILL, done.stderr
        again = registry.redeem(FEDERATION, secret, f"again-{point}", key_of(point), 1)
        outcomes.append(again.id.split("-")[0])
        refused(registry, secret, key=key_of(1000), now_ms=1)
    assert outcomes == ["again"] * (len(outcomes) - 1) + ["killed"]
    assert len(outcomes) > 5


def test_several_processes_may_open_a_new_file_at_once(path: Path) -> None:
    children = [start_child(path, f"child{number}") for number in range(6)]
    for child in children:
        lines_until(child, "ready")
        child.communicate(timeout=60)
        assert child.returncode == 0


# ---- sites ---------------------------------------------------------------------------


def test_seat_certificate_and_revocation(registry: Registry) -> None:
    join(registry, "charite", 1)
    registry.set_seat("site-1", 7, WORDS)
    registry.set_certificate("site-1", "1f", "PEM")
    registry.revoke("site-1", NOW_MS + 1)
    registry.revoke("site-1", NOW_MS + 2)
    row = registry.site("site-1")
    assert (row.seat, row.words) == (7, WORDS)
    assert (row.certificate_serial, row.certificate) == ("1f", "PEM")
    assert (row.revoked_ms, row.is_revoked) == (NOW_MS + 1, True)


def test_unknown_and_revoked_sites_are_refused_alike(registry: Registry) -> None:
    join(registry, "charite", 1)
    registry.revoke("site-1", NOW_MS)
    texts = []
    for site in ("site-1", "nobody"):
        with pytest.raises(NotEnrolledError) as caught:
            registry.enrolled(site)
        texts.append(f"{caught.value.message} {caught.value.hint}")
    assert texts[0] == texts[1]


def test_what_is_not_there_cannot_be_changed(registry: Registry) -> None:
    for change in (
        lambda: registry.site("nobody"),
        lambda: registry.set_seat("nobody", 1, WORDS),
        lambda: registry.set_certificate("nobody", "1"),
        lambda: registry.revoke("nobody", NOW_MS),
        lambda: registry.erase_site_name("nobody"),
        lambda: registry.note_site("nobody", seen_ms=NOW_MS),
    ):
        with pytest.raises(NotEnrolledError):
            change()


def test_sites_are_listed_by_federation_in_order_of_joining(registry: Registry) -> None:
    for number, name in enumerate(("c", "a", "b"), 1):
        join(registry, name, number)
    join(registry, "z", 4, OTHER)
    assert [row.name for row in registry.sites(FEDERATION)] == ["c", "a", "b"]
    assert [row.name for row in registry.sites(OTHER)] == ["z"]


def test_two_sites_never_share_a_seat(registry: Registry) -> None:
    join(registry, "a", 1)
    join(registry, "b", 2)
    registry.set_seat("site-1", 1, WORDS)
    registry.set_seat("site-1", 1, WORDS)
    with pytest.raises(StoreFailedError):
        registry.set_seat("site-2", 1, WORDS)
    registry.set_seat("site-2", 2, WORDS)


def test_erased_name_is_nowhere_in_the_file(registry: Registry, path: Path) -> None:
    name = "very-personal.name"
    join(registry, name, 1)
    registry.revoke("site-1", NOW_MS)
    registry.invite(FEDERATION, name, NOW_MS, HOUR_MS)
    assert name.encode() in on_disk(path)
    registry.erase_site_name("site-1")
    assert name.encode() not in on_disk(path)
    assert registry.site("site-1").name == "site-1"
    assert [(row.name, row.site) for row in registry.invites(FEDERATION)] == [("site-1", "site-1")]
    registry.erase_site_name("site-1")  # again does no harm


# ---- answers -------------------------------------------------------------------------


def test_first_answer_stands(registry: Registry) -> None:
    assert registry.answer("site-1", "n1") is None
    first = registry.keep_answer("site-1", "n1", "aa", 200, b"yes", NOW_MS)
    assert registry.keep_answer("site-1", "n1", "bb", 409, b"no", NOW_MS + 1) == first
    assert registry.answer("site-1", "n1") == first
    assert (first.request_digest, first.status, first.body) == ("aa", 200, b"yes")
    assert registry.answer("site-2", "n1") is None


def test_old_answers_are_forgotten(registry: Registry) -> None:
    for number in range(5):
        registry.keep_answer("site-1", f"n{number}", "aa", 200, b"", NOW_MS + number)
    assert registry.forget_answers(NOW_MS + 3) == 3
    assert registry.answer("site-1", "n2") is None
    assert registry.answer("site-1", "n3") is not None


def test_site_keeps_its_newest_answers_only(registry: Registry) -> None:
    for number in range(5):
        registry.keep_answer("site-1", f"n{number}", "aa", 200, b"", NOW_MS)
    registry.keep_answer("site-2", "n0", "aa", 200, b"", NOW_MS)
    assert registry.forget_most_answers("site-1", 2) == 3
    kept = [registry.answer("site-1", f"n{number}") is not None for number in range(5)]
    assert kept == [False, False, False, True, True]
    assert registry.answer("site-2", "n0") is not None


def test_one_of_many_answers_at_once_stands(registry: Registry, path: Path) -> None:
    others = [Registry(path) for _ in range(3)]
    with ThreadPoolExecutor(16) as pool:
        kept = list(
            pool.map(
                lambda n: others[n % 3].keep_answer("s", "n", str(n), 200, b"", NOW_MS), range(32)
            )
        )
    assert len(set(kept)) == 1
    for other in others:
        other.close()


# ---- notes ---------------------------------------------------------------------------


def cosigned(size: int) -> str:
    signer = Signer("coordinator", SigningKey.from_secret(Secret(bytes(32))))
    return sign_checkpoint(Checkpoint("consortium/x", size, bytes(32)), signer)


def test_notes_of_sites(registry: Registry) -> None:
    join(registry, "a", 1)
    join(registry, "b", 2)
    join(registry, "z", 3, OTHER)
    assert registry.notes(FEDERATION) == {}
    assert registry.own_size("site-1") == 0
    registry.note_site("site-1", seen_ms=NOW_MS, objection="E0314", own_size=5)
    registry.note_site("site-3", seen_ms=NOW_MS)
    assert registry.notes(FEDERATION) == {"site-1": SiteNote("site-1", NOW_MS, "E0314", 5)}


def test_own_size_never_decreases(registry: Registry) -> None:
    join(registry, "a", 1)
    told = [registry.note_site("site-1", seen_ms=NOW_MS, own_size=n) for n in (5, 3, 0, 9, 8)]
    assert told == [5, 5, 5, 9, 9]
    assert registry.note_site("site-1", seen_ms=NOW_MS + HOUR_MS) == 9
    assert registry.own_size("site-1") == 9


def test_objection_stays_until_it_is_taken_back(registry: Registry) -> None:
    join(registry, "a", 1)
    registry.note_site("site-1", seen_ms=NOW_MS, objection="E0905")
    registry.note_site("site-1", seen_ms=NOW_MS + HOUR_MS)
    assert registry.notes(FEDERATION)["site-1"].objection == "E0905"
    registry.note_site("site-1", seen_ms=NOW_MS + HOUR_MS, objection=None)
    assert registry.notes(FEDERATION)["site-1"].objection is None


def test_newest_cosigned_checkpoint_stays(registry: Registry) -> None:
    join(registry, "a", 1)
    for size in (5, 9, 7):
        registry.note_site("site-1", seen_ms=NOW_MS, cosignature=cosigned(size))
    registry.note_site("site-1", seen_ms=NOW_MS + HOUR_MS)
    assert registry.notes(FEDERATION)["site-1"].cosignature == cosigned(9)
    with pytest.raises(NoteError):
        registry.note_site("site-1", seen_ms=NOW_MS, cosignature="not a note")


def test_being_heard_of_is_written_once_a_minute(registry: Registry) -> None:
    join(registry, "a", 1)
    written = []
    for seconds in (0, 1, 59, 60, 61, 119, 121, 10):  # at last the clock jumps back
        registry.note_site("site-1", seen_ms=NOW_MS + seconds * 1000)
        written.append((registry.notes(FEDERATION)["site-1"].seen_ms - NOW_MS) // 1000)
    assert written == [0, 0, 0, 60, 60, 60, 121, 10]
    registry.note_site("site-1", seen_ms=NOW_MS + 11_000, own_size=1)
    assert registry.notes(FEDERATION)["site-1"].seen_ms == NOW_MS + 11_000


def test_many_sites_are_noted_in_one_transaction(registry: Registry) -> None:
    join(registry, "a", 1)
    join(registry, "b", 2)
    registry.note_site("site-1", seen_ms=NOW_MS, own_size=7)
    registry.note_sites([SiteNote("site-1", NOW_MS + 1, None, 3), SiteNote("site-2", NOW_MS)])
    assert [note.own_size for note in registry.notes(FEDERATION).values()] == [7, 0]
    with pytest.raises(NotEnrolledError):
        registry.note_sites([SiteNote("site-2", NOW_MS, None, 9), SiteNote("nobody", NOW_MS)])
    assert registry.own_size("site-2") == 0  # all of it, or nothing


# ---- operators -----------------------------------------------------------------------


def test_operators_token_holds_until_it_expires_or_is_revoked(registry: Registry) -> None:
    token = registry.new_operator("lead", "anna", NOW_MS, HOUR_MS, Scope("clinic"))
    short = registry.new_operator("viewer", "screen", NOW_MS, 1000, Scope(None, frozenset("ab")))
    assert registry.operator(token, NOW_MS + HOUR_MS - 1) == OperatorRow(
        "anna", "lead", "clinic", None, NOW_MS, NOW_MS + HOUR_MS
    )
    assert registry.operator(token, NOW_MS + HOUR_MS) is None
    assert registry.operator(short, NOW_MS + 999) == OperatorRow(
        "screen", "viewer", None, ("a", "b"), NOW_MS, NOW_MS + 1000
    )
    assert registry.operator(short, NOW_MS + 1000) is None
    for wrong in ("", "x" * 27, token + "A", token.swapcase(), token[4:], "\ud800"):
        assert registry.operator(wrong, NOW_MS) is None
    assert [row.label for row in registry.operators()] == ["anna", "screen"]
    registry.revoke_operator("anna")
    assert registry.operator(token, NOW_MS) is None
    with pytest.raises(UsageError):
        registry.revoke_operator("anna")


@pytest.mark.parametrize(
    ("role", "label", "lifetime_ms"),
    [
        ("lead", "me", HOUR_MS),
        ("lead", "", HOUR_MS),
        ("lead", "a\nb", HOUR_MS),
        ("lead", "a b", HOUR_MS),
        ("site", "x", HOUR_MS),
        ("anybody", "x", HOUR_MS),
        ("", "x", HOUR_MS),
        ("lead", "x", 0),
        ("lead", "x", -1),
        ("lead", "x", 367 * 24 * HOUR_MS),
    ],
)
def test_token_that_cannot_be(registry: Registry, role: str, label: str, lifetime_ms: int) -> None:
    registry.new_operator("lead", "me", NOW_MS, HOUR_MS)
    with pytest.raises(UsageError):
        registry.new_operator(role, label, NOW_MS, lifetime_ms)


def test_token_has_160_bits_and_is_good_at_one_coordinator(
    registry: Registry, tmp_path: Path
) -> None:
    token = registry.new_operator("admin", "me", NOW_MS, HOUR_MS)
    prefix, _, secret = token.partition(".")
    assert (prefix, len(secret)) == ("co1", 27)
    other = Registry(tmp_path / "other.sqlite")
    with registry._database.reading() as run:
        row = run.execute("SELECT * FROM operators").fetchone()
    with other._database.writing() as run:
        run.execute("INSERT INTO operators VALUES (?, ?, ?, ?, ?, ?, ?)", row)
    assert registry.operator(token, NOW_MS) is not None
    assert [one.label for one in other.operators()] == ["me"]
    assert other.operator(token, NOW_MS) is None
    other.close()


def test_tokens_that_do_not_hold_cost_the_same_work(registry: Registry) -> None:
    """Unknown, revoked and expired: the same statements, in the same order."""
    good, old, out = (
        registry.new_operator("lead", label, NOW_MS, lifetime_ms)
        for label, lifetime_ms in (("good", HOUR_MS), ("old", 1), ("out", HOUR_MS))
    )
    registry.revoke_operator("out")
    seen = {}
    for token in (good, old, out, "co1." + "A" * 27, "", "x" * 4000):
        seen[token] = statements(registry, lambda token=token: registry.operator(token, NOW_MS + 9))
    assert len(seen[good]) == 1
    assert {tuple(found) for found in seen.values()} == {tuple(seen[good])}


def test_invitations_that_do_not_hold_cost_the_same_work(registry: Registry) -> None:
    used = registry.invite(FEDERATION, "used", NOW_MS, HOUR_MS)
    registry.redeem(FEDERATION, used, "site-1", key_of(1), NOW_MS)
    old = registry.invite(FEDERATION, "old", NOW_MS, 1)
    other = registry.invite(OTHER, "other", NOW_MS, HOUR_MS)
    gone = registry.invite(FEDERATION, "gone", NOW_MS, HOUR_MS)
    registry.invite(FEDERATION, "gone", NOW_MS, HOUR_MS)  # in its place

    def redeem(secret: str) -> None:
        with pytest.raises(BadTokenError):
            registry.redeem(FEDERATION, secret, "site-2", key_of(2), NOW_MS + 9)

    seen = [
        statements(registry, lambda secret=secret: redeem(secret))
        for secret in (used, old, other, gone, "A" * 27)
    ]
    assert len(seen[0]) >= 3
    assert seen == [seen[0]] * len(seen)


def statements(registry: Registry, act: Callable[[], object]) -> list[str]:
    """What the database was asked, without the values."""
    told: list[str] = []
    with registry._database.writing() as writer, registry._database.reading() as reader:
        connections = (writer, reader)
    for connection in connections:
        connection.set_trace_callback(lambda text: told.append(re.sub(r"'[^']*'", "?", text)))
    act()
    for connection in connections:
        connection.set_trace_callback(None)
    return told


def test_registry_of_format_1_is_brought_up_to_date(path: Path) -> None:
    """Everything stays but operators' tokens, which were for everything and for ever."""
    old = sqlite3.connect(path)
    for statement in SCHEMA_1:
        old.execute(statement)
    old.execute("PRAGMA user_version=1")
    old.execute("INSERT INTO settings VALUES ('identity', 'abc')")
    old.execute("INSERT INTO federations VALUES ('f1', 'heart', 'heart', 5)")
    old.execute("INSERT INTO operators VALUES (x'00', 'local', 'admin', 5, NULL)")
    old.commit()
    old.close()
    registry = Registry(path)
    assert registry.identity() == "abc"
    assert [row.name for row in registry.federations()] == ["heart"]
    assert registry.operators() == []
    token = registry.new_operator("admin", "local", NOW_MS, HOUR_MS)
    registry.close()
    again = Registry(path)
    assert again.operator(token, NOW_MS) is not None
    with again._database.reading() as run:
        assert run.execute("PRAGMA user_version").fetchone()[0] == FORMAT
    again.close()


SCHEMA_1 = (
    "CREATE TABLE settings (name TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT",
    """CREATE TABLE federations (
        id TEXT PRIMARY KEY, name TEXT NOT NULL UNIQUE, tenant TEXT NOT NULL,
        created_ms INTEGER NOT NULL) STRICT""",
    """CREATE TABLE studies (
        federation TEXT NOT NULL, plan TEXT NOT NULL, task TEXT NOT NULL,
        bundle TEXT NOT NULL, lock TEXT NOT NULL, added_ms INTEGER NOT NULL,
        PRIMARY KEY (federation, plan, task)) STRICT""",
    """CREATE TABLE invites (
        hash BLOB PRIMARY KEY, federation TEXT NOT NULL, name TEXT NOT NULL,
        created_ms INTEGER NOT NULL, expires_ms INTEGER NOT NULL,
        used_ms INTEGER, site TEXT) STRICT""",
    """CREATE TABLE sites (
        id TEXT PRIMARY KEY, federation TEXT NOT NULL, name TEXT NOT NULL, key BLOB NOT NULL,
        seat INTEGER, enrolled_ms INTEGER NOT NULL, revoked_ms INTEGER,
        certificate_serial TEXT, words TEXT NOT NULL, certificate TEXT) STRICT""",
    "CREATE UNIQUE INDEX site_names ON sites (federation, name) WHERE revoked_ms IS NULL",
    "CREATE UNIQUE INDEX site_keys ON sites (federation, key)",
    "CREATE UNIQUE INDEX site_seats ON sites (federation, seat) WHERE seat IS NOT NULL",
    """CREATE TABLE answers (
        site TEXT NOT NULL, nonce TEXT NOT NULL, request_digest TEXT NOT NULL,
        status INTEGER NOT NULL, body BLOB NOT NULL, kept_ms INTEGER NOT NULL,
        PRIMARY KEY (site, nonce)) STRICT""",
    "CREATE INDEX answer_times ON answers (kept_ms)",
    """CREATE TABLE notes (
        site TEXT PRIMARY KEY, seen_ms INTEGER NOT NULL, objection TEXT,
        own_size INTEGER NOT NULL, cosignature TEXT NOT NULL) STRICT""",
    """CREATE TABLE operators (
        hash BLOB PRIMARY KEY, label TEXT NOT NULL UNIQUE, role TEXT NOT NULL,
        created_ms INTEGER NOT NULL, expires_ms INTEGER) STRICT""",
)


# ---- storage -------------------------------------------------------------------------


def test_everything_is_there_after_closing(registry: Registry, path: Path) -> None:
    row = join(registry, "charite", 1)
    registry.close()
    again = Registry(path)
    assert again.sites(FEDERATION) == [row]
    again.close()


def test_file_that_is_no_database_is_told_of(path: Path) -> None:
    path.write_bytes(b"this is not a database, whatever its name says" * 100)
    with pytest.raises(CorruptStoreError):
        Registry(path)


def test_damage_inside_is_told_of(registry: Registry, path: Path) -> None:
    join(registry, "charite", 1)
    registry.close()
    raw = bytearray(path.read_bytes())
    raw[4096:] = os.urandom(len(raw) - 4096)
    path.write_bytes(raw)
    with pytest.raises(CorruptStoreError):
        Registry(path).sites(FEDERATION)


def test_newer_format_is_refused(registry: Registry, path: Path) -> None:
    registry.close()
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version=99")
    connection.close()
    with pytest.raises(StoreFailedError, match="format 99"):
        Registry(path)


def test_folder_that_is_not_there_is_told_of(tmp_path: Path) -> None:
    with pytest.raises(StoreFailedError):
        Registry(tmp_path / "nowhere" / "registry.sqlite")


def test_file_system_without_a_journal_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database.os, "open", lambda *_: os.dup(0))
    with pytest.raises(StoreFailedError, match="cannot keep promises"):
        Registry(Path(":memory:"))


def test_busy_file_is_told_of_and_nothing_is_changed(
    registry: Registry, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "_BUSY_S", 0.05)
    impatient = Registry(path)
    blocker = sqlite3.connect(path, isolation_level=None)
    blocker.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreFailedError, match="locked"):
        impatient.new_operator("lead", "me", NOW_MS, HOUR_MS)
    assert impatient.operators() == []  # readers do not wait
    blocker.execute("ROLLBACK")
    impatient.new_operator("lead", "me", NOW_MS, HOUR_MS)
    blocker.close()
    impatient.close()


def test_name_is_not_erased_while_somebody_still_reads_it(
    registry: Registry, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    join(registry, "charite", 1)
    monkeypatch.setattr(database, "_BUSY_S", 0.05)
    impatient = Registry(path)
    reader = sqlite3.connect(path, isolation_level=None)
    reader.execute("BEGIN")
    assert reader.execute("SELECT name FROM sites").fetchall() == [("charite",)]
    with pytest.raises(StoreFailedError, match="busy"):
        impatient.erase_site_name("site-1")
    reader.close()
    impatient.erase_site_name("site-1")
    assert b"charite" not in on_disk(path)
    impatient.close()


def test_file_that_stays_locked_is_not_opened(
    registry: Registry, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "_BUSY_S", 0.05)
    blocker = sqlite3.connect(path, isolation_level=None)
    blocker.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreFailedError, match="locked"):
        Registry(path)
    blocker.close()


def test_failed_change_leaves_nothing_behind(registry: Registry) -> None:
    def change() -> None:
        with registry._database.writing() as run:
            run.execute("INSERT INTO settings VALUES ('a', 'b')")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        change()
    with registry._database.reading() as run:
        assert run.execute("SELECT count(*) FROM settings").fetchone()[0] == 0


def test_reader_writes_nothing(registry: Registry) -> None:
    with pytest.raises(StoreFailedError, match="readonly"), registry._database.reading() as run:
        run.execute("DELETE FROM federations")


def test_commits_are_forced_to_the_disk(registry: Registry) -> None:
    with registry._database.writing() as run:
        assert run.execute("PRAGMA synchronous").fetchone()[0] == 2
        assert run.execute("PRAGMA journal_mode").fetchone()[0] == "wal"


def test_threads_share_a_registry(registry: Registry) -> None:
    troubles: list[ConsortiumError] = []

    def work(number: int) -> None:
        try:
            join(registry, f"name-{number}", number)
            registry.sites(FEDERATION)
        except ConsortiumError as error:
            troubles.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(1, 17)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not troubles
    assert len(registry.sites(FEDERATION)) == 16
