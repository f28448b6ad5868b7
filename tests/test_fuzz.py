"""Every parser takes any bytes: a value, or an error that it is known for; soon, and in little
memory. 25 inputs a parser and a way to make them here; `make soak` has 500."""

from __future__ import annotations

import ast
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import suppress

import pytest
from hypothesis import given, seed, settings
from hypothesis import strategies as st

from tests.parsers import Parser, parsers
from tests.test_layers import module_name, sources

PARSERS = parsers()
INPUTS = settings(max_examples=settings().max_examples // 4)
MOST_S = 2.0  # on a machine that does something else besides
MOST_BYTES = 32 << 20
# What has broken parsers before, of all formats that we have.
TOKENS = (
    b"", b"\0", b"\xff", b"\xef\xbb\xbf", b"\n", b"\r\n", b"\n\n", b"-", b"+1", b"1_0", b"1e999",
    b"NaN", b"Infinity", b"-0", b"9" * 25, b"9" * 5000, b"[" * 3000, b"{" * 3000, b'{"a":' * 3000,
    b'"', b"\\ud800", b"null", b"true", b"[]", b"{}", b"../", b"/", b"%00", b"=", b"\xe2\x80\x94 ",
    b"\xef\xbc\x91", b"\xe2\x80\xae", b"a = [[", b"[a]\n[a]\n", b"2021-02-30", b"\x7f" * 9,
    b"\na = " + b"9" * 5000, b"\na = " + b"[" * 3000, b"\x80" * 9 + b"\x01",
    b"\xff" * 9 + b"\x7f", (1 << 40).to_bytes(8, "little"),
)  # fmt: skip


@st.composite
def mutated(draw: st.DrawFn, good: tuple[bytes, ...]) -> bytes:
    """A good input with a few things done to it."""
    data = draw(st.sampled_from(good))
    for _ in range(draw(st.integers(1, 3))):
        start = draw(st.integers(0, len(data)))
        stop = draw(st.integers(start, min(len(data), start + 16)))
        other = draw(st.one_of(st.sampled_from(TOKENS), st.binary(max_size=4)))
        data = draw(st.sampled_from((data[:start] + other + data[stop:], data[:start], data * 2)))
    return data


def tried(parser: Parser, data: bytes) -> None:
    """Raises what the parser must not."""
    begun = time.monotonic()
    with suppress(*parser.errors):
        parser.read(data)
    took_s = time.monotonic() - begun
    assert took_s < MOST_S, f"{took_s:.1f} s for {len(data)} bytes"


def measured(parser: Parser, data: bytes) -> None:
    """The same, and how much memory it takes: slow."""
    tracemalloc.start()
    try:
        tried(parser, data)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < MOST_BYTES, f"{peak >> 20} MiB for {len(data)} bytes"


@pytest.mark.parametrize("name", PARSERS)
def test_any_bytes(name: str) -> None:
    @seed(1)
    @INPUTS
    @given(st.binary(max_size=200))
    def check(data: bytes) -> None:
        tried(PARSERS[name], data)

    check()


@pytest.mark.parametrize("name", PARSERS)
def test_good_input_that_was_changed(name: str) -> None:
    @seed(1)
    @INPUTS
    @given(mutated(PARSERS[name].good))
    def check(data: bytes) -> None:
        tried(PARSERS[name], data)

    check()


@pytest.mark.parametrize("name", PARSERS)
def test_what_has_broken_parsers_before(name: str) -> None:
    parser = PARSERS[name]
    for token in TOKENS:
        for good in parser.good:
            for data in (token, token + good, good + token):
                tried(parser, data)
            measured(parser, good[: len(good) // 2] + token)


def test_planted_parser_is_caught() -> None:
    broken = Parser((), lambda data: data.decode(), (b"x",))
    with pytest.raises(UnicodeDecodeError):
        tried(broken, b"\xff")
    greedy = Parser((), lambda data: bytes(MOST_BYTES + len(data)), (b"x",))
    with pytest.raises(AssertionError, match="MiB"):
        measured(greedy, b"")


# ---- a new one is noticed -----------------------------------------------------------

_NAMES = ("read_", "parse", "decode", "load", "from_canonical", "unpack", "open_")
_INPUTS = {"bytes", "str", "Path", "File", "File | memoryview", "str | Path", "Signature"}
# Not for what others wrote, and why.
EXEMPT = {
    "site.unpacked.unpack_into": "takes a bundle that was read",
    "coordinator.chains.load_chain": "takes what our authority has just made",
    "coordinator.files.open_file": "opens, reads nothing",
    "coordinator.matrix.read_table": "our own page of documentation",
    "coordinator.study.read_locked": "reads a plan and a lock, both above",
    "crypto.keyfile.read_secret": "takes any bytes",
    "data.cells.read_blocks": "tests/data/test_read.py",
    "data.read.read_csv": "tests/data/test_read.py",
    "data.read.read_table": "tests/data/test_read.py",
    "drive.lock.read_lock": "a file for parse_lock",
    "drive.runs.read_runs": "read_study and read_run, both above",
    "drive.study.load_study": "reads a plan, above, and runs the task of whoever starts it",
    "site.inference.read_features": "the site's own file; data.read",
    "tasks.load_task": "runs the task of whoever starts it",
}


def _readers(path: str, text: str) -> Iterator[str]:
    """`module.function` of every public one that is called as if it read something."""
    module = module_name(path).removeprefix("consortium.")

    def found(body: list[ast.stmt], prefix: str) -> Iterator[str]:
        for node in body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                yield from found(node.body, f"{prefix}{node.name}.")
            elif isinstance(node, ast.FunctionDef) and node.name.startswith(_NAMES):
                arguments = [one for one in node.args.args if one.arg not in ("self", "cls")]
                kinds = {ast.unparse(one.annotation) for one in arguments if one.annotation}
                if kinds & _INPUTS:
                    yield f"{module}.{prefix}{node.name}"

    yield from found(ast.parse(text).body, "")


def test_every_parser_is_listed() -> None:
    skipped = ("testing/", "torch/", "cli/study/")
    there = {
        name
        for path, text in sources()
        if not path.startswith(skipped)
        for name in _readers(path, text)
    }
    listed = {name for parser in PARSERS.values() for name in parser.names}
    missing = there - listed - EXEMPT.keys()
    assert not missing, f"list them in tests/parsers.py, or exempt them with a reason: {missing}"
    assert not {name for name in EXEMPT if name not in there}, "these are gone"


def test_planted_reader_is_noticed() -> None:
    text = "def read_new(data: bytes) -> int:\n    return 1\n"
    assert list(_readers("wire/new.py", text)) == ["wire.new.read_new"]
