"""Templates: only placeholders are replaced, and what replaces them is not looked at again."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedq.core.model import JSON
from feedq.records.template import compile_template, fill_in, unescape

texts = st.text(st.characters(codec="utf-8"))
HELLO = r'{"feed": {name}, "from": {cursor}}\n'


def render(text: str, *, feed: str = "acme/orders", cursor: JSON = None, **secrets: str) -> bytes:
    return fill_in(text, feed=feed, cursor=cursor, secrets=secrets)


@given(texts, st.integers() | texts | st.none())
def test_a_json_hello_stays_json_whatever_fills_it(feed: str, cursor: int | str | None) -> None:
    # A backfill asks in the name of its feed.
    asked = feed.removesuffix("~backfill")
    assert msgspec.json.decode(render(HELLO, feed=feed, cursor=cursor)) == {"feed": asked, "from": cursor}


def test_what_is_filled_in_is_not_looked_at_again() -> None:
    assert render("{token} {cursor}", cursor="{token}", token=r"{cursor}\n") == rb'{cursor}\n "{token}"'


def test_a_secret_that_is_not_utf8_goes_out_as_it_came_in() -> None:
    assert render("{token}", token=b"\xff!".decode("utf-8", "surrogateescape")) == b"\xff!"


@pytest.mark.parametrize("text", ["{}", "{ name }", '{"name"}', "{{", "{na me}", "{1}", "{name", "name}", ""])
def test_other_braces_are_literal(text: str) -> None:
    assert render(text) == text.encode()


def test_an_unknown_placeholder_is_refused_and_the_known_are_named() -> None:
    with pytest.raises(ValueError, match=r"\{tokn\} is not a placeholder; known are cursor, name, token"):
        compile_template("{tokn}", secrets={"token"})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r"\n\r\t\0", b"\n\r\t\0"),
        (r"\\n", b"\\n"),
        (r"\\", b"\\"),
        (r"\x00\xfF\x41", b"\x00\xffA"),
        ("\n", b"\n"),
        ("ä", "ä".encode()),
        ("", b""),
    ],
)
def test_escapes(text: str, expected: bytes) -> None:
    assert unescape(text) == expected


@pytest.mark.parametrize("text", [r"\q", r"\x4", r"\xzz", "\\", r"\u0041", "\\\n", r"\{name}"])
def test_an_unknown_escape_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"unknown escape .*known are"):
        compile_template(text)
