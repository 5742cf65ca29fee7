"""Polling: where a feed that asks again and again stands, and where an answer takes it. Pure.

A feed's cursor is a `PollCursor`: what to ask for next, and what of the answer is known already. Every answer
becomes one batch at most, whose cursor is the position after it; so whatever a crash interrupts, the last
committed position is enough to go on, and nothing is lost or landed twice as far as the source lets one tell:

* ``at`` is the source's own cursor, and stands in the next request;
* ``page`` is the address of the next page, when there are more of this poll;
* ``etag`` and ``modified`` spare an answer that has not changed. They belong to the request that ``at`` makes, so
  they are forgotten when it moves;
* ``seen`` records with this ``digest`` began the last answer to the same request. If the next one begins with the
  very same, they have landed already; if not, all of it lands.
"""

from __future__ import annotations

import math
import re
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Final
from urllib.parse import quote, quote_plus

import msgspec

from feedq.connectors.records.pointer import MISSING, TextPointers
from feedq.connectors.records.turns import SLICE_BYTES, Steps
from feedq.model import JSON

TAG_CHARACTERS_MAX: Final = 512
"""Longer ones are not kept: the position is written with every commit."""
_KEYS: Final = frozenset(("at", "page", "etag", "modified", "seen", "digest"))
WINDOW_BYTES: Final = 64 * 1024
"""How much of a list is cut up at once: a few milliseconds if it is nothing but brackets."""
_STEP_RECORDS: Final = 1000
_ELEMENTS: Final = msgspec.json.Decoder(list[msgspec.Raw])
_TOKEN: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|["\[\]{},]', re.DOTALL)
"""A string of JSON, or what it is structured by; a lone quote begins a string whose end is not there yet."""
_ENDS: Final = {b"{": b"},", b"[": b"],", b'"': b'",'}
"""How elements end, by their first character; what is none of these ends with the comma alone."""
_GUESSES_MAX: Final = 4


@dataclass(frozen=True, slots=True)
class PollCursor:
    """What a feed's cursor is when it polls. Empty means none."""

    at: JSON = None
    page: str = ""
    """Holds no secret: see `conceal`."""
    etag: str = ""
    modified: str = ""
    seen: int = 0
    digest: str = ""

    @classmethod
    def of(cls, cursor: JSON) -> PollCursor:
        """What `as_cursor` gave; any other cursor is the source's own, from when the feed did not poll."""
        if not isinstance(cursor, dict) or "at" not in cursor or not cursor.keys() <= _KEYS:
            return cls(at=cursor)
        text = {key: cursor.get(key) for key in ("page", "etag", "modified", "digest")}
        seen = cursor.get("seen")
        kept = {key: value for key, value in text.items() if isinstance(value, str)}
        return cls(at=cursor["at"], seen=seen if isinstance(seen, int) else 0, **kept)

    def as_cursor(self) -> JSON:
        """As JSON, without what is empty."""
        fields: dict[str, JSON] = {
            "page": self.page,
            "etag": self.etag,
            "modified": self.modified,
            "seen": self.seen,
            "digest": self.digest,
        }
        return {"at": self.at} | {key: value for key, value in fields.items() if value}

    @property
    def conditions(self) -> dict[str, str]:
        """Headers that ask for an answer only if there is a new one."""
        headers = {"if-none-match": self.etag, "if-modified-since": self.modified}
        return {name: value for name, value in headers.items() if value}


@dataclass(frozen=True, slots=True)
class PollAnswer:
    """An answer."""

    records: Sequence[bytes]
    at: JSON
    """The source's cursor after it."""
    next_page: str = ""
    etag: str = ""
    modified: str = ""


@dataclass(frozen=True, slots=True)
class PollStep:
    """What an answer does to a feed."""

    new: Sequence[bytes]
    """The records that have not landed yet."""
    after: PollCursor
    """Where the feed stands once they have."""
    again: bool
    """Whether there is more to ask for at once."""


def advance(position: PollCursor, page: PollAnswer, *, follows_cursor: bool) -> Steps[PollStep]:
    """From one position to the next. ``follows_cursor``: a moved cursor means that there may be more at once."""
    new = yield from unseen(position, page.records)
    if page.next_page and page.next_page != position.page:
        return PollStep(new, PollCursor(at=page.at, page=page.next_page), again=True)
    if position.page:
        return PollStep(new, PollCursor(at=page.at), again=False)
    if page.at != position.at:
        return PollStep(new, PollCursor(at=page.at), again=follows_cursor and bool(page.records))
    after = PollCursor(
        at=page.at,
        etag=_tag(page.etag),
        modified=_tag(page.modified),
        seen=len(page.records),
        digest=(yield from digest(page.records)),
    )
    return PollStep(new, after, again=False)


def within(position: PollCursor, records: Sequence[bytes]) -> Steps[PollStep]:
    """As far as an answer goes whose next record cannot land: the same request goes on behind ``records``."""
    after = replace(position, etag="", modified="", seen=len(records), digest=(yield from digest(records)))
    return PollStep((yield from unseen(position, records)), after, again=False)


def unseen(position: PollCursor, records: Sequence[bytes]) -> Steps[Sequence[bytes]]:
    """``records`` without those that began the last answer to the same request."""
    known = position.seen
    if known and len(records) >= known:
        begins_with = yield from digest(records[:known])
        if begins_with == position.digest:
            return records[known:]
    return records


def digest(records: Sequence[bytes]) -> Steps[str]:
    """Tells sequences of records from one another."""
    if not records:
        return ""
    hashed, size = blake2b(digest_size=16), 0
    for number, record in enumerate(records, start=1):
        hashed.update(b"%d:" % len(record))
        hashed.update(record)
        size += len(record)
        if number % _STEP_RECORDS == 0 or size > SLICE_BYTES:
            size = 0
            yield
    return hashed.hexdigest()


def next_tick(began: float, now: float, *, interval_s: float) -> float:
    """The next of the moments that lie whole intervals after ``began``; those that went by are left out."""
    tick = began + (math.floor((now - began) / interval_s) + 1) * interval_s
    # The division may round up to the tick that is just now.
    return tick if tick > now else now + interval_s


@dataclass(frozen=True, slots=True)
class Elements:
    """The elements of a list, as they stand in a document."""

    texts: Sequence[bytes]
    oversize: bool = False
    """The next one is larger than a record may be."""


class TooMany(ValueError):
    """A list has more elements than are taken."""


def list_at(
    document: bytes,
    pointer: str,
    *,
    records_max: int,
    record_bytes_max: int,
    window_bytes: int = WINDOW_BYTES,
) -> Steps[Elements | None]:
    """The elements of a list in a JSON document; None if there is no list.

    A ``null`` is an empty list, as some sources write it.

    Raises:
        TooMany: there are more than ``records_max``.
        ValueError: the document is no JSON.
    """
    (found,) = TextPointers([pointer]).find(document)
    yield
    if found is MISSING:
        return None
    if found == b"null":
        return Elements(())
    if found[:1] != b"[":
        _elements(found)
        return None
    if found[-1:] != b"]":
        raise ValueError("a list is not closed")
    texts: list[bytes] = []
    for window in _windows(found, record_bytes_max, window_bytes):
        if window is not None:
            texts += window
            if len(texts) > records_max:
                raise TooMany
            if max(map(len, window), default=0) > record_bytes_max:
                whole = next(i for i, text in enumerate(texts) if len(text) > record_bytes_max)
                return Elements(texts[:whole], oversize=True)
            if not window:
                return Elements(texts, oversize=True)
        yield
    return Elements(texts)


def _windows(
    text: bytes, record_bytes_max: int, window_bytes: int
) -> Generator[list[bytes] | None, None, None]:
    """The elements between the brackets of a list, window by window; None after a step in between.

    An empty window says that the next element is larger than a record may be. Raises `ValueError`.
    """
    at, end, size = 1, len(text) - 1, window_bytes
    while end - at > window_bytes:
        window = text[at : min(at + size, end)]
        cut, elements = 0, None
        for cut in _guesses(window):
            elements = _elements_or_none(window[:cut])
            if elements is not None:
                break
            yield None
        if elements is None:
            cut = yield from _last_comma(window)
            if cut:
                elements = _elements(window[:cut])
        if elements is not None:
            if not elements:
                raise ValueError("nothing stands before a comma")
            yield elements
            at, size = at + cut + 1, window_bytes
        elif len(window) > record_bytes_max:
            yield []
            return
        elif len(window) == end - at:
            break
        else:
            size *= 2
    rest = _elements(text[at:end])
    if rest or at == 1:
        yield rest or None
    else:
        raise ValueError("nothing follows a comma")


def _guesses(window: bytes) -> Iterator[int]:
    """Commas between elements, perhaps: the last ones that follow such an end as the first element's may be."""
    end_mark = _ENDS.get(window.lstrip()[:1], b",")
    cut = len(window)
    for _ in range(_GUESSES_MAX):
        cut = window.rfind(end_mark, 0, cut)
        if cut < 0:
            return
        yield cut + len(end_mark) - 1


def _last_comma(window: bytes) -> Generator[None, None, int]:
    """The last comma that is surely between two elements; 0 if there is none. For windows that defy guessing."""
    depth = last = 0
    for number, token in enumerate(_TOKEN.finditer(window), start=1):
        match token[0]:
            case b"{" | b"[":
                depth += 1
            case b"}" | b"]":
                depth -= 1
            case b"," if not depth:
                last = token.start()
            case b'"':
                break
        if number % _STEP_RECORDS == 0:
            yield
    return last


def _elements(text: bytes) -> list[bytes]:
    try:
        return list(map(bytes, _ELEMENTS.decode(b"[%b]" % text)))
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError(str(error)) from None


def _elements_or_none(text: bytes) -> list[bytes] | None:
    try:
        return _elements(text)
    except ValueError:
        return None


def _tag(text: str) -> str:
    return text if len(text) <= TAG_CHARACTERS_MAX and text.isascii() else ""


def conceal(address: str, secrets: Mapping[str, str]) -> str:
    """An address with placeholders for each secret in it: sources repeat a query in the addresses of its pages."""
    # In an address braces are written as %7B and %7D: what is left of them is ours.
    address = address.replace("{", "%7B").replace("}", "%7D")
    placeholders = {
        spelling: placeholder for placeholder, spelling in _spellings(secrets).items() if spelling
    }
    # Of two secrets that begin alike, the longer must not leave its end behind.
    fitting = (name for name, secret in secrets.items() if 0 < len(secret) <= len(address))
    longest_first = sorted(fitting, key=lambda name: (-len(secrets[name]), name))
    if not longest_first:
        return address

    def placeholder(match: re.Match[str]) -> str:
        # In a spelling of its own the address means the same with that of ours.
        return placeholders.get(match[0]) or f"{{{longest_first[(match.lastindex or 1) - 1]}}}"

    return re.sub(
        "|".join(f"({_any_spelling(secrets[name])})" for name in longest_first), placeholder, address
    )


def _any_spelling(secret: str) -> str:
    """Matches a secret with any of its bytes encoded: which ones are differs from one source to the next."""
    pieces = []
    for byte in secret.encode("utf-8", "surrogateescape"):
        plain = re.escape(chr(byte)) if byte < 0x80 else ""
        # Encoded first: a percent sign alone would leave the rest of its own encoding behind.
        either = [f"%(?i:{byte:02x})", plain, r"\+" if byte == ord(" ") else ""]
        pieces.append(f"(?:{'|'.join(filter(None, either))})")
    return "".join(pieces)


def reveal(address: str, secrets: Mapping[str, str]) -> str:
    """What `conceal` was given."""
    spellings = _spellings(secrets)
    return re.sub(r"\{[^{}]*\}", lambda match: spellings.get(match[0], ""), address)


def _spellings(secrets: Mapping[str, str]) -> dict[str, str]:
    """Placeholders, and what they stand for: a secret as it is, or encoded in either of two ways."""
    spellings = {}
    for name, value in secrets.items():
        spellings[f"{{{name}:as it is}}"] = value
        spellings[f"{{{name}:form}}"] = quote_plus(value, errors="surrogateescape")
        spellings[f"{{{name}}}"] = quote(value, safe="", errors="surrogateescape")
    return spellings
