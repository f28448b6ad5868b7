"""The stories in tests/scenarios, played on the real core; and that a wrong story fails."""

from __future__ import annotations

import re
from pathlib import Path
from textwrap import dedent

import pytest

from consortium.core.codec import decode
from consortium.core.federation import replay
from consortium.testing import scenario
from consortium.testing.scenario import StoryError, play, tell
from consortium.testing.sentences import ACTS, LOOKS

STORIES = sorted((Path(__file__).parent / "scenarios").glob("*.txt"))


@pytest.mark.parametrize("path", STORIES, ids=lambda path: path.stem)
def test_story(path: Path) -> None:
    story = play(path)
    assert replay([decode(record) for record in story.records]) == story.state


def test_there_are_stories_and_each_has_a_title() -> None:
    assert len(STORIES) >= 10
    for path in STORIES:
        assert path.read_text(encoding="utf-8").startswith("# "), path.name


def test_every_sentence_is_told_in_some_story() -> None:
    lines = [line for path in STORIES for line in path.read_text(encoding="utf-8").splitlines()]
    told = [re.sub(r"^(Given|When|Then|And) ", "", line) for line in lines]
    told += [re.sub(r" at \d\d:\d\d( on day \d+)?$", "", line) for line in told]
    for pattern, _ in (*ACTS, *LOOKS):
        assert any(pattern.fullmatch(line) for line in told), pattern.pattern


def test_story_in_the_documentation_is_true() -> None:
    assert scenario.__doc__ is not None
    tell(scenario.__doc__.split("\n\n")[1], "documentation")


# ---- a story that is not true, or not a story ---------------------------------------

OPENING = """\
Given a federation of A, B and C
And a plan with quorum 3, target 3, judged by loss and duration 1 hour
When a round opens at 09:00
"""


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("Then A and B are invited", "the invited: expected A and B, found A, B and C"),
        ("Then the round is COMPLETED", "the round: expected COMPLETED, found TRAINING"),
        ("Then the deadline is 10:30", "expected 10:30 on day 1, found 10:00 on day 1"),
        ("Then the members are A", "the members: expected A, found nobody"),
        ("Then the coordinator owes Screen", "what is owed: expected Screen, found WakeAt"),
        ("Then A is asked to evaluate", "A is asked: expected to evaluate, found to train"),
        ("Then the receipt of A says counted", "the receipt: expected counted, found nothing"),
        ("Then it is refused as OnHoldError", "the refusal: expected OnHoldError, found none"),
        ("Then nothing changes", "the news: expected none, found SelectionStarted, SitesInvited"),
        ("Then round 2 is open", "what is open: expected round 2, found round 1"),
        ("Then no round is open", "what is open: expected no round, found round 1"),
        ("Then the model is version 1", "the version: expected 1, found 0"),
        ("Then the model is version 0 of 4", "the newest version: expected 4, found 0"),
        ("Then the round is TRAINING because NO_QUORUM", "expected NO_QUORUM, found none"),
        ("Then the round is TRAINING with outcome kept", "expected kept, found none"),
        ("Then the evidence is 1 for the candidate and 2 for the base", "found none"),
        ("Then the next round is due at 11:00", "expected 11:00 on day 1, found 09:00 on day 1"),
        ("Then the federation has finished because STOPPED", "expected STOPPED, found none"),
        ("Then the round was nice", "unknown sentence"),
        ("Then A sends an update", "unknown sentence"),
        ("When A is invited", "unknown sentence"),
        ("When A sends an update at noon", "unknown sentence"),
        ("When A measures 0.1 for the candidate and 0.2 for the base", "no candidate yet"),
        ("When Z sends an update", "nobody introduced Z"),
        ("When the update of A passes its checks", "A has submitted nothing"),
        ("When A reports the failure BOREDOM", "there is no Failure BOREDOM"),
        ("When the screen excludes A for ENVY", "there is no Fault ENVY"),
        ("But A sends an update", "a line begins with Given, When, Then or"),
    ],
)
def test_wrong_line_is_named_with_what_was_found(line: str, message: str) -> None:
    with pytest.raises(StoryError) as error:
        tell(f"{OPENING}{line}\n", "wrong.txt")
    assert str(error.value).startswith(f"wrong.txt:4: {line}\n")
    assert message in str(error.value)


def test_refusal_that_the_story_does_not_expect_fails_it() -> None:
    twice = f"{OPENING}When a round opens at 09:01\n"
    with pytest.raises(StoryError, match=r"wrong\.txt: the last act was refused: round 1 is open"):
        tell(twice, "wrong.txt")
    with pytest.raises(StoryError, match=r"wrong\.txt:5: When it is 09:30\n.*was refused"):
        tell(f"{twice}When it is 09:30\n", "wrong.txt")


@pytest.mark.parametrize(
    ("story", "message"),
    [
        ("And a round opens", "a line begins with"),
        ("Given a plan with luck", "a plan has no 'luck'"),
        ("Then the round is TRAINING", "there has been no round"),
    ],
)
def test_story_that_begins_wrongly_is_refused(story: str, message: str) -> None:
    with pytest.raises(StoryError, match=message):
        tell(dedent(story), "wrong.txt")
