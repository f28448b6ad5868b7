"""A site's directory: what is kept, for whom, and what is refused."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from consortium.bundle import Bundle
from consortium.core.ids import Digest
from consortium.errors import (
    CorruptStoreError,
    NotEnrolledError,
    StoreFailedError,
    UsageError,
)
from consortium.site.home import HERE, SiteHome, is_home
from tests.site.homes import WHO, enrolled

TASK = Digest(b"\7" * 32)
BUNDLE = Bundle((("lib/more.py", b"x = 1\n"), ("task.py", b"import lib.more\n")))


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_folder_without_a_sheet_is_no_home(tmp_path: Path) -> None:
    assert not is_home(tmp_path)
    with pytest.raises(NotEnrolledError) as caught:
        SiteHome.open(tmp_path)
    assert caught.value.exit_code == 4 and caught.value.hint == "consortium join TOKEN"


def test_a_home_that_joining_did_not_finish_is_no_home_and_keeps_its_key(tmp_path: Path) -> None:
    first = SiteHome.prepare(tmp_path / "home")
    assert not is_home(first.path)
    assert SiteHome.prepare(tmp_path / "home").key.public == first.key.public


def test_what_joining_gave_is_read_back(tmp_path: Path) -> None:
    home = enrolled(tmp_path / "deep" / "home", data="/records.csv", seed=3)
    again = SiteHome.open(home.path)
    assert is_home(home.path)
    assert again.enrolment == WHO.model_copy(update={"data": "/records.csv", "seed": 3})
    assert again.key.public == home.key.public
    assert again.certificate_file.read_text() == "certificate"
    assert again.authority_file.read_text() == "authority"


def test_a_home_is_not_prepared_for_a_second_site(tmp_path: Path) -> None:
    home = enrolled(tmp_path / "home")
    with pytest.raises(UsageError):
        SiteHome.prepare(home.path)


def test_secrets_are_for_their_owner_alone(tmp_path: Path) -> None:
    previous = os.umask(0)
    try:
        home = enrolled(tmp_path / "home")
        home.own_seed()
    finally:
        os.umask(previous)
    assert _mode(home.path) == _mode(home.path / "keys") == 0o700
    for name in ("site.toml", "keys/site.key", "keys/site.pem", "keys/own.seed"):
        assert _mode(home.path / name) == 0o600, name


def test_a_sheet_that_others_can_read_is_refused(tmp_path: Path) -> None:
    home = enrolled(tmp_path / "home")
    (home.path / "site.toml").chmod(0o644)
    with pytest.raises(StoreFailedError):
        SiteHome.open(home.path)


@pytest.mark.parametrize(
    "text",
    ["not toml", "", 'name = "north"\n', "\xff", "seed = " + "9" * 5000, "words = " + "[" * 5000],
    ids=["words", "empty", "part", "bytes", "digits", "depth"],
)
def test_a_sheet_that_joining_did_not_write_is_refused(tmp_path: Path, text: str) -> None:
    home = enrolled(tmp_path / "home")
    (home.path / "site.toml").write_bytes(text.encode("latin-1"))
    with pytest.raises(CorruptStoreError):
        SiteHome.open(home.path)


def test_an_unknown_key_in_the_sheet_is_refused(tmp_path: Path) -> None:
    home = enrolled(tmp_path / "home")
    with (home.path / "site.toml").open("a") as file:
        file.write("trusted = true\n")
    with pytest.raises(CorruptStoreError):
        SiteHome.open(home.path)


def test_records_can_move_and_so_can_the_coordinator(tmp_path: Path) -> None:
    home = enrolled(tmp_path / "home")
    home.change(data=tmp_path / "new.csv")
    home.change(url="https://other:1")
    found = SiteHome.open(home.path).enrolment
    assert (found.data, found.url) == (str(tmp_path / "new.csv"), "https://other:1")
    assert home.enrolment == found


def test_the_private_key_for_tls_is_the_key_that_signs(tmp_path: Path) -> None:
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    home = enrolled(tmp_path / "home")
    loaded = load_pem_private_key(home.key_file.read_bytes(), None)
    assert loaded.public_key().public_bytes_raw() == home.key.public  # type: ignore[union-attr]


def test_the_own_number_is_drawn_once(tmp_path: Path) -> None:
    home = enrolled(tmp_path / "home")
    assert home.own_seed() == SiteHome.open(home.path).own_seed()
    assert home.own_seed() != enrolled(tmp_path / "other").own_seed()


def test_receipts_are_kept_by_round(tmp_path: Path) -> None:
    home = enrolled(tmp_path / "home")
    assert home.receipt(4) is None
    home.keep_receipt(4, "proof\n")
    assert home.receipt(4) == "proof\n"
    assert (home.path / "receipts" / "round-4.proof").read_text() == "proof\n"


def test_what_was_kept_becomes_the_sites_own_when_its_update_counted(tmp_path: Path) -> None:
    home = enrolled(tmp_path / "home")
    home.states.keep(HERE, 1, b"one")
    home.settle(1, is_counted=True)
    home.settle(1, is_counted=True)
    home.states.keep(HERE, 2, b"two")
    home.settle(2, is_counted=False)
    assert home.states.current(HERE) == b"one"
    assert home.states.pending(HERE, 2) is None


# ---- tasks --------------------------------------------------------------------------


def test_a_task_is_unpacked_as_plain_files(tmp_path: Path) -> None:
    home = enrolled(tmp_path / "home")
    folder = home.unpack(BUNDLE, TASK)
    assert folder == home.path / "tasks" / TASK.hex()
    assert (folder / "lib" / "more.py").read_bytes() == b"x = 1\n"
    assert (folder / "task.py").read_bytes() == b"import lib.more\n"


@pytest.mark.parametrize("harm", ["other bytes", "one more file", "one less", "a link"])
def test_files_that_were_changed_are_made_anew(tmp_path: Path, harm: str) -> None:
    home = enrolled(tmp_path / "home")
    folder = home.unpack(BUNDLE, TASK)
    stamp = (folder / "lib" / "more.py").stat().st_ino
    assert home.unpack(BUNDLE, TASK) == folder
    assert (folder / "lib" / "more.py").stat().st_ino == stamp, "what is right is left alone"
    match harm:
        case "other bytes":
            (folder / "task.py").write_text("import os\n")
        case "one more file":
            (folder / "os.py").write_text("")
        case "one less":
            (folder / "task.py").unlink()
        case "a link":
            (tmp_path / "same").write_bytes(b"import lib.more\n")
            (folder / "task.py").unlink()
            (folder / "task.py").symlink_to(tmp_path / "same")
    home.unpack(BUNDLE, TASK)
    found = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.py"))
    assert found == ["lib/more.py", "task.py"]
    assert (folder / "task.py").read_bytes() == b"import lib.more\n"
    assert not (folder / "task.py").is_symlink()


def test_a_killed_unpacking_leaves_nothing_that_counts(tmp_path: Path) -> None:
    home = enrolled(tmp_path / "home")
    half = home.path / "tasks" / f"{TASK.hex()}.999999999.new"
    half.mkdir()
    (half / "task.py").write_text("half")
    home.unpack(BUNDLE, TASK)
    assert [path.name for path in (home.path / "tasks").iterdir()] == [TASK.hex()]


# ---- one agent ----------------------------------------------------------------------

_HOLD = """
import sys
from pathlib import Path
from consortium.site.home import SiteHome
home = SiteHome.open(Path(sys.argv[1]))
home.lock()
print("locked", flush=True)
sys.stdin.read()
"""


def test_one_agent_runs_in_a_home_and_its_death_frees_it(tmp_path: Path) -> None:
    home = enrolled(tmp_path / "home")
    command = [sys.executable, "-c", _HOLD, str(home.path)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, **pipes) as other:  # type: ignore[call-overload]
        assert other.stdout.readline() == b"locked\n"
        with pytest.raises(StoreFailedError):
            home.lock()
        other.kill()
    home.lock()
    home.close()


def test_commands_work_beside_a_locked_home(tmp_path: Path) -> None:
    home = enrolled(tmp_path / "home")
    home.lock()
    other = SiteHome.open(home.path)
    other.log.append("site", 0, [b"x"])
    assert list(home.log.read("site")) == [b"x"]
    other.close()
    home.close()
