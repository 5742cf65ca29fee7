"""What the address of a page asks for, and the address that asks for it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from feedq.core.model import Status
from feedq.core.selection import Selection, SelectionOrder
from feedq.errors import InvalidInput
from feedq.verbs.feeds import list_feeds
from feedq.verbs.registry import OF, PAGE_MAX
from feedq.web.buttons import bulk_buttons
from feedq.web.params import address_of, arguments_of

VERB = OF[list_feeds]
USUAL = {"limit": 50}
words = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=60)
selections = st.builds(
    Selection,
    tenant=st.none() | words,
    labels=st.sampled_from([{}, {"team": "till"}, {"team": "till", "region": "eu=1"}]),
    worker=st.none() | words,
    statuses=st.lists(st.sampled_from(Status), unique=True).map(tuple),
    connector=st.none() | words,
    match=st.none() | words,
    failing=st.booleans(),
    unmet=st.booleans(),
    dead_letters=st.booleans(),
)
asked = st.builds(
    VERB.arguments,
    select=selections,
    text=words | st.just(""),
    order=st.sampled_from(SelectionOrder),
    reverse=st.booleans(),
    limit=st.integers(1, PAGE_MAX),
    cursor=st.none() | words,
)


def parse(text: str) -> Any:
    return arguments_of(VERB, text.removeprefix("?"), USUAL, own=("live",))


@given(asked)
def test_an_address_asks_for_what_it_was_made_from(wanted: Any) -> None:
    assert parse(address_of(wanted, USUAL, cursor=wanted.cursor)) == wanted


@given(asked, st.sampled_from(Status))
def test_another_filter_begins_at_the_first_page(wanted: Any, status: Status) -> None:
    select = Selection(statuses=(status,))
    found = parse(address_of(wanted, USUAL, select=select))
    assert found == structs.replace(wanted, select=select, cursor=None)


def test_an_address_without_arguments_asks_for_all_feeds_by_name() -> None:
    assert parse("") == parse("live=1&text=&statuses=&order=") == VERB.arguments(limit=50)
    assert address_of(VERB.arguments(limit=50), USUAL) == "?"


def test_buttons_for_all_feeds_of_a_list_need_a_filter() -> None:
    every, acme = Selection(removing=True), Selection(tenant="acme", removing=True)
    assert {one.refused for one in bulk_buttons(every, "", 6)} == {
        "This would be all feeds; choose some by a filter first."
    }
    assert {
        (one.refused, one.arguments["tenant"], len(one.arguments)) for one in bulk_buttons(acme, "", 6)
    } == {("", "acme", 1)}
    assert {one.refused for one in bulk_buttons(acme, "", 0)} == {"No feed matches."}


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("statuses=running", "running"),
        ("order=password", "password"),
        ("reverse=up", "reverse"),
        ("limit=0", "limit"),
        ("limit=501", "limit"),
        ("limit=1_0", "limit"),
        ("labels=team", "labels: 'team' must be written as key=value"),
        ("serch=x", "unknown argument 'serch'"),
    ],
)
def test_a_wrong_argument_is_named(text: str, named: str) -> None:
    with pytest.raises(InvalidInput) as raised:
        parse(text)
    assert named in str(raised.value)
