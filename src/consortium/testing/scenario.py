"""Scenarios: what a federation does, told in sentences and played on the real core.

    # A late update is refused
    Given a federation of A, B and C
    And a plan with quorum 2, target 3 and duration 1 hour
    When a round opens at 09:00
    And A and B send updates at 09:20
    And it is 10:01
    Then the round is AGGREGATING
    When C sends an update at 10:02
    Then it is refused as DeadlineExpiredError

`Given` and `When` act, `Then` looks, `And` does what the line before it did. An act may end
with a time, `at 09:10` or `at 09:10 on day 2`; otherwise the clock stands still. A refusal
that no `Then` names before the next act fails the story. The sentences are the decorated
functions of `sentences`; any other is an error. Every fact goes through the codec.
"""

from __future__ import annotations

import re
from pathlib import Path

from consortium.testing.sentences import ACTS, LOOKS
from consortium.testing.story import TIME, Story, StoryError, Table, read_time

__all__ = ["Story", "StoryError", "play", "tell"]


def play(path: Path) -> Story:
    """Play the story in a file; raises `StoryError` at the first line that is not true."""
    return tell(path.read_text(encoding="utf-8"), path.name)


def tell(text: str, name: str) -> Story:
    """Play a story. `name` is for messages."""
    story, table = Story(), None
    for number, line in enumerate(text.splitlines(), start=1):
        sentence = line.strip()
        if not sentence or sentence.startswith("#"):
            continue
        try:
            table = _play_line(story, sentence, table)
        except StoryError as error:
            raise StoryError(f"{name}:{number}: {sentence}\n    {error}") from None
    if story.refusal is not None:
        raise StoryError(f"{name}: the last act was refused: {story.refusal}")
    return story


def _play_line(story: Story, sentence: str, last: Table | None) -> Table:
    word, _, rest = sentence.partition(" ")
    table = {"Given": ACTS, "When": ACTS, "Then": LOOKS, "And": last}.get(word)
    if table is None:
        raise StoryError("a line begins with Given, When, Then or, not first, And")
    if table is ACTS:
        if story.refusal is not None:
            raise StoryError(f"what came before was refused: {story.refusal}")
        rest = _set_clock(story, rest)
    for pattern, act in table:
        if match := pattern.fullmatch(rest):
            act(story, *match.groups())
            return table
    raise StoryError("unknown sentence")


def _set_clock(story: Story, sentence: str) -> str:
    match = re.fullmatch(rf"(.*) at ({TIME})", sentence)
    if match is None:
        return sentence
    story.now_ms = read_time(match[2])
    return match[1]
