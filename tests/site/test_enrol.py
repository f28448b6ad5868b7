"""Joining with a token: whom it believes, what it keeps, and that it can be repeated."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from consortium.crypto.authority import (
    AUTHORITY_DAYS,
    SITE_DAYS,
    Authority,
    key_of_request,
    public_key_of,
    remaining_ms,
    request_certificate,
)
from consortium.crypto.recipes import SigningKey
from consortium.drive.clock import ManualClock, SystemClock
from consortium.errors import (
    BadTokenError,
    CertificateError,
    SiteDataError,
    UnreachableError,
    UsageError,
)
from consortium.site.agent import leave_marker
from consortium.site.enrol import connect, join, renew
from consortium.site.home import SiteHome, is_home
from consortium.wire.messages import Taken
from consortium.wire.token import JoinToken, new_secret
from consortium.wire.words import words_of
from tests.site.small_coordinator import AUDIENCE, SITE, Heard, Small, small_coordinator

FEDERATION, LOG_KEY = "f" * 32, SigningKey.generate().public.hex()
DAY_MS = 86_400_000
Change = Callable[[dict[str, Any]], dict[str, Any]]


def now_ms() -> int:
    return int(time.time() * 1000)


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Small]:
    folder = tmp_path / "coordinator"
    folder.mkdir()
    with small_coordinator(folder) as found:
        found.routes["POST", "/v1/enrol"] = lambda heard: (200, enrolled(found, heard))
        found.routes["POST", "/v1/renew"] = lambda heard: (200, renewed(found, heard))
        yield found


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "records.csv"
    path.write_text("age,num\n63,1\n")
    return path


def enrolled(small: Small, heard: Heard) -> dict[str, Any]:
    request = json.loads(heard.body)["certificate_request"].encode()
    words = words_of(small.authority.fingerprint, FEDERATION, key_of_request(request))
    return {
        "site": SITE,
        "audience": AUDIENCE,
        "federation": FEDERATION,
        "federation_name": "heart",
        "certificate": small.authority.issue_site(request, SITE, now_ms()).decode(),
        "log_key": LOG_KEY,
        "words": list(words),
    }


def renewed(small: Small, heard: Heard) -> dict[str, Any]:
    request = json.loads(heard.body)["certificate_request"].encode()
    return {"certificate": small.authority.issue_site(request, SITE, now_ms()).decode()}


def token_of(small: Small) -> JoinToken:
    return JoinToken(small.url, small.authority.fingerprint, FEDERATION, "charite", new_secret())


def test_site_that_joins_has_all_that_it_needs(small: Small, tmp_path: Path, data: Path) -> None:
    token = token_of(small)
    joined = join(token, tmp_path / "home", data=data, clock=SystemClock(), seed=7)
    held = SiteHome.open(tmp_path / "home").enrolment
    assert joined.is_new and joined.warnings == ()
    assert (held.name, held.site, held.audience) == ("charite", SITE, AUDIENCE)
    assert (held.data, held.seed, held.log_key) == (str(data), 7, LOG_KEY)
    assert held.words == words_of(token.authority, FEDERATION, joined.home.key.public)
    sent = json.loads(small.heard[-1].body)
    assert sent["secret"] == token.secret
    assert key_of_request(sent["certificate_request"].encode()) == joined.home.key.public


def test_certificate_is_shown_after_joining(small: Small, tmp_path: Path, data: Path) -> None:
    home = join(token_of(small), tmp_path / "home", data=data, clock=SystemClock()).home
    small.key = home.key.public
    small.routes["GET", "/v1/me"] = lambda _: (200, {})
    client = connect(home, SystemClock())
    client.call("GET", "/v1/me", reply=Taken)
    shown = small.heard[-1].peer
    assert shown is not None and public_key_of(shown) == home.key.public
    client.close()


def test_nothing_is_told_to_another_coordinator(small: Small, tmp_path: Path, data: Path) -> None:
    token = replace(token_of(small), authority="0" * 64)
    with pytest.raises(CertificateError, match="another authority"):
        join(token, tmp_path / "home", data=data, clock=SystemClock())
    assert [heard.path for heard in small.heard] == ["/v1/authority"]
    assert not (tmp_path / "home").exists()


def test_data_that_cannot_be_read_is_told_before_anything_is_sent(
    small: Small, tmp_path: Path
) -> None:
    with pytest.raises(SiteDataError, match="records"):
        join(token_of(small), tmp_path / "home", data=tmp_path / "records", clock=SystemClock())
    assert small.heard == []


def test_lost_reply_is_asked_for_again_with_the_same_key(
    small: Small, tmp_path: Path, data: Path
) -> None:
    token, good = token_of(small), small.routes["POST", "/v1/enrol"]
    small.routes["POST", "/v1/enrol"] = lambda _: (503, {"code": "E0604", "detail": "gone"})
    with pytest.raises(UnreachableError):
        join(token, tmp_path / "home", data=data, clock=SystemClock())
    assert not is_home(tmp_path / "home")
    small.routes["POST", "/v1/enrol"] = good
    join(token, tmp_path / "home", data=data, clock=SystemClock())
    first, second = (
        key_of_request(json.loads(heard.body)["certificate_request"].encode())
        for heard in small.heard
        if heard.path == "/v1/enrol"
    )
    assert first == second
    assert is_home(tmp_path / "home")


def test_joining_again_with_the_same_token_finds_what_is_there(
    small: Small, tmp_path: Path, data: Path
) -> None:
    token, other = token_of(small), tmp_path / "other.csv"
    other.write_text("age,num\n")
    join(token, tmp_path / "home", data=data, clock=SystemClock())
    count = len(small.heard)
    again = join(token, tmp_path / "home", data=other, clock=SystemClock())
    assert not again.is_new
    assert again.home.enrolment.data == str(other)
    assert len(small.heard) == count
    with pytest.raises(UsageError, match="site charite in heart"):
        join(replace(token, name="basel"), tmp_path / "home", data=data, clock=SystemClock())


def test_new_invitation_needs_a_new_home(small: Small, tmp_path: Path, data: Path) -> None:
    """The place was revoked, and the lead has invited the site again."""
    token = token_of(small)
    join(token, tmp_path / "home", data=data, clock=SystemClock())
    assert token.secret not in (tmp_path / "home" / "site.toml").read_text()
    with pytest.raises(UsageError, match="earlier place of charite in heart") as caught:
        join(token_of(small), tmp_path / "home", data=data, clock=SystemClock())
    assert "take a new folder" in caught.value.hint
    assert join(token_of(small), tmp_path / "new", data=data, clock=SystemClock()).is_new


def test_home_of_an_older_version_is_found_again(small: Small, tmp_path: Path, data: Path) -> None:
    token = token_of(small)
    home = join(token, tmp_path / "home", data=data, clock=SystemClock()).home
    sheet = home.path / "site.toml"
    lines = sheet.read_text().splitlines(keepends=True)
    sheet.write_text("".join(line for line in lines if not line.startswith("token_hash")))
    assert not join(token, tmp_path / "home", data=data, clock=SystemClock()).is_new


@pytest.mark.parametrize("code", ["E0301", "E0812", "E0814"])
def test_who_is_not_on_the_roster_has_left(
    small: Small, tmp_path: Path, data: Path, code: str
) -> None:
    """The reply to the first `site leave` got lost."""
    home = join(token_of(small), tmp_path / "home", data=data, clock=SystemClock()).home
    small.routes["POST", "/v1/leave"] = lambda _: (401, {"code": code, "detail": "unknown"})
    command = [sys.executable, "-m", "consortium", "site", "leave", "--yes"]
    done = subprocess.run(
        [*command, "--home", str(home.path)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert leave_marker(home).exists()


def test_used_token_is_told_as_such(small: Small, tmp_path: Path, data: Path) -> None:
    small.routes["POST", "/v1/enrol"] = lambda _: (403, {"code": "E0813", "detail": "used"})
    with pytest.raises(BadTokenError, match="used"):
        join(token_of(small), tmp_path / "home", data=data, clock=SystemClock())


def _of_another_key(answer: dict[str, Any]) -> dict[str, Any]:
    request = request_certificate(SigningKey.generate())
    return answer | {"certificate": Authority.make(now_ms()).issue_site(request, SITE, 0).decode()}


@pytest.mark.parametrize(
    "change",
    [
        lambda answer: answer | {"federation": "0" * 32},
        lambda answer: answer | {"words": answer["words"][::-1]},
        lambda answer: answer | {"certificate": "none"},
        _of_another_key,
    ],
)
def test_answer_that_does_not_fit_is_refused(
    small: Small, tmp_path: Path, data: Path, change: Change
) -> None:
    small.routes["POST", "/v1/enrol"] = lambda heard: (200, change(enrolled(small, heard)))
    with pytest.raises(CertificateError):
        join(token_of(small), tmp_path / "home", data=data, clock=SystemClock())
    assert not is_home(tmp_path / "home")


def test_certificate_for_another_key_of_the_same_authority_is_refused(
    small: Small, tmp_path: Path, data: Path
) -> None:
    def answer(heard: Heard) -> tuple[int, dict[str, Any]]:
        request = request_certificate(SigningKey.generate())
        other = small.authority.issue_site(request, SITE, now_ms()).decode()
        return 200, enrolled(small, heard) | {"certificate": other}

    small.routes["POST", "/v1/enrol"] = answer
    with pytest.raises(CertificateError, match="another key"):
        join(token_of(small), tmp_path / "home", data=data, clock=SystemClock())


def test_clock_that_is_off_is_told(small: Small, tmp_path: Path, data: Path) -> None:
    clock = ManualClock(now_ms() + 90_000)
    joined = join(token_of(small), tmp_path / "home", data=data, clock=clock)
    (warning,) = joined.warnings
    assert "ahead of" in warning


@pytest.mark.parametrize("days_later", [0, SITE_DAYS - 100])
def test_certificate_is_renewed_in_its_last_third(
    small: Small, tmp_path: Path, data: Path, days_later: int
) -> None:
    assert days_later < AUTHORITY_DAYS
    home = join(token_of(small), tmp_path / "home", data=data, clock=SystemClock()).home
    old = home.certificate_file.read_bytes()
    late = ManualClock(now_ms() + days_later * DAY_MS)
    small.key = home.key.public
    client = connect(home, late)
    # The coordinator issues by the real clock; what is over by then is refused.
    small.routes["POST", "/v1/renew"] = lambda heard: (
        200,
        {
            "certificate": small.authority.issue_site(
                json.loads(heard.body)["certificate_request"].encode(), SITE, late.now_ms()
            ).decode()
        },
    )
    assert renew(home, client, late) is (days_later > 0)
    new = home.certificate_file.read_bytes()
    assert (new != old) is (days_later > 0)
    assert remaining_ms(new, late.now_ms()) > (SITE_DAYS - 101) * DAY_MS
    client.close()


def test_certificate_that_is_over_is_not_shown(small: Small, tmp_path: Path, data: Path) -> None:
    home = join(token_of(small), tmp_path / "home", data=data, clock=SystemClock()).home
    small.routes["GET", "/v1/me"] = lambda _: (200, {})
    client = connect(home, ManualClock(now_ms() + (SITE_DAYS + 1) * DAY_MS))
    client.call("GET", "/v1/me", reply=Taken)
    assert small.heard[-1].peer is None
    client.close()


def test_renewal_for_another_key_is_refused(small: Small, tmp_path: Path, data: Path) -> None:
    home = join(token_of(small), tmp_path / "home", data=data, clock=SystemClock()).home
    old = home.certificate_file.read_bytes()
    late = ManualClock(now_ms() + (SITE_DAYS - 100) * DAY_MS)
    request = request_certificate(SigningKey.generate())
    other = small.authority.issue_site(request, SITE, now_ms()).decode()
    small.routes["POST", "/v1/renew"] = lambda _: (200, {"certificate": other})
    client = connect(home, late)
    with pytest.raises(CertificateError, match="another key"):
        renew(home, client, late)
    assert home.certificate_file.read_bytes() == old
    client.close()
