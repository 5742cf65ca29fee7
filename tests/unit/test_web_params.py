"""What an address asks for, and the address that asks for it."""

from __future__ import annotations

from urllib.parse import parse_qs

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedq.control.store.feed_listing import OFFSET_MAX, PAGE_MAX, Query, Sort
from feedq.core.model import Status
from feedq.errors import InvalidInput
from feedq.web.params import SEARCH_MAX, address, parse_query

LIMIT = 200
words = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=SEARCH_MAX)
queries = st.builds(
    Query,
    search=words.map(str.strip) | st.just(""),
    status=st.none() | st.sampled_from(Status),
    worker=st.none() | words,
    tenant=st.none() | words,
    labels=st.sampled_from([(), (("team", "till"),), (("team", "till"), ("region", "eu=1"))]),
    connector=st.none() | words,
    match=st.none() | words,
    failing=st.booleans(),
    sort=st.sampled_from(Sort),
    descending=st.booleans(),
    limit=st.integers(1, PAGE_MAX),
    offset=st.integers(0, OFFSET_MAX),
)


def parse(text: str) -> Query:
    given_arguments = parse_qs(text.removeprefix("?"), keep_blank_values=True)
    return parse_query(lambda name: given_arguments.get(name, [None])[0], limit=LIMIT)


@given(queries)
def test_an_address_asks_for_what_it_was_made_from(query: Query) -> None:
    assert parse(address(query, usual_limit=LIMIT, offset=query.offset)) == query


@given(queries, st.sampled_from(Status))
def test_another_filter_begins_at_the_first_page(query: Query, status: Status) -> None:
    assert parse(address(query, usual_limit=LIMIT, status=status)).offset == 0


def test_an_address_without_arguments_asks_for_all_feeds_by_name() -> None:
    assert parse("") == Query(limit=LIMIT)
    assert address(Query(limit=LIMIT), usual_limit=LIMIT) == "?"


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("status=running", "status='running'"),
        ("sort=password", "sort='password'"),
        ("order=up", "order='up'"),
        ("limit=0", "limit='0'"),
        ("limit=1001", "from 1 to 1000"),
        ("limit=-1", "limit='-1'"),
        ("offset=1e9", "offset='1e9'"),
        ("label=team", "label='team'"),
        ("offset=99999999999999999999", "offset="),
        ("offset=%C2%B2", "offset='²'"),
        ("limit=1_0", "limit='1_0'"),
    ],
)
def test_a_wrong_argument_is_named(text: str, named: str) -> None:
    with pytest.raises(InvalidInput) as raised:
        parse(text)
    assert named in str(raised.value)


def test_a_search_is_cut_at_the_length_of_a_name() -> None:
    assert parse("search=" + "x" * 10_000).search == "x" * SEARCH_MAX
