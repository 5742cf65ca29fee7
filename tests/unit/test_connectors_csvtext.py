"""CSV taken apart: line by line and many lines at once, with the same fields."""

from __future__ import annotations

import csv

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from feedq.records.csvtext import CsvFormat, CsvReader, MalformedLine
from tests.records import as_line, csv_records

ABC = ("a", "b", "c")
READER = CsvReader(CsvFormat(fields=ABC))
DIALECTS = [(",", '"'), ("\t", '"'), ("||", "'"), (";", ""), ("é", "“")]


def reader(delimiter: str, quote: str) -> CsvReader:
    return CsvReader(CsvFormat(fields=ABC, delimiter=delimiter, quote=quote))


@pytest.mark.parametrize(
    ("record", "fields"),
    [
        (b"1,2,3", [b"1", b"2", b"3"]),
        (b",,", [None, None, None]),
        (b'"",,""', [b"", None, b""]),
        (b'"a,b","say ""hi""",""""', [b"a,b", b'say "hi"', b'"']),
        (b' "a" ,5" pipe,x"y"', [b' "a" ', b'5" pipe', b'x"y"']),
        (b"\\N,NULL,\xff", [b"\\N", b"NULL", b"\xff"]),
        (b'a\n,"b\n",\r', [b"a\n", b"b\n", b"\r"]),
    ],
)
def test_a_record_is_taken_apart(record: bytes, fields: list[bytes | None]) -> None:
    assert READER.read(record) == fields


@pytest.mark.parametrize(
    ("record", "why"),
    [
        (b"", "1 field, and source.csv.fields names 3"),
        (b"1,2", "2 fields, and source.csv.fields names 3"),
        (b'1,2,3,""', "4 fields, and"),
        (b'1,2,"3', "a quote is not closed"),
        (b'1,2,"3""', "a quote is not closed"),
        (b'1,"2" ,3', "text after the closing quote of field 2"),
    ],
)
def test_a_malformed_record_says_why(record: bytes, why: str) -> None:
    with pytest.raises(MalformedLine, match=why):
        READER.read(record)


@given(rows=st.lists(st.lists(st.text(max_size=5), min_size=3, max_size=3), min_size=1, max_size=4))
def test_what_the_standard_library_writes_is_read_back(rows: list[list[str]]) -> None:
    for row in rows:
        written: list[str] = []
        # Always quoted, so that an empty text is one.
        csv.writer(Written(written), quoting=csv.QUOTE_ALL, lineterminator="").writerow(row)
        fields = READER.read("".join(written).encode(errors="surrogatepass"))
        assert fields == [text.encode(errors="surrogatepass") for text in row]


class Written:
    """A file for `csv.writer`."""

    def __init__(self, texts: list[str]) -> None:
        self.write = texts.append


@given(data=st.data(), dialect=st.sampled_from(DIALECTS))
def test_many_lines_at_once_have_the_fields_that_each_has(
    data: st.DataObject, dialect: tuple[str, str]
) -> None:
    at_once = reader(*dialect)
    good = csv_records(*dialect, len(ABC)).filter(as_line)
    records = data.draw(st.lists(good | st.binary(max_size=9).filter(as_line), min_size=1, max_size=5))
    columns = at_once.columns(b"".join(r + b"\n" for r in records), [2, 0])
    if columns is not None:
        rows = [at_once.read(record) for record in records]
        assert [column.split(b"\n") for column in columns] == [
            [row[place] or b"" for row in rows] for place in (2, 0)
        ]
        # An empty line stands for null, and for nothing else.
        assert all(field != b"" for row in rows for field in row)


@pytest.mark.parametrize("lines", [b"1,,3\n", b'"1,2",,"3"\n4,5,6\n', b"1,2,3\n" * 500])
def test_lines_that_are_alike_are_taken_at_once(lines: bytes) -> None:
    assert READER.columns(lines, [0]) is not None


@pytest.mark.parametrize(
    "lines",
    [
        b"1,2,3\n1,2\n",
        b'1,"2,3\n4",5,6\n',
        b'1,2,"3\n4"\n',
        b'1,"",3\n',
        b'1,"2"x,3\n',
        b'1,2,"3"\r\n',
        b'1,"\xff",3\n',
    ],
)
def test_lines_that_are_not_alike_are_left_to_be_read_one_by_one(lines: bytes) -> None:
    assert READER.columns(lines, [0]) is None


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"fields": []}, "at least 1"),
        ({"fields": ["a", "a"]}, "'a' is there twice"),
        ({"delimiter": ""}, "at least one character"),
        ({"delimiter": r"\n"}, "no line break"),
        ({"delimiter": r"\q"}, "unknown escape"),
        ({"quote": "''"}, "at most 1"),
        ({"quote": "\n"}, "line break"),
        ({"quote": "|", "delimiter": "||"}, "must not be part of source.csv.delimiter"),
    ],
)
def test_a_format_that_cannot_be_read_is_refused(options: dict[str, object], why: str) -> None:
    with pytest.raises(ValidationError, match=why):
        CsvFormat.model_validate({"fields": ["a"], **options})
