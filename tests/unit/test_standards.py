"""JSON and CSV are read as their standards say: RFC 8259 and RFC 4180.

The cases are our own, made along the rules that public collections test: JSONTestSuite (JSON) and csv-spectrum
(CSV).
"""

from __future__ import annotations

import csv
from io import StringIO
from itertools import product
from typing import Literal

import pytest

from feedq.core.json_texts import read_json
from feedq.records.csvtext import CsvFormat, CsvReader
from feedq.records.framing import CsvFramer
from feedq.records.pointer import TextPointers, is_json

# -- JSON ----------------------------------------------------------------------------------------------


def cases(text: str) -> list[str]:
    """Texts with blanks between them; a blank within one is written ␣."""
    return [one.replace("␣", " ") for one in text.split()]


NUMBERS = cases("0 -0 7 -7 10 0.5 -0.5 1.0 12.34 1e5 1E5 1e+5 1e-5 1E+05 0e0 0e+1 -1.5E-3 1.5e0 20e1")
NO_NUMBERS = cases(
    """
    +1 +0 -- - -a --1 01 -01 00 007 1. .5 -.5 1.e5 .e1 1e 1E 1e+ 1E- 1.5e 1.5e+ 1ee5 1e5.5 1+2 1-2 1_000
    0x1F 0b1 1a -1x 1.2.3 0.1.2 0e 0e+ 0.e1 2.e3 2.e-3 NaN -NaN nan Infinity -Infinity inf +Inf １ 1° ∞ 1eE2
    -e1 e1 E . 1␣2 -␣1
    """
)
STRINGS = cases(
    r"""
    "" "a" "␣" "a␣b" "\"" "\\" "\/" "/" "\b\f\n\r\t" "\u0041" "\u00e9" "\u00E9" "\u20ac" "\ud83d\ude00" "é"
    "€" "😀" "'" "\uDBFF\uDFFF" "\u0000" "\u000a" "\\u0041" "{}[]:," "null" "//" "/*" "\\" "\"\""
    "\u2028\u2029" "\u007f"
    """
)
STRINGS += ['"\u2028\u2029"', '"\x7f"', '"\ufeff"', '"\uffff"', '"\U0010ffff"']
NO_STRINGS = cases(
    r"""
    " "a a" 'a' a `a` "a"b "a""b" "\" "\x41" "\a" "\v" "\'" "\0" "\U0041" "\u" "\u1" "\u12" "\u123" "\u12g4"
    "\uZZZZ" "\u{41}" "\u␣041" "\é" "\␣" “a” "a' «a»
    """
)
NO_STRINGS += [f'"{chr(control)}"' for control in range(0x20)]
NO_UTF_8 = [
    b"\xff",
    b"\xc3",
    b"\xc3\x28",
    b"\x80",
    b"\xe2\x82",
    b"\xc0\xaf",
    b"\xed\xa0\x80",
    b"\xf4\x90\x80\x80",
]
"""Cut short, overlong, half of a surrogate pair, beyond the last character."""
WHOLES = cases(
    r"""
    {} [] null true false [[]] [{}] {"a":1} {"":0} {"a":{}} {"a":[]} {"a":1,"b":2} {"a":1,"a":2} [1] [1,2]
    [1,"a",{}] [null,true,false] {"a":{"b":{"c":[1,[2]]}}} {"\u0061":1} ␣1 1␣ [␣] {␣} [␣1␣,␣2␣]
    {␣"a"␣:␣1␣,␣"b"␣:␣2␣}
    """
)
WHOLES += [
    "\t1",
    "1\n",
    "\r1\r",
    "\n[\n1\n]\n",
    "[\t1\t]",
    "[" * 500 + "]" * 500,
    "9" * 400,
    "0." + "1" * 400,
]
NO_WHOLES = cases(
    r"""
    ␣ { } [ ] [[ ]] [1 1] [1, [, [,] [1,] [,1] [1,,2] [1␣2] [1;2] [1:2] (1) [1} {1] {"a"} {"a":} {"a" {"a":
    {"a":1 {"a":1, {"a":1,} {,} {,"a":1} {"a":1,,"b":2} {"a"␣1} {"a"::1} {"a":1:2} {"a";1} {"a"=1} {"a",1}
    {a:1} {1:1} {'a':1} {null:1} {[]:1} {:1} {"a":1␣"b":2} {"a":1;"b":2} {"a":1}} {"a":1}{"b":2} 1␣2 [1][2]
    [[]]] {}} {}[ nul nulll Null NULL tru True TRUE fals False none undefined //a 1//a /**/1 1/**/ #a [1#a]
    [/**/] {"a":/**/1} <a> <null> * ? @ \ \n [\n1] ... [...] [1...2] =1 : , ; a:1 "a":1 [-] [+] [*] & ! $ %
    ^ ~ |
    """
)
NO_WHOLES += [
    "",
    "\n",
    "\x0b1",
    "\x0c1",
    "[\x0c]",
    "\u00a01",
    "\u20601",
    "\u30001",
    "\0",
    "1\0",
    "[\x1f1]",
    "[1\x7f]",
]
NO_WHOLES += ["\ufeff", "\ufeff{}"]


def as_documents(texts: list[str]) -> list[bytes]:
    """Values, each alone and where it may stand in others."""
    return [(form % text).encode() for text, form in product(texts, ("%s", "[%s]", '{"a":%s}'))]


@pytest.mark.parametrize("text", as_documents(NUMBERS + STRINGS) + [text.encode() for text in WHOLES])
def test_what_rfc_8259_calls_json_is_json(text: bytes) -> None:
    assert is_json(text)
    assert TextPointers([""]).find(text) == [text.strip(b" \t\r\n")]


@pytest.mark.parametrize(
    "text",
    as_documents(NO_NUMBERS + NO_STRINGS)
    + [text.encode() for text in NO_WHOLES]
    + [form % bad for bad, form in product(NO_UTF_8, (b'"%b"', b'{"%b":1}'))],
)
def test_what_it_does_not_is_none(text: bytes) -> None:
    assert not is_json(text)
    with pytest.raises(ValueError, match=r"."):
        read_json(text)


@pytest.mark.parametrize("text", [b"1e400", b"-1e400", b"1e-400", b"9" * 5_000])
def test_a_number_of_any_size_stays_as_it_is(text: bytes) -> None:
    """The standard leaves it to whoever reads it: that is the sink."""
    assert is_json(text)


@pytest.mark.parametrize("text", [b'"\\ud800"', b'"\\udc00\\ud800"', b'["\\ud800x"]'])
def test_half_of_a_surrogate_pair_is_no_json(text: bytes) -> None:
    """The standard allows it in its grammar; no database can keep it as text."""
    assert not is_json(text)


def test_nesting_has_a_bound_that_harms_nobody() -> None:
    assert not is_json(b"[" * 100_000 + b"]" * 100_000)


# -- CSV -----------------------------------------------------------------------------------------------

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
@pytest.mark.parametrize("quoting", [csv.QUOTE_MINIMAL, csv.QUOTE_ALL, csv.QUOTE_NONNUMERIC])
def test_csv_is_read_as_rfc_4180_says_whatever_has_written_it(
    table: list[list[str]], line_end: str, quoting: Literal[0, 1, 2]
) -> None:
    written = StringIO(newline="")
    csv.writer(written, quoting=quoting, lineterminator=line_end).writerows(table)
    sent = written.getvalue().encode()
    reader = CsvReader(CsvFormat(fields=tuple(map(str, range(len(table[0]))))))
    for stream in (sent, sent.removesuffix(line_end.encode())):
        framer = CsvFramer(CsvFormat(fields=("a",)), 2**20)
        pushed = [framer.push(stream[at : at + 5]) for at in range(0, len(stream), 5)]
        lines = [record for one in [*pushed, framer.end(b"\n")] for record in one.split()]
        assert [[(field or b"").decode() for field in reader.read(line)] for line in lines] == table
