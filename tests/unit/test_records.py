"""Bytes become records, and records tell their fields, their cursor and whether they count."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from itertools import pairwise
from time import process_time
from typing import Literal

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import ValidationError

from feedq.connectors.base import show_cursor
from feedq.connectors.tcp import PING_BYTES_MAX, Ping, PingFramer
from feedq.connectors.websocket import Ignored, Rule
from feedq.core.model import JSON
from feedq.errors import FeedMisconfigured
from feedq.records.batch import Records
from feedq.records.csvtext import CsvFormat, CsvReader, MalformedLine
from feedq.records.cursor import (
    CURSOR_BYTES_MAX,
    SMALL_BYTES,
    CursorReader,
    ascii_text,
    cursor_of,
    cursor_text,
)
from feedq.records.framing import (
    BYTE_ORDER_MARK,
    CsvFramer,
    DelimiterFramer,
    Framer,
    HeaderlessFramer,
    LengthFramer,
    LineFramer,
    Refusal,
    UnmarkedFramer,
)
from feedq.records.pointer import (
    MISSING,
    PLACES_MAX,
    Found,
    TextPointers,
    is_json,
)
from feedq.records.template import fill_in
from tests.records import csv_records

NOW = datetime(2026, 1, 1, tzinfo=UTC)

NO_LIMIT = 2**30

dense = st.lists(st.sampled_from([b"\r", b"\n", b"\r\n", b"a", b"bc", b"|", b"||"]), max_size=40).map(
    b"".join
)

streams = st.one_of(dense, st.binary(max_size=200))

delimiters = st.sampled_from([b"|", b"||", b"\n", b"aa", b"\r\n", b"a|a", b"\x00"])


@st.composite
def cut_streams(draw: st.DrawFn) -> tuple[bytes, list[bytes]]:
    """A stream, and the same in pieces."""
    stream = draw(streams)
    return stream, draw(pieces_of(stream))


def pieces_of(stream: bytes) -> st.SearchStrategy[list[bytes]]:
    def cut(places: list[int]) -> list[bytes]:
        bounds = [0, *sorted(places), len(stream)]
        return [stream[a:b] for a, b in pairwise(bounds)]

    return st.lists(st.integers(0, len(stream)), max_size=8).map(cut)


def run(framer: Framer, pieces: list[bytes]) -> tuple[list[bytes], bool]:
    """All records, and whether the stream ended over the limit."""
    records: list[bytes] = []
    for piece in pieces:
        framed = framer.push(piece)
        check_batch_invariants(framed)
        records += framed.batch(cursor=None, received_at=NOW).split()
        if framer.refusal is not None:
            return records, True
    return records, False


def check_batch_invariants(framed: Records) -> None:
    batch = framed.batch(cursor=None, received_at=NOW)
    assert batch.count == len(batch.split())
    assert bool(framed) == (batch.count > 0)
    assert all(batch.split())
    if batch.lines is not None:
        assert b"\r" not in batch.lines
        assert not batch.lines or batch.lines.endswith(b"\n")


def reference(records: list[bytes], *, limit: int) -> tuple[list[bytes], bool]:
    kept: list[bytes] = []
    for record in filter(None, records):
        if len(record) > limit:
            return kept, True
        kept.append(record)
    return kept, False


@given(cut_streams(), st.integers(1, 12) | st.just(NO_LIMIT))
def test_lines_do_not_depend_on_how_the_stream_was_cut(cut: tuple[bytes, list[bytes]], limit: int) -> None:
    stream, pieces = cut
    whole = run(LineFramer(limit), [stream])
    assert run(LineFramer(limit), pieces) == whole
    expected, oversize = reference(
        [line.removesuffix(b"\r") for line in stream.split(b"\n")[:-1]], limit=limit
    )
    assert whole[0] == expected
    assert whole[1] >= oversize


@given(cut_streams(), st.sampled_from([BYTE_ORDER_MARK, b"", BYTE_ORDER_MARK[:2]]), st.integers(0, 5))
def test_a_mark_before_the_stream_is_left_out_however_it_was_cut(
    cut: tuple[bytes, list[bytes]], mark: bytes, at: int
) -> None:
    stream, pieces = cut
    expected = stream if mark == BYTE_ORDER_MARK else mark + stream
    marked = [mark[:at], mark[at:], *pieces]
    assert run(UnmarkedFramer(LineFramer(NO_LIMIT)), marked) == run(LineFramer(NO_LIMIT), [expected])


@given(cut_streams(), delimiters, st.integers(1, 12) | st.just(NO_LIMIT))
def test_delimited_records_do_not_depend_on_how_the_stream_was_cut(
    cut: tuple[bytes, list[bytes]], delimiter: bytes, limit: int
) -> None:
    stream, pieces = cut
    whole = run(DelimiterFramer(delimiter, limit), [stream])
    assert run(DelimiterFramer(delimiter, limit), pieces) == whole
    expected, oversize = reference(stream.split(delimiter)[:-1], limit=limit)
    assert whole[0] == expected
    assert whole[1] >= oversize


class Prefix:
    """One way to write a length."""

    def __init__(
        self, size: Literal[1, 2, 4], order: Literal["big", "little"], *, counts_itself: bool
    ) -> None:
        self.size, self.order, self.counted = size, order, size if counts_itself else 0

    def framer(self, limit: int = NO_LIMIT) -> LengthFramer:
        return LengthFramer(self.size, limit, byte_order=self.order, counts_itself=self.counted > 0)

    def before(self, record: bytes) -> bytes:
        return (len(record) + self.counted).to_bytes(self.size, self.order) + record

    def reference(self, stream: bytes, *, limit: int) -> tuple[list[bytes], bool]:
        """One record after the other."""
        records: list[bytes] = []
        while len(stream) >= self.size:
            size = int.from_bytes(stream[: self.size], self.order) - self.counted
            if not 0 <= size <= limit:
                return records, True
            if len(stream) < self.size + size:
                break
            records += filter(None, [stream[self.size : self.size + size]])
            stream = stream[self.size + size :]
        return records, False


prefixes = st.builds(
    Prefix, st.sampled_from([1, 2, 4]), st.sampled_from(["big", "little"]), counts_itself=st.booleans()
)


@given(
    prefixes,
    st.lists(st.binary(max_size=20), max_size=8),
    st.data(),
    st.integers(1, 20) | st.just(NO_LIMIT),
)
def test_records_after_their_length_do_not_depend_on_how_the_stream_was_cut(
    prefix: Prefix, records: list[bytes], data: st.DataObject, limit: int
) -> None:
    # What follows the records may be the beginning of another, or garbage.
    stream = b"".join(map(prefix.before, records)) + data.draw(st.binary(max_size=6))
    expected = prefix.reference(stream, limit=limit)
    assert run(prefix.framer(limit), [stream]) == expected
    assert run(prefix.framer(limit), data.draw(pieces_of(stream))) == expected


@pytest.mark.parametrize(
    ("counts_itself", "stream", "refusal"),
    [
        (False, b"\0\0\0\2ab\0\0\0\x0b", Refusal.OVERSIZE),
        (True, b"\0\0\0\6ab\0\0\0\x03", Refusal.CORRUPT),
    ],
)
def test_a_length_that_is_too_large_or_cannot_be_one_is_noticed_before_its_record_comes(
    counts_itself: bool, stream: bytes, refusal: Refusal
) -> None:
    framer = Prefix(4, "big", counts_itself=counts_itself).framer(10)
    assert framer.push(stream) == Records(records=(b"ab",))
    assert framer.refusal is refusal


FRAMERS: dict[str, Callable[[int], Framer]] = {
    "lines": lambda limit: LineFramer(limit),
    "delimiter": lambda limit: DelimiterFramer(b"||", limit),
    "length": lambda limit: LengthFramer(1, limit, byte_order="big", counts_itself=True),
}


@pytest.mark.parametrize("kind", FRAMERS)
@given(cut=cut_streams(), limit=st.integers(1, 12))
def test_what_was_given_back_and_what_is_pending_are_the_stream(
    kind: str, cut: tuple[bytes, list[bytes]], limit: int
) -> None:
    """Whoever goes on at the first pending byte, with a larger limit, misses nothing and gets nothing twice."""
    stream, pieces = cut
    framer = FRAMERS[kind](limit)
    records: list[bytes] = []
    pushed = 0
    for piece in pieces:
        framed = framer.push(piece)
        pushed += len(piece)
        records += framed.batch(cursor=None, received_at=NOW).split()
        if framer.refusal is not None:
            break
    rest = stream[pushed - framer.pending :]
    expected, _ = run(FRAMERS[kind](NO_LIMIT), [stream])
    assert records + run(FRAMERS[kind](NO_LIMIT), [rest])[0] == expected


@pytest.mark.timeout(10)  # quadratic copying would move 137 gigabytes; this takes a tenth of a second
@pytest.mark.parametrize(
    ("framer", "begin", "end"),
    [
        (LineFramer(2**22), b"", b"\n"),
        (DelimiterFramer(b"||", 2**22), b"", b"||"),
        (Prefix(4, "big", counts_itself=False).framer(2**22), (2**22).to_bytes(4), b""),
    ],
)
def test_a_large_record_in_crumbs_takes_linear_time(framer: Framer, begin: bytes, end: bytes) -> None:
    framer.push(begin)
    for _ in range(2**16 - 1):
        assert not framer.push(b"x" * 64)
    framed = framer.push(b"x" * 64 + end)
    assert framed.batch(cursor=None, received_at=NOW).split() == (b"x" * 2**22,)


# -- headers of CSV ------------------------------------------------------------------------------------

CSV = CsvFormat(fields=("id", "the price"), header=True)


def headerless(csv: CsvFormat, stream: bytes) -> list[bytes]:
    return run(HeaderlessFramer(LineFramer(NO_LIMIT), csv), [stream])[0]


@pytest.mark.parametrize(
    "header", [b"id,the price", b'"id","the price"', b'id,"the price"', b"\xef\xbb\xbfid,the price"]
)
def test_header_lines_are_left_out_wherever_they_stand(header: bytes) -> None:
    stream = header + b"\n" + header + b"\r\n1,2\n" + header + b"\n3,the price\n" + header + b"\n"
    assert headerless(CSV, stream) == [b"1,2", b"3,the price"]


@pytest.mark.parametrize(
    "line", [b"id,the price,x", b" id,the price", b"the price,id", b"id;the price", b"id"]
)
def test_a_line_that_is_only_like_the_header_is_a_record(line: bytes) -> None:
    assert headerless(CSV, b"id,the price\n" + line + b"\n") == [line]


def test_headers_follow_the_delimiter_and_the_quote() -> None:
    csv = CsvFormat(fields=("a", "b'c"), delimiter=r"\t", quote="'", header=True)
    assert headerless(csv, b"a\t'b''c'\n'a'\t'b''c'\n\"a\"\t1\n") == [b'"a"\t1']
    unquoted = CsvFormat(fields=("a", "b"), quote="", header=True)
    assert headerless(unquoted, b'a,b\n"a",b\n') == [b'"a",b']


def test_a_header_without_a_name_harms_no_record() -> None:
    assert headerless(CsvFormat(fields=("",), header=True), b'1\n""\n2\n') == [b"1", b"2"]


@given(cut_streams())
def test_what_is_left_without_headers_does_not_depend_on_how_the_stream_was_cut(
    cut: tuple[bytes, list[bytes]],
) -> None:
    csv = CsvFormat(fields=("a", "bc"), delimiter="|", header=True)
    stream, pieces = cut
    whole = run(LineFramer(NO_LIMIT), [stream])[0]
    framer = HeaderlessFramer(LineFramer(NO_LIMIT), csv)
    headers = {b"a|bc", b'"a"|bc', b'a|"bc"', b'"a"|"bc"'}
    assert run(framer, pieces)[0] == [record for record in whole if record not in headers]


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
        (b'1, "2",3', "a quote within a field that does not begin with one"),
        (b'5" pipe,2,"3"', "a quote within a field that does not begin with one"),
    ],
)
def test_a_malformed_record_says_why(record: bytes, why: str) -> None:
    with pytest.raises(MalformedLine, match=why):
        READER.read(record)


def csv_framer(delimiter: str = ",", quote: str = '"', *, limit: int = NO_LIMIT) -> CsvFramer:
    return CsvFramer(CsvFormat(fields=ABC, delimiter=delimiter, quote=quote), limit)


@given(
    st.lists(
        st.lists(st.text('a,;"\r\n', max_size=4) | st.text(max_size=5), min_size=3, max_size=3),
        min_size=1,
        max_size=5,
    ),
    st.sampled_from(["\n", "\r\n"]),
    st.data(),
)
def test_what_the_standard_library_writes_is_read_back_however_the_stream_was_cut(
    rows: list[list[str]], line_end: str, data: st.DataObject
) -> None:
    written: list[str] = []
    # Always quoted, so that an empty text is one.
    csv.writer(Written(written), quoting=csv.QUOTE_ALL, lineterminator=line_end).writerows(rows)
    stream = "".join(written).encode(errors="surrogatepass")
    records, is_over = run(csv_framer(), data.draw(pieces_of(stream)))
    assert not is_over
    fields = [[text.encode(errors="surrogatepass") for text in row] for row in rows]
    assert [READER.read(record) for record in records] == fields


@given(
    st.data(), st.sampled_from([one for one in DIALECTS if one[1]]), st.integers(1, 12) | st.just(NO_LIMIT)
)
def test_records_of_csv_do_not_depend_on_how_the_stream_was_cut(
    data: st.DataObject, dialect: tuple[str, str], limit: int
) -> None:
    delimiter, quote = (text.encode() for text in dialect)
    tokens = st.sampled_from([quote, quote, delimiter, b"\n", b"\r\n", b"a"])
    stream = b"".join(data.draw(st.lists(tokens, max_size=40)))
    pieces = data.draw(pieces_of(stream))
    whole, in_pieces = csv_framer(*dialect, limit=limit), csv_framer(*dialect, limit=limit)
    expected = run(whole, [stream])
    assert run(in_pieces, pieces) == expected
    if not expected[1]:
        assert in_pieces.pending == whole.pending


@pytest.mark.parametrize(
    ("stream", "records", "rest"),
    [
        (b'1,ann,"see below\n7,eve,x"\n2,b,c\n', [b'1,ann,"see below\n7,eve,x"', b"2,b,c"], []),
        (b'1,"a\r\n\r\nb",\r\n2\r\n', [b'1,"a\r\n\r\nb",', b"2"], []),
        (b'5" pipe,x\n2\n', [b'5" pipe,x', b"2"], []),
        (b'a"\na","\n2\n', [b'a"', b'a","', b"2"], []),
        (b'1,"a""\n2\n""b"\n3\n', [b'1,"a""\n2\n""b"', b"3"], []),
        (b'1\n2,"open\n3\n4', [b"1"], [b'2,"open\n3\n4']),
        (b'1,"a"', [], [b'1,"a"']),
    ],
)
def test_a_record_of_csv_ends_outside_quotes_and_the_end_of_a_stream_ends_it(
    stream: bytes, records: list[bytes], rest: list[bytes]
) -> None:
    framer = csv_framer()
    assert run(framer, [stream]) == (records, False)
    assert list(framer.end(b"\n").split()) == rest
    assert framer.pending == 0


def test_a_quote_that_is_never_closed_is_bounded_and_looked_at_once() -> None:
    framer = csv_framer(limit=2**22)
    framer.push(b'1,"')
    began = process_time()
    for _ in range(2**22 // 32):
        framer.push(b"0123456789abcde\n" * 2)
    assert process_time() - began < 5, "its square would take minutes"
    assert framer.refusal is Refusal.OVERSIZE


TABLES: list[list[list[str]]] = [
    [["a", "b", "c"], ["1", "2", "3"]],
    [["first", "city"], ["Ann, Bo", "Anytown, WW"]],
    [["a", "b"], ['ha "ha" ha', '"']],
    [["a", "b"], ["one\ntwo\n", "\n"], ["\r\n", "x"]],
    [["a", "b"], ['"quoted"\nand\r\nbroken, ""', '""\n""']],
    [["a", "b"], ["1", '{"type": "Point", "coordinates": [1.5, "x"]}']],
    [["ä", "ʤ"], ["😀", "\u2028"]],
    [["a", " b "], [" 1", "2 "]],
    [["a", "b"], ["=1+1", "'"], ["\\", '\\"'], ["\t", ";|"]],
    [["a"], ["x"], ["y"]],
    [[str(number) for number in range(200)]] * 3,
]


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
def test_csv_is_read_as_rfc_4180_says_also_without_the_quotes_that_it_can_do_without(
    table: list[list[str]], line_end: str
) -> None:
    written: list[str] = []
    csv.writer(Written(written), lineterminator=line_end).writerows(table)
    sent = "".join(written).encode()
    reader = CsvReader(CsvFormat(fields=tuple(map(str, range(len(table[0]))))))
    for stream in (sent, sent.removesuffix(line_end.encode())):
        framer = csv_framer()
        pushed = [framer.push(stream[at : at + 5]) for at in range(0, len(stream), 5)]
        lines = [record for one in [*pushed, framer.end(b"\n")] for record in one.split()]
        assert [[(field or b"").decode() for field in reader.read(line)] for line in lines] == table


class Written:
    """A file for `csv.writer`."""

    def __init__(self, texts: list[str]) -> None:
        self.write = texts.append


@st.composite
def csv_batches(draw: st.DrawFn) -> tuple[list[bytes], tuple[str, str]]:
    """Records of one dialect, most of them good."""
    dialect = draw(st.sampled_from(DIALECTS))
    good = csv_records(*dialect, len(ABC))
    return draw(st.lists(good | st.binary(max_size=9), min_size=1, max_size=5)), dialect


@given(csv_batches())
@example(([b'1,"2,3\n4",5,6'], DIALECTS[0]))
@example(([b'1,"2', b'3",4,5', b"1,2,3\n4,5,6"], DIALECTS[0]))
@example(([b'1,"",3', b"1,,3"], DIALECTS[0]))
@example(([b'1,2,"3"\r'], DIALECTS[0]))
@example(([b'1,"\xff",3'], DIALECTS[0]))
@example(([b'5" pipe,"2",3'], DIALECTS[0]))
def test_many_records_at_once_have_the_fields_that_each_has(
    batch: tuple[list[bytes], tuple[str, str]],
) -> None:
    records, dialect = batch
    at_once = reader(*dialect)
    try:
        rows = [at_once.read(record) for record in records]
    except MalformedLine:
        with pytest.raises(MalformedLine):
            at_once.columns(records, [2, 0])
        return
    columns, null = at_once.columns(records, [2, 0])
    read = [[None if one == null else one for one in column] for column in columns]
    said = [[one.encode() if isinstance(one, str) else one for one in column] for column in read]
    assert said == [[row[place] for row in rows] for place in (2, 0)]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"fields": []}, "at least one field"),
        ({"fields": ["a", "a"]}, "'a' is given twice"),
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


RFC_DOCUMENT: JSON = {
    "foo": ["bar"],
    "": 0,
    "a/b": 1,
    "c%d": 2,
    "g|h": 3,
    "i\\j": 4,
    'k"l': 5,
    " ": 6,
    "m~n": 7,
}

names = st.text(max_size=5) | st.sampled_from(["~", "/", "~1", "0", "-", "01"])

documents: st.SearchStrategy[JSON] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=12,
)


def find(document: JSON, *pointers: str, is_spaced: bool = False) -> list[Found]:
    text = msgspec.json.encode(document)
    if is_spaced:
        text = b" " + msgspec.json.format(text) + b"\n"
    found = TextPointers(pointers).find(text)
    return [one if one is MISSING else msgspec.json.decode(one) for one in found]


@pytest.mark.parametrize(
    "pointer", ["/foo/1", "/foo/-", "/foo/00", "/foo/-1", "/foo/bar", "/bar", "/foo/0/0", "//"]
)
def test_what_is_not_there_is_missing(pointer: str) -> None:
    assert find(RFC_DOCUMENT, pointer) == [MISSING]


@pytest.mark.parametrize("text", ["seq", "a/b", " /a", "/~", "/a~2", "/~~0"])
def test_what_is_no_pointer_is_refused_with_its_text(text: str) -> None:
    with pytest.raises(ValueError, match="is not a JSON pointer"):
        TextPointers([text])


def escape(name: str) -> str:
    return "/" + name.replace("~", "~0").replace("/", "~1")


def paths(value: JSON, pointer: str = "") -> Iterator[tuple[str, JSON]]:
    """Everything in a document, by its path."""
    yield pointer, value
    items = enumerate(value) if isinstance(value, list) else value.items() if isinstance(value, dict) else ()
    for name, item in items:
        yield from paths(item, pointer + escape(str(name)))


@given(documents, st.lists(names, max_size=2), st.booleans())
@example(RFC_DOCUMENT, [], False)
def test_every_value_of_a_document_is_found_by_its_path_and_nothing_else(
    document: JSON, more: list[str], is_spaced: bool
) -> None:
    there = dict(paths(document))
    asked = [*there, *(pointer + escape(name) for pointer in there for name in more)]
    assert find(document, *asked, is_spaced=is_spaced) == [there.get(pointer, MISSING) for pointer in asked]


@given(documents, st.booleans())
def test_it_is_worth_looking_where_something_is_however_it_is_written(
    document: JSON, is_escaped: bool
) -> None:
    text = json.dumps(document, ensure_ascii=is_escaped).encode("utf-8", "surrogatepass")
    for pointer in dict(paths(document)):
        assert TextPointers([pointer]).may_find(text)
        assert TextPointers(["/never/there", pointer]).may_find(text)
    assert not TextPointers(["/seq", "/a/b"]).may_find(b'{"other": 1}')


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


SEQ = CursorReader("/seq")

with_cursor = st.integers() | st.text(st.characters(codec="ascii", exclude_characters="\0"))

without_cursor = st.sampled_from(
    [b"garbage", b"{", b"\xff\xfe", b'{"other": 1}', b'{"seq": null}', b"[]", b"1", b'{"seq": }']
)

records = st.lists(with_cursor | without_cursor, max_size=12)


def encode(record: int | str | bytes) -> bytes:
    return record if isinstance(record, bytes) else msgspec.json.encode({"seq": record})


def lines(*encoded: bytes) -> Records:
    return Records(lines=b"".join(record + b"\n" for record in encoded))


@given(records, st.booleans())
def test_the_last_record_that_has_a_cursor_decides(drawn: list[int | str | bytes], as_lines: bool) -> None:
    encoded = tuple(map(encode, drawn))
    framed = lines(*encoded) if as_lines else Records(records=encoded)
    cursors = [record for record in drawn if not isinstance(record, bytes)]
    assert SEQ.after(framed, "previous") == (cursors[-1] if cursors else "previous")


@pytest.mark.parametrize("number", [2**63, 2**64, -(2**63) - 1, 10**30 + 1, int("9" * 4_300)])
@pytest.mark.parametrize("more", [0, SMALL_BYTES])
def test_an_integer_of_any_length_is_kept_and_asked_for_digit_for_digit(number: int, more: int) -> None:
    found = SEQ.after(lines(b'{"seq": %d, "more": "%s"}' % (number, b"x" * more)), None)
    assert found == number
    assert fill_in("{cursor}", feed="f", cursor=found, secrets={}) == b"%d" % number
    assert cursor_text(found) == ascii_text(found) == str(number)


EXACT = [
    b"1700000000.123456791",
    b"0.1",
    b"1.50",
    b"1e5",
    b"1E400",
    b"-0.0",
    b'{"c":1700000000.123456791,"d":["\xc3\xa9",1.0]}',
    b'{"at":18446744073709551619}',
    b"[1.0000000000000000001]",
]


@pytest.mark.parametrize("more", [0, SMALL_BYTES])
@pytest.mark.parametrize("cursor", EXACT)
def test_a_number_in_a_cursor_is_kept_and_asked_for_digit_for_digit(cursor: bytes, more: int) -> None:
    found = SEQ.after(lines(b'{"seq": %s, "more": "%s"}' % (cursor, b"x" * more)), None)
    assert fill_in("{cursor}", feed="f", cursor=found, secrets={}) == cursor
    assert show_cursor(found).encode() == cursor
    for text in (cursor_text(found), ascii_text(found)):
        assert msgspec.json.encode(cursor_of(text)) == cursor
    assert (ascii_text(found) or "").isascii()


@pytest.mark.parametrize("more", [0, SMALL_BYTES])
@pytest.mark.parametrize("cursor", [b"9" * 4_301, b'"\xff"', b'"\\ud800"', b"[" * 2_000 + b"]" * 2_000])
def test_what_no_parser_takes_is_no_cursor(cursor: bytes, more: int) -> None:
    assert SEQ.after(lines(b'{"seq": %s, "more": "%s"}' % (cursor, b"x" * more)), 7) == 7


@pytest.mark.parametrize("cursor", [b'"a\\u0000"', b'["\\u0000"]', b'{"\\u0000": 1}', b'"\\\\\\u0000"'])
def test_a_nul_which_the_database_cannot_keep_stops_the_feed(cursor: bytes) -> None:
    with pytest.raises(FeedMisconfigured, match=r"source\.cursor /seq: a NUL"):
        SEQ.after(lines(b'{"seq": %s}' % cursor), None)


def test_a_cursor_beyond_its_size_limit_stops_the_feed() -> None:
    fits = "x" * (CURSOR_BYTES_MAX - 2)
    assert SEQ.after(lines(msgspec.json.encode({"seq": fits})), None) == fits
    with pytest.raises(FeedMisconfigured, match=r"source\.cursor /seq: 8193 bytes, at most 8192"):
        SEQ.after(lines(msgspec.json.encode({"seq": fits + "x"})), None)


@pytest.mark.parametrize(
    ("cursor", "shown"), [(None, "null"), (17, "17"), ("x" * 300, '"' + "x" * 198 + "…")]
)
def test_a_cursor_in_a_message_is_short(cursor: JSON, shown: str) -> None:
    assert show_cursor(cursor) == shown


def csv_reader(pointer: str) -> CursorReader:
    return CursorReader(pointer, csv=CsvFormat(fields=("seq", "a/b"), delimiter=";"))


@pytest.mark.parametrize(
    ("field", "cursor"),
    [
        (b"17", 17),
        (b"-5", -5),
        (b"0", 0),
        (b'"17"', 17),
        (b"007", "007"),
        (b"+7", "+7"),
        (b"-0", "-0"),
        (b"1.50", "1.50"),
        (b"99999999999999999999", "99999999999999999999"),
        (b"2026-11-20T06:30:00Z", "2026-11-20T06:30:00Z"),
        (b'"a;""b"""', 'a;"b"'),
        (b'""', ""),
    ],
)
def test_a_cursor_of_csv_is_a_field_and_repeats_what_was_sent(field: bytes, cursor: JSON) -> None:
    assert csv_reader("/seq").after(lines(b"1;x", field + b";x", b";y"), 7) == cursor
    assert csv_reader("/a~1b").after(lines(b"1;" + field), 7) == cursor


def test_a_record_that_is_no_csv_is_passed_over() -> None:
    assert csv_reader("/seq").after(lines(b"3;x", b"4", b'"5;x', b"\xff;x"), 7) == 3


@pytest.mark.parametrize("pointer", ["/other", "", "/seq/0"])
def test_a_cursor_that_is_no_field_is_refused(pointer: str) -> None:
    with pytest.raises(
        ValueError, match=r"is not a field of the records; source\.csv\.fields has 'seq', 'a/b'"
    ):
        csv_reader(pointer)


BEAT: Rule = {"/event": "heartbeat"}


@pytest.mark.parametrize(
    ("rule", "record", "is_ignored"),
    [
        (BEAT, b'{"event": "heartbeat", "x": 1}', True),
        (BEAT, b'{"event": "heartbeats"}', False),
        (BEAT, b'{"data": {"event": "heartbeat"}}', False),
        (BEAT, b"heartbeat", False),
        ({"/1": "hb"}, b'[17, "hb"]', True),
        ({"/a": 1, "/b": 2}, b'{"a": 1, "b": 2}', True),
        ({"/a": 1, "/b": 2}, b'{"a": 1, "b": 3}', False),
        ({"/a": None}, b'{"a": null}', True),
        ({"/a": True}, b'{"a": 1}', False),
        ({"/a": 1}, b'{"a": 1.0}', True),
        ({"": "ping"}, b'"ping"', True),
    ],
)
def test_a_record_that_has_the_values_is_ignored(rule: Rule, record: bytes, is_ignored: bool) -> None:
    ignored = Ignored([{"/never": "there"}, rule])
    kept = b'{"seq": 1}'
    left = (kept, kept) if is_ignored else (kept, record, kept)
    as_lines = Records(lines=kept + b"\n" + record + b"\n" + kept + b"\n").leaving_out(ignored.matches)
    assert as_lines == Records(lines=b"".join(one + b"\n" for one in left))
    as_records = Records(records=(kept, record, kept)).leaving_out(ignored.matches)
    assert as_records == Records(records=left)


# -- pings ---------------------------------------------------------------------------------------------


class Given:
    """A framer that gives what it was made for."""

    pending, refusal = 0, None

    def __init__(self, records: Records) -> None:
        self._records = records

    def push(self, data: bytes | bytearray) -> Records:
        return self._records

    end = push


def take(prefix: str, answer: str, records: Records) -> tuple[Records, bytes]:
    answers: list[bytes] = []
    framer = PingFramer(Given(records), Ping(prefix=prefix, answer=answer), answers.append)
    return framer.push(b""), b"".join(answers)


def test_a_ping_is_answered_and_taken_out() -> None:
    framed = Records(lines=b"PING 1\na\nPING 2\nPING\nb\nPING 4\n")
    assert take("PING", r"PONG{rest}\r\n", framed) == (
        Records(lines=b"a\nb\n"),
        b"PONG 1\r\nPONG 2\r\nPONG\r\nPONG 4\r\n",
    )
    framed = Records(records=(b"PING\r1", b"a", b"PING\r"))
    assert take(r"PING\r", "<{rest}>", framed) == (Records(records=(b"a",)), b"<1><>")


def test_a_record_that_merely_contains_a_ping_or_is_larger_than_one_is_data() -> None:
    framed = Records(lines=b'{"note":"PING 1"}\nxPING 1\n PING 1\nPIN\nping 1\n')
    assert take("PING", "PONG", framed) == (framed, b"")
    largest = b"PING".ljust(PING_BYTES_MAX, b"a")
    assert take("PING", "x", Records(lines=largest + b"\n" + largest + b"a\n")) == (
        Records(lines=largest + b"a\n"),
        b"x",
    )


@given(
    st.sampled_from(["PING ", "P", "n", "{1}", "."]),
    st.lists(st.text(alphabet="PING pong{}1.", min_size=1, max_size=8), max_size=8),
)
def test_lines_are_sorted_as_one_by_one(prefix: str, texts: list[str]) -> None:
    lines = [text.encode() for text in texts]
    rest, answers = take(prefix, r"\x7b{rest}>", Records(lines=b"".join(line + b"\n" for line in lines)))
    begin = prefix.encode()
    assert rest.lines == b"".join(line + b"\n" for line in lines if not line.startswith(begin))
    assert answers == b"".join(b"{%b>" % line.removeprefix(begin) for line in lines if line.startswith(begin))


one_line = st.binary(min_size=1).filter(lambda r: b"\n" not in r and b"\r" not in r)


@given(st.lists(one_line))
def test_the_fast_batch_holds_the_same_records_as_the_plain_one(many: list[bytes]) -> None:
    fast = Records(b"".join(r + b"\n" for r in many)).batch(cursor=7, received_at=NOW)
    plain = Records(records=tuple(many)).batch(cursor=7, received_at=NOW)
    assert fast.split() == plain.split() == tuple(many)
    assert fast.count == plain.count == len(many)
    assert plain.size == sum(map(len, many))
    assert fast.size == plain.size + len(many), "its line ends count too: they take up memory"
