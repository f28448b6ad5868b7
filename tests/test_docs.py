"""Documents under test: generated parts, snippets, links, decisions and the spec's example.

Every page's blocks run in order in a folder of their own. A `python` block runs as it
stands; a `console` block runs the commands behind `$` and compares what they print, where
`…` stands for anything, and may fail only where an error is shown. `<!-- file: name -->`
writes the block below it to that file, `<!-- output -->` compares the block below it with
what the last python block printed. `$ NAME=$(command)` keeps what the command prints, for
`$NAME` in later commands of the page. A command with `--data` runs in a process of its own,
because it keeps its directory locked until it ends.
"""

from __future__ import annotations

import importlib.util
import io
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, get_args

import pytest

import consortium.drive.driver as driver
from consortium.cli import main
from consortium.core import account_facts as a
from consortium.core import facts as f
from consortium.core import site_facts as s
from consortium.core.codec import account_kinds, decode, encode, fact_kinds
from consortium.core.federation import decide, evolve, is_legal
from consortium.core.state import Federation
from consortium.core.tables import Standing

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
_BLOCK = re.compile(
    r"(?:<!-- (?P<mark>file: (?P<file>\S+)|output) -->\n)?"
    r"^```(?P<kind>\w+)\n(?P<body>.*?)^```$",
    re.DOTALL | re.MULTILINE,
)
_RUNS = ("$ consortium", "$ cd ", "$ ls", "$ cat ", "$ KEY=")


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def _generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gen_docs", ROOT / "scripts" / "gen_docs.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


gen_docs = _generator()


# ---- generated parts ----------------------------------------------------------------


def test_generated_parts_are_what_the_code_says(capsys: pytest.CaptureFixture[str]) -> None:
    assert gen_docs.main(["--check"]) == 0, capsys.readouterr().out


def test_a_changed_part_is_found() -> None:
    page = "<!-- generated: stages -->\n\nsomething else\n\n<!-- end -->\n"
    assert "waits for an invitation" in gen_docs.rendered(page)


def test_every_fact_has_a_cause_on_the_page() -> None:
    every = (*get_args(f.Fact), *get_args(s.SiteFact), *get_args(a.AccountFact))
    assert list(gen_docs.CAUSES) == list(every)


def test_facts_have_the_causes_that_the_page_says(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: set[tuple[type[Any], str]] = set()

    def recording(state: Federation, item: Any) -> Any:
        found = decide(state, item)
        seen.update((type(fact), type(item).__name__) for fact in found)
        return found

    monkeypatch.setattr(driver, "decide", recording)
    for record, losses in ((False, 0), (True, 0), (True, 2), (False, 3)):
        _simulate(record=record, losses=losses)
    seen |= {(type(fact), type(item).__name__) for _, item, told in _example() for fact in told}
    endings = {*_causes(f.RoundFailed), "Verdict", "Released"}
    for kind, cause in seen:
        is_ending = "the end of a round" in gen_docs.CAUSES[kind] and cause in endings
        assert cause in _causes(kind) or is_ending, (kind, cause)
    assert len(seen) >= 20


def _causes(kind: type[Any]) -> set[str]:
    return set(re.split(r"[,;] ", gen_docs.CAUSES[kind]))


def _example() -> Iterator[Any]:
    yield from gen_docs.example()


def _simulate(*, record: bool, losses: int) -> None:
    import numpy as np

    import consortium as co

    @co.numpy_task(
        start=lambda _: {"w": np.zeros(1, np.float32)}, evaluate=lambda *_: ({"loss": 1.0}, 1)
    )
    def nothing(_: co.Site, shared: dict[str, Any]) -> tuple[dict[str, Any], int]:
        return shared, 1

    plan = co.parse_plan("[federation]\nrounds = 2\nquorum = 3\n[selection]\ntarget = 4\n")
    sites = [co.SimulatedSite(f"site-{number}", None) for number in range(6)]
    options = co.Options(record=record, drops=lambda _, name: int(name[-1]) < losses)
    co.simulate(nothing, plan, sites, seed=1, options=options)


# ---- snippets -----------------------------------------------------------------------


@dataclass
class _Reader:
    """Does what a page says, in order."""

    folder: Path
    names: dict[str, Any] = field(default_factory=dict)
    variables: dict[str, str] = field(default_factory=dict)
    printed: str = ""

    def follow(self, text: str) -> None:
        for block in _BLOCK.finditer(text):
            body, kind = block["body"], block["kind"]
            if block["file"]:
                path = Path.cwd() / block["file"]
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(body)
            elif block["mark"]:
                _compare(body, self.printed)
            elif kind == "python":
                self._python(body)
            elif kind == "console" and body.startswith(_RUNS):
                self._console(body)

    def _python(self, body: str) -> None:
        out = io.StringIO()
        with redirect_stdout(out):
            exec(compile(body, "<snippet>", "exec"), self.names)
        self.printed = out.getvalue()

    def _console(self, body: str) -> None:
        for part in re.split(r"^\$ ", body, flags=re.MULTILINE)[1:]:
            command, _, expected = part.partition("\n")
            for name, value in self.variables.items():
                command = command.replace(f"${name}", value)
            if kept := re.match(r"([A-Z]+)=\$\((.*?)\)", command):
                code, printed = _run(["sh"], kept[2])
                assert code == 0, printed
                self.variables[kept[1]] = printed.strip()
                continue
            code, printed = _run(shlex.split(command, comments=True), command)
            is_meant = "error[" in expected or '"ok": false' in expected
            assert code == 0 or is_meant, f"$ {command}\n{printed}"
            if expected.strip():
                _compare(expected, printed)


def _run(words: list[str], command: str) -> tuple[int, str]:
    if words[0] == "cd":
        os.chdir(words[1])
        return 0, ""
    if words[0] != "consortium":
        done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
        return done.returncode, done.stdout + done.stderr
    if "--data" in words:
        return _run_alone(words)
    out, before = io.StringIO(), sys.argv
    sys.argv = words
    try:
        with redirect_stdout(out), redirect_stderr(out):
            main()
    except SystemExit as exit_:
        return int(exit_.code or 0), out.getvalue()
    finally:
        sys.argv = before
    return 0, out.getvalue()


def _run_alone(words: list[str]) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-u", "-m", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout


def _compare(expected: str, printed: str) -> None:
    lines = [re.escape(line.rstrip()).replace("…", ".*") for line in expected.strip().splitlines()]
    pattern = "".join("(?s:.*?)" if line == ".*" else f"{line}\n" for line in lines)
    told = "".join(f"{line.rstrip()}\n" for line in printed.strip().splitlines())
    assert re.fullmatch(pattern, told), f"expected\n{expected}\nbut it printed\n{printed}"


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_snippets_do_what_the_page_says(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    _Reader(tmp_path).follow(page.read_text())


def test_a_wrong_output_is_found() -> None:
    with pytest.raises(AssertionError):
        _compare("one\n…\nfour\n", "one\ntwo\nfive\n")
    _compare("one\n…\nf…\n", "one\ntwo\nfive\n")


# ---- links and decisions ------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)", text):
        path = (page.parent / target).resolve() if target else page
        assert path.exists(), f"{_name(page)}: {target}"
        if anchor:
            assert anchor in _anchors(path.read_text()), f"{_name(page)}: {target}#{anchor}"


def _anchors(text: str) -> set[str]:
    titles = re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


def test_every_test_that_the_threat_model_names_exists() -> None:
    page = (ROOT / "docs" / "explanation" / "threat-model.md").read_text(encoding="utf-8")
    named = re.findall(r"`([\w/]+\.py)(?:::(\w+))?`", page)
    assert len(named) > 30
    for file, name in named:
        path = ROOT / "tests" / file
        assert path.is_file(), file
        assert not name or f"def {name}(" in path.read_text(encoding="utf-8"), name


def test_every_page_is_reached_from_the_index() -> None:
    linked: set[Path] = set()
    queue = [ROOT / "docs" / "README.md"]
    while queue:
        page = queue.pop()
        if page in linked:
            continue
        linked.add(page)
        targets = re.findall(r"\]\((?!https?:)([^)#\s]+\.md)", page.read_text())
        queue += [(page.parent / target).resolve() for target in targets]
    assert set(PAGES[1:]) <= linked


DECISIONS = sorted((ROOT / "docs" / "adr").glob("0*.md"))


@pytest.mark.parametrize("page", DECISIONS, ids=_name)
def test_a_decision_has_its_sections_on_one_page(page: Path) -> None:
    text = page.read_text()
    assert re.match(rf"# {page.name[:4]}\. \S", text)
    titles = re.findall(r"^## (.+)$", text, flags=re.MULTILINE)
    assert titles == ["Context", "Choice", "Consequences"]
    assert len(text.split()) < 500


def test_decisions_are_numbered_without_gaps_and_listed() -> None:
    numbers = [int(page.name[:4]) for page in DECISIONS]
    assert numbers == list(range(len(numbers)))
    index = (ROOT / "docs" / "adr" / "README.md").read_text()
    assert re.findall(r"\((0\d{3}\S+?\.md)\)", index) == [page.name for page in DECISIONS]


# ---- the spec -----------------------------------------------------------------------


def _example_records() -> list[tuple[str, bytes]]:
    text = (ROOT / "docs" / "spec" / "facts.md").read_text()
    found = re.findall(r"^ {0,3}\d+ {2}(\w+\(.+\))\n((?: {6}[0-9a-f]+\n)+)", text, re.MULTILINE)
    return [(shown, bytes.fromhex("".join(raw.split()))) for shown, raw in found]


def test_the_example_decodes_to_what_it_says_and_encodes_back() -> None:
    for shown, record in _example_records():
        fact = decode(record)
        assert gen_docs.show(fact) == shown
        assert encode(fact) == record


def test_the_example_is_one_whole_legal_round() -> None:
    state = Federation()
    for _, record in _example_records():
        fact = decode(record)
        assert is_legal(state, fact)
        evolve(state, fact)
    assert state.standing is Standing.FINISHED
    assert state.ended is not None and len(state.ended.members) == 3


def test_every_log_has_kinds_of_its_own_and_reserved_ones_are_free() -> None:
    assert not [kind for kind in fact_kinds() if 64 <= kind < 72 or 96 <= kind < 128]
    assert all(64 <= kind < 72 for kind in account_kinds())
    assert all(kind.KIND >= 128 for kind in get_args(s.SiteFact))
