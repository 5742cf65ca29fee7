"""Verbs that commands have done: all pages of a list, and an answer that never comes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from feedq.cli.doing import ApiConnection, Doing, at_server
from feedq.errors import Unavailable
from feedq.verbs.feeds import FeedAction, act_on_feeds, list_feeds
from feedq.verbs.registry import OF, Page, Told, Verb, encode


class Pages:
    """A list of so many numbers, of which a page is asked for."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.limits: list[int] = []

    def __call__(self, verb: Verb, arguments: Any, told: Told | None) -> Page[int]:
        self.limits.append(arguments.limit)
        first = int(arguments.cursor or 0)
        last = min(first + arguments.limit, self.total)
        return Page(list(range(first, last)), str(last) if last < self.total else None)


@pytest.mark.parametrize(
    ("total", "most", "limits"),
    [
        (0, None, [500]),
        (1_200, None, [500, 500, 500]),
        (1_200, 1_100, [500, 500, 100]),
        (1_200, 500, [500]),
        (1_200, 3, [3]),
        (1_200, 0, []),
    ],
)
def test_a_list_is_asked_for_page_by_page_as_far_as_it_is_wanted(
    total: int, most: int | None, limits: list[int]
) -> None:
    pages = Pages(total)
    found: list[Any] = list(Doing(pages).pages(most, list_feeds))
    assert found == list(range(total if most is None else min(most, total)))
    assert pages.limits == limits


class BrokenOff(ApiConnection):
    """Hears of progress, and of nothing else."""

    def __init__(self) -> None:
        self._url = "https://feedq.example"

    def events(self, *_: Any, **__: Any) -> Any:
        def told() -> Iterator[tuple[str, bytes]]:
            yield "progress", encode({"done": 3, "total": None})

        return told()


def test_an_answer_that_never_comes_is_an_error_and_no_success() -> None:
    heard: list[tuple[int, int | None]] = []
    ask = at_server(BrokenOff())
    verb = OF[act_on_feeds]
    arguments = verb.arguments(action=FeedAction.PAUSE, select={"names": ["a"]})
    with pytest.raises(Unavailable, match="broke its answer off; look at what it has done"):
        ask(verb, arguments, lambda done, total: heard.append((done, total)))
    assert heard == [(3, None)]
