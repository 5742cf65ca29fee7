"""Verbs that commands have done: all pages of a list, and an answer that never comes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from feedq.cli.doing import ApiConnection
from feedq.cli.invocation import Invocation
from feedq.errors import Unavailable
from feedq.verbs.feeds import FeedAction, act_on_feeds, list_feeds
from feedq.verbs.registry import OF, Page, Verb, encode


class Pages(Invocation):
    """A list of so many numbers, of which a page is asked for."""

    def __init__(self, total: int) -> None:
        super().__init__()
        self.total = total
        self.asked: list[str | None] = []

    def do_named(self, verb: Verb, given: Mapping[str, Any]) -> Page[int]:
        self.asked.append(given["cursor"])
        first = int(given["cursor"] or 0)
        last = min(first + given["limit"], self.total)
        return Page(list(range(first, last)), str(last) if last < self.total else None)


def test_a_list_is_asked_for_page_by_page_as_far_as_it_is_wanted() -> None:
    for total, asked in ((0, [None]), (500, [None]), (1_200, [None, "500", "1000"])):
        pages = Pages(total)
        found: list[Any] = list(pages.pages(list_feeds))
        assert (found, pages.asked) == (list(range(total)), asked)
    pages = Pages(1_200)
    assert [one for one, _ in zip(pages.pages(list_feeds), range(3), strict=False)] == [*range(3)]
    assert pages.asked == [None]


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
    verb = OF[act_on_feeds]
    arguments = verb.arguments(action=FeedAction.PAUSE, select={"names": ["a"]})
    with pytest.raises(Unavailable, match="broke off its answer; check what it has done"):
        BrokenOff().do(verb, arguments, lambda done, total: heard.append((done, total)))
    assert heard == [(3, None)]
