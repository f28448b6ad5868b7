"""Downloads: whole, in part, and not at all."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256

import pytest
from starlette.datastructures import Headers

from consortium.coordinator.files import Asked, asked_range
from consortium.core.ids import Digest
from consortium.wire.signing import sign
from tests.coordinator.wired import Answered, Site, Wired, wire


@pytest.fixture(scope="module")
def wired(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Wired]:
    with wire(tmp_path_factory.mktemp("files")) as found:
        yield found


@pytest.fixture(scope="module")
def sites(wired: Wired) -> list[Site]:
    return wired.in_training()


@pytest.fixture(scope="module")
def base(sites: list[Site]) -> str:
    return str(sites[0].invitation()["base"])


@pytest.fixture(scope="module")
def model(sites: list[Site], base: str) -> bytes:
    return sites[0].call("GET", f"/v1/blobs/{base}").body


def get(site: Site, digest: str, method: str = "GET", **headers: str) -> Answered:
    more = {name.replace("_", "-"): value for name, value in headers.items()}
    return site.call(method, f"/v1/blobs/{digest}", more=more)


def test_whole_file_has_its_digest(model: bytes, base: str) -> None:
    assert sha256(model).hexdigest() == base
    assert len(model) > 1_200_000


def test_whole_file_says_what_it_is(sites: list[Site], base: str, model: bytes) -> None:
    told = get(sites[0], base)
    assert told.status == 200
    assert told.headers["content-length"] == str(len(model))
    assert told.headers["etag"] == f'"{base}"'
    assert told.headers["accept-ranges"] == "bytes"
    assert "content-range" not in told.headers


@pytest.mark.parametrize("start", [0, 1, 32_768, 100_001])
def test_rest_from_a_byte_on(sites: list[Site], base: str, model: bytes, start: int) -> None:
    told = get(sites[0], base, Range=f"bytes={start}-")
    assert told.status == 206
    assert told.body == model[start:]
    assert told.headers["content-range"] == f"bytes {start}-{len(model) - 1}/{len(model)}"


@pytest.mark.parametrize(("start", "last"), [(0, 0), (5, 9), (40_000, 90_000), (7, 10**15)])
def test_one_range(sites: list[Site], base: str, model: bytes, start: int, last: int) -> None:
    told = get(sites[0], base, Range=f"bytes={start}-{last}")
    assert told.status == 206
    assert told.body == model[start : last + 1]


def test_range_behind_the_end(sites: list[Site], base: str, model: bytes) -> None:
    told = get(sites[0], base, Range=f"bytes={len(model)}-")
    assert (told.status, told.code) == (416, "E0810")
    assert told.headers["content-range"] == f"bytes */{len(model)}"


@pytest.mark.parametrize(
    "range_", ["bytes=0-1,4-5", "bytes=-5", "bytes=9-5", "lines=1-2", "bytes=a-", "bytes=1"]
)
def test_other_ranges_get_everything(
    sites: list[Site], base: str, model: bytes, range_: str
) -> None:
    told = get(sites[0], base, Range=range_)
    assert (told.status, told.body) == (200, model)


def test_if_range_of_this_version_gets_the_range(
    sites: list[Site], base: str, model: bytes
) -> None:
    told = get(sites[0], base, Range="bytes=10-", If_Range=f'"{base}"')
    assert (told.status, told.body) == (206, model[10:])


def test_if_range_of_another_version_gets_everything(
    sites: list[Site], base: str, model: bytes
) -> None:
    told = get(sites[0], base, Range="bytes=10-", If_Range='"other"')
    assert (told.status, told.body) == (200, model)


def test_head_tells_the_size_and_sends_nothing(sites: list[Site], base: str, model: bytes) -> None:
    told = get(sites[0], base, "HEAD")
    assert (told.status, told.body) == (200, b"")
    assert told.headers["content-length"] == str(len(model))
    assert get(sites[0], base).status == 200  # the connection goes on


def test_blob_of_another_site_is_like_one_that_is_not_there(
    wired: Wired, sites: list[Site]
) -> None:
    data = sites[1].update()
    sites[1].upload(data)
    assert sites[1].submit(data).status == 200
    digest = sha256(data).hexdigest()
    held = get(sites[0], digest)
    nowhere = get(sites[0], "0" * 64)
    assert (held.status, held.code) == (nowhere.status, nowhere.code) == (404, "E0602")
    assert held.body.replace(digest[:16].encode(), b"0" * 16) == nowhere.body


@pytest.mark.parametrize("digest", ["x", "0" * 63, "0" * 65, "A" * 64, "..%2f..%2fetc%2fpasswd"])
def test_what_is_no_digest_is_refused(sites: list[Site], digest: str) -> None:
    told = get(sites[0], digest)
    assert told.status in (404, 422)
    assert told.code == "E0810"


def test_blob_that_is_no_longer_there(wired: Wired, sites: list[Site], base: str) -> None:
    path = wired.office.desk_of(sites[0].row).blobs.path(Digest(bytes.fromhex(base)))
    away = path.rename(path.with_suffix(".away"))
    told = get(sites[0], base)
    away.rename(path)
    assert (told.status, told.code) == (404, "E0602")
    assert get(sites[0], base).status == 200


def test_download_that_is_cut_leaves_the_server_in_peace(
    wired: Wired, sites: list[Site], base: str, model: bytes
) -> None:
    for _ in range(5):
        connection = wired.connect(sites[2].context())
        path = f"/v1/blobs/{base}"
        connection.request("GET", path, headers=sign(sites[2].line("GET", path), sites[2].key))
        response = connection.getresponse()
        assert response.read(1000) == model[:1000]
        connection.close()
        response.close()
    assert get(sites[2], base).body == model


@pytest.mark.parametrize(
    ("range_", "asked"),
    [
        ("", Asked(0, 10, is_part=False)),
        ("bytes=0-", Asked(0, 10, is_part=True)),
        ("bytes=9-", Asked(9, 10, is_part=True)),
        ("bytes=10-", None),
        ("bytes=10-12", None),
        ("bytes=3-3", Asked(3, 4, is_part=True)),
        ("bytes=3-2", Asked(0, 10, is_part=False)),
    ],
)
def test_ranges_of_ten_bytes(range_: str, asked: Asked | None) -> None:
    assert asked_range(Headers({"range": range_}), 10, '"tag"') == asked


def test_empty_file_has_no_range() -> None:
    assert asked_range(Headers({"range": "bytes=0-"}), 0, '"tag"') is None
    assert asked_range(Headers({}), 0, '"tag"') == Asked(0, 0, is_part=False)
