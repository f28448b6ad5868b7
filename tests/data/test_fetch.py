"""Fetching public data: from a publisher on loopback, in every way that it can go wrong."""

from __future__ import annotations

import io
import os
import socket
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from consortium.data.fetch import Source, cache_folder, fetch, sums
from consortium.errors import SiteDataError
from tests.data.made import digests, write, zipped
from tests.data.server import Publisher, publisher

FILES = {"one.txt": b"1 2 3\n", "two.txt": b"4 5 6\n"}


@pytest.fixture
def shop(monkeypatch: pytest.MonkeyPatch) -> Iterator[Publisher]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with publisher() as told:
        told.body = zipped(FILES)
        yield told


def source_of(told: Publisher) -> Source:
    return Source("small", told.url, digests(FILES), instead="something made up", max_bytes=5000)


def written(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("*")}


def test_files_are_fetched_checked_and_written(shop: Publisher, tmp_path: Path) -> None:
    assert fetch(source_of(shop), tmp_path / "here") == tmp_path / "here"
    assert written(tmp_path / "here") == FILES


def test_the_cache_is_used_where_no_folder_is_given(
    shop: Publisher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert fetch(source_of(shop)) == tmp_path / "consortium" / "small"


@pytest.mark.parametrize("value", ["", "relative/path"])
def test_the_cache_is_in_the_home_folder_by_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", value)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "consortium"


def test_files_that_are_there_are_not_fetched_again(shop: Publisher, tmp_path: Path) -> None:
    fetch(source_of(shop), tmp_path)
    fetch(source_of(shop), tmp_path)
    assert len(shop.asked) == 1


def test_only_what_is_missing_is_written(shop: Publisher, tmp_path: Path) -> None:
    before = (write(tmp_path, {"one.txt": FILES["one.txt"]}) / "one.txt").stat().st_mtime_ns
    fetch(source_of(shop), tmp_path)
    assert (tmp_path / "one.txt").stat().st_mtime_ns == before
    assert written(tmp_path) == FILES


def test_a_file_put_there_that_is_another_is_refused_and_kept(
    shop: Publisher, tmp_path: Path
) -> None:
    write(tmp_path, {**FILES, "two.txt": b"mine"})
    with pytest.raises(SiteDataError, match=r"two\.txt is not the published file"):
        fetch(source_of(shop), tmp_path)
    assert (tmp_path / "two.txt").read_bytes() == b"mine"


def test_files_are_found_in_a_zip_in_the_zip(shop: Publisher, tmp_path: Path) -> None:
    shop.body = zipped({"inner.zip": zipped(FILES), "readme.txt": b"hello"})
    fetch(source_of(shop), tmp_path)
    assert written(tmp_path) == FILES


def test_the_right_one_of_two_files_of_one_name_is_taken(shop: Publisher, tmp_path: Path) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for folder, body in (("old", b"no"), ("new", FILES["one.txt"]), ("odd", b"neither")):
            archive.writestr(f"{folder}/one.txt", body)
        archive.writestr("two.txt", FILES["two.txt"])
    shop.body = buffer.getvalue()
    fetch(source_of(shop), tmp_path)
    assert written(tmp_path) == FILES


def test_a_path_in_the_zip_decides_nothing(shop: Publisher, tmp_path: Path) -> None:
    shop.body = zipped(FILES, folder="../../")
    fetch(source_of(shop), tmp_path / "a" / "b")
    assert written(tmp_path / "a" / "b") == FILES
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a"]


def test_progress_ends_with_all_bytes(shop: Publisher, tmp_path: Path) -> None:
    told: list[tuple[int, int | None]] = []
    fetch(source_of(shop), tmp_path, progress=lambda done, total: told.append((done, total)))
    assert told[-1] == (len(shop.body), len(shop.body))


def test_progress_without_a_known_length_says_so(shop: Publisher, tmp_path: Path) -> None:
    shop.has_length = False
    told: list[tuple[int, int | None]] = []
    fetch(source_of(shop), tmp_path, progress=lambda done, total: told.append((done, total)))
    assert told[-1] == (len(shop.body), None)


# ---- what goes wrong: always an error, never a file -----------------------------------


def refused(told: Publisher, folder: Path, message: str) -> SiteDataError:
    with pytest.raises(SiteDataError, match=message) as caught:
        fetch(source_of(told), folder, timeout_s=5)
    assert not folder.exists() or not written(folder)
    return caught.value


def test_another_checksum_is_refused_and_nothing_written(shop: Publisher, tmp_path: Path) -> None:
    shop.body = zipped({**FILES, "two.txt": b"changed"})
    refused(shop, tmp_path / "x", r"two\.txt is not the published file: another sha256")


def test_a_file_that_the_zip_lacks_is_named(shop: Publisher, tmp_path: Path) -> None:
    shop.body = zipped({"one.txt": FILES["one.txt"]})
    refused(shop, tmp_path / "x", r"two\.txt is not in it")


def test_not_found_says_what_else_can_be_done(shop: Publisher, tmp_path: Path) -> None:
    shop.status = 404
    error = refused(shop, tmp_path / "x", f"{shop.url} answers 404")
    assert error.hint == (
        f"put one.txt, two.txt into {tmp_path / 'x'} by hand, or use something made up"
    )


def test_a_download_cut_short_is_refused(shop: Publisher, tmp_path: Path) -> None:
    shop.cut_at = 50
    refused(shop, tmp_path / "x", f"stopped after 50 of {len(shop.body)} bytes")


def test_nobody_listening_is_an_error_with_the_address(tmp_path: Path) -> None:
    with socket.socket() as bound:  # bound and not listening: nobody else gets the port
        bound.bind(("127.0.0.1", 0))
        told = Publisher(url=f"http://127.0.0.1:{bound.getsockname()[1]}/set.zip")
        refused(told, tmp_path / "x", f"{told.url} cannot be reached")


def test_somebody_who_never_answers_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/set.zip"
        source = source_of(Publisher(url=url))
        with pytest.raises(SiteDataError, match="cannot be reached"):
            fetch(source, tmp_path, timeout_s=0.2)


def test_an_answer_that_is_not_http_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shop: Publisher
) -> None:
    shop.status = 99999  # the status line is not HTTP's
    refused(shop, tmp_path / "x", "cannot be reached")


def test_more_bytes_than_the_set_can_have_are_refused(shop: Publisher, tmp_path: Path) -> None:
    shop.body = bytes(6000)
    refused(shop, tmp_path / "x", "sends more than 5000 bytes")


@pytest.mark.parametrize(
    "body",
    [
        b"<html>moved</html>",
        zipped(FILES)[:-30],
        zipped({"one.txt": bytes(100_000)}),  # small as a zip, large unpacked
        zipped({"inner.zip": b"no zip"}),
        zipped(FILES).replace(b"\x08\x00", b"\x63\x00"),  # a method that there is not
    ],
)
def test_what_cannot_be_unpacked_is_refused(shop: Publisher, tmp_path: Path, body: bytes) -> None:
    shop.body = body
    refused(shop, tmp_path / "x", "is not a zip that can be read")


def test_a_zip_three_deep_is_not_looked_into(shop: Publisher, tmp_path: Path) -> None:
    shop.body = zipped({"a.zip": zipped({"b.zip": zipped(FILES)})})
    refused(shop, tmp_path / "x", r"one\.txt is not in it")


def test_a_folder_that_cannot_be_written_is_an_error(shop: Publisher, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(SiteDataError, match="cannot be written"):
        fetch(source_of(shop), tmp_path / "file")


def test_a_disk_that_fails_leaves_no_temporary_file(
    shop: Publisher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    refused(shop, tmp_path, r"one\.txt cannot be written: No space left")


def test_a_folder_that_may_not_be_entered_is_an_error(
    shop: Publisher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def deny(path: Path) -> bool:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "is_file", deny)
    with pytest.raises(SiteDataError, match="cannot be read: Permission denied"):
        fetch(source_of(shop), tmp_path)


def test_a_file_that_cannot_be_read_is_an_error(
    shop: Publisher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetch(source_of(shop), tmp_path)

    def deny(path: Path, mode: str) -> io.BytesIO:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", deny)
    with pytest.raises(SiteDataError, match="cannot be read: Permission denied"):
        fetch(source_of(shop), tmp_path)


def test_an_address_of_another_kind_is_not_opened(tmp_path: Path) -> None:
    archive = tmp_path / "set.zip"
    archive.write_bytes(zipped(FILES))
    source = source_of(Publisher(url=archive.as_uri()))
    with pytest.raises(SiteDataError, match="only http and https"):
        fetch(source, tmp_path / "x")


def test_sums_are_read_as_sha256sum_prints_them() -> None:
    assert sums("  ab12  one.txt\n  cd34  two+.txt\n") == {"one.txt": "ab12", "two+.txt": "cd34"}
