"""Records as sources may send them, as Hypothesis strategies: good ones, odd ones, and bad ones."""

from __future__ import annotations

from hypothesis import strategies as st

NUMBERS = [
    "0", "-0", "1.10", "1e400", "-1.5E-3", "18446744073709551616", "12345678901234567890.123", "9" * 400,
]  # fmt: skip
STRINGS = [
    "", "\\", "\\N", "\\.", "\t", "\n", "\r", "\0", "\x7f", "\u2028", "ö", "😀", '"', "'", "null", "{", "}\n{",
    "a,b",
]  # fmt: skip
NAMES = ["a", "a", "a", "b", "b", "c", "0", "1", "a_b", "b_c", "_", "x/y", "", "zz"]
SPACES = ["", "", "", " ", "\t", "\r"]
SPOILERS = [
    b"\x00", b"\x01", b"\xff", b"\xc3", b"\\ud800", b'"', b"\\", b"{", b"}", b"]", b",", b":", b"\n", b"\r",
    b"NaN", b"1 2", b"}{",
]  # fmt: skip
"""Somewhere in a record they leave little of it."""


@st.composite
def json_strings(draw: st.DrawFn) -> str:
    """As JSON has them: escaped in one of the ways that are allowed."""
    said = draw(st.sampled_from(STRINGS) | st.text(st.characters(exclude_categories=["Cs"]), max_size=6))
    return '"' + "".join(draw(st.sampled_from(_spellings(letter))) for letter in said) + '"'


def _spellings(letter: str) -> list[str]:
    units = letter.encode("utf-16-be").hex()
    escaped = "".join(f"\\u{units[n : n + 4]}" for n in range(0, len(units), 4))
    short = {"\\": r"\\", '"': r"\"", "\t": r"\t", "\n": r"\n", "\r": r"\r", "/": r"\/"}.get(letter)
    plain = letter if letter >= " " and letter not in '"\\' else None
    return [way for way in (plain, plain, plain, short, escaped) if way is not None]


@st.composite
def json_objects(draw: st.DrawFn, values: st.SearchStrategy[str]) -> str:
    """Names may be there twice."""
    space = draw(st.sampled_from(SPACES))
    names = st.sampled_from(NAMES).map(lambda name: f'"{name}"') | json_strings()
    members = draw(st.lists(st.tuples(names, values), max_size=5))
    return f"{{{space}" + f"{space},{space}".join(f"{k}:{space}{v}{space}" for k, v in members) + "}"


json_values = st.recursive(
    st.sampled_from(["null", "true", "false", *NUMBERS]) | json_strings(),
    lambda inner: json_objects(inner) | st.lists(inner, max_size=3).map(lambda v: f"[{', '.join(v)}]"),
    max_leaves=8,
)
json_records = (json_objects(json_values) | json_objects(json_values) | json_values).map(str.encode)


@st.composite
def csv_records(draw: st.DrawFn, delimiter: str, quote: str, fields: int) -> bytes:
    """Fields quoted or not, and not always as many as there should be."""
    texts = st.sampled_from([*STRINGS, "", "7", delimiter, quote, quote * 2, f"a{delimiter}", "NULL"])

    def field() -> str:
        said = draw(texts)
        needs = bool(quote) and (delimiter in said or quote in said)
        return f"{quote}{said.replace(quote, quote * 2)}{quote}" if needs or draw(st.booleans()) else said

    count = draw(st.sampled_from([fields] * 6 + [fields - 1, fields + 1]))
    return delimiter.join(field() for _ in range(count)).encode()


@st.composite
def spoiled(draw: st.DrawFn, records: st.SearchStrategy[bytes]) -> bytes:
    """A record with something in it, or gone from it, that should not be."""
    record = draw(records)
    at = draw(st.integers(0, len(record)))
    return record[:at] + draw(st.sampled_from(SPOILERS)) + record[at + draw(st.integers(0, 3)) :]


def as_line(record: bytes) -> bool:
    """Whether it can be a line of `Batch.lines`."""
    return bool(record) and not {10, 13} & set(record)
