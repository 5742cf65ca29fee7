"""JSON pointers, with the examples of RFC 6901."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedq.core.model import JSON
from feedq.records.pointer import (
    MISSING,
    PLACES_MAX,
    TextPointers,
    is_json,
)
from tests.fakes.json_pointer import compile_pointer

RFC_DOCUMENT: JSON = {
    "foo": ["bar", "baz"],
    "": 0,
    "a/b": 1,
    "c%d": 2,
    "e^f": 3,
    "g|h": 4,
    "i\\j": 5,
    'k"l': 6,
    " ": 7,
    "m~n": 8,
}

names = st.text(max_size=5) | st.sampled_from(["~", "/", "~1", "0", "-", "01"])
documents: st.SearchStrategy[JSON] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=12,
)


@pytest.mark.parametrize(
    ("pointer", "value"),
    [
        ("", RFC_DOCUMENT),
        ("/foo", ["bar", "baz"]),
        ("/foo/0", "bar"),
        ("/", 0),
        ("/a~1b", 1),
        ("/c%d", 2),
        ("/e^f", 3),
        ("/g|h", 4),
        ("/i\\j", 5),
        ('/k"l', 6),
        ("/ ", 7),
        ("/m~0n", 8),
    ],
)
def test_the_examples_of_the_rfc(pointer: str, value: JSON) -> None:
    assert compile_pointer(pointer)(RFC_DOCUMENT) == value


@pytest.mark.parametrize(
    "pointer", ["/foo/2", "/foo/-", "/foo/00", "/foo/-1", "/foo/bar", "/bar", "/foo/0/0", "//"]
)
def test_what_is_not_there_is_missing(pointer: str) -> None:
    assert compile_pointer(pointer)(RFC_DOCUMENT) is MISSING


@pytest.mark.parametrize("text", ["seq", "a/b", " /a", "/~", "/a~2", "/~~0"])
def test_what_is_no_pointer_is_refused_with_its_text(text: str) -> None:
    with pytest.raises(ValueError, match="is no JSON pointer"):
        compile_pointer(text)


def escape(name: str) -> str:
    return "/" + name.replace("~", "~0").replace("/", "~1")


@given(documents)
def test_every_value_of_a_document_is_found_by_its_path(document: JSON) -> None:
    def check(pointer: str, value: JSON) -> None:
        assert compile_pointer(pointer)(document) == value
        if isinstance(value, dict):
            for name, item in value.items():
                check(pointer + escape(name), item)
        if isinstance(value, list):
            for index, item in enumerate(value):
                check(f"{pointer}/{index}", item)

    check("", document)


@given(documents, st.lists(st.lists(names, max_size=3), max_size=4), st.booleans())
def test_in_a_text_the_same_is_found_as_in_the_document(
    document: JSON, paths: list[list[str]], is_spaced: bool
) -> None:
    pointers = ["".join(map(escape, path)) for path in paths]
    text = msgspec.json.encode(document)
    if is_spaced:
        text = msgspec.json.format(text)
    found = TextPointers(pointers).find(b" " + text + b"\n" if is_spaced else text)
    parsed = [MISSING if each is MISSING else msgspec.json.decode(each) for each in found]
    assert parsed == [compile_pointer(pointer)(document) for pointer in pointers]


def test_in_a_text_places_far_behind_are_found_too() -> None:
    text = msgspec.json.encode({"a": list(range(2 * PLACES_MAX))})
    far = 2 * PLACES_MAX - 1
    assert TextPointers(["/a/1", f"/a/{far}", f"/a/{far + 1}"]).find(text) == [b"1", b"%d" % far, MISSING]
    assert TextPointers([f"/a/{PLACES_MAX - 1}"]).find(text) == [b"%d" % (PLACES_MAX - 1)]


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b" ",
        b"{",
        b'{"a": 1} x',
        b'{"a": 1,}',
        b"nul",
        b"1 2",
        b'{"b": ' + b"[" * 10**6 + b"]" * 10**6 + b"}",
    ],
)
def test_what_is_no_json_or_too_deep_for_a_parser_is_told(text: bytes) -> None:
    assert not is_json(text)
    with pytest.raises(ValueError, match=r"."):
        TextPointers(["/a"]).find(text)
