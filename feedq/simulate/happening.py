"""What happens to the fleet of a scenario, as written: ``60s kill 1``, ``2m join 2``, ``5m deploy pause=20s``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from feedq import values

DURATION_S_MAX: Final = 7 * 86_400.0


class Verb(StrEnum):
    """Names what can happen."""

    START = "start"
    """The fleet comes up: the beginning of every scenario, and never written."""
    KILL = "kill"
    FREEZE = "freeze"
    STOP = "stop"
    JOIN = "join"
    DEPLOY = "deploy"
    DRAIN = "drain"
    CORDON = "cordon"
    UNCORDON = "uncordon"
    ADD = "add"
    REMOVE = "remove"
    AWAY = "away"
    BACK = "back"


@dataclass(frozen=True, slots=True)
class Happening:
    """Describes something that happens, with its time."""

    at_s: float
    verb: Verb
    count: int = 1
    """Of workers or feeds, where no names are given."""
    names: tuple[str, ...] = ()
    """Of workers, or of remote hosts."""
    options: Mapping[str, float] = field(default_factory=dict)
    text: str = ""
    """As it was written."""


DEPLOY_RESTART_S: Final = 3.0
DEPLOY_PAUSE_S: Final = 10.0
_OPTIONS: Final[Mapping[Verb, Mapping[str, str]]] = {
    Verb.JOIN: {"capacity": "count"},
    Verb.DEPLOY: {"by": "count", "restart": "duration", "pause": "duration"},
}
_OF_HOSTS: Final = frozenset({Verb.AWAY, Verb.BACK})
_OF_FEEDS: Final = frozenset({Verb.ADD, Verb.REMOVE})
_WRITTEN: Final = tuple(verb for verb in Verb if verb is not Verb.START)


def parse_duration(text: str) -> float:
    """Reads a duration of up to seven days, as `values.parse_duration` does. Raises `ValueError`."""
    seconds = values.parse_duration(text)
    if seconds > DURATION_S_MAX:
        raise ValueError(f"{text!r} is longer than seven days")
    return seconds


def parse_happening(text: str) -> Happening:
    """Reads ``TIME VERB …``. Raises `ValueError` with what is wrong."""
    words = text.split()
    if len(words) < 2:
        raise ValueError(f"event {text!r}: write it as TIME WHAT, such as '60s kill 1'")
    try:
        at_s = parse_duration(words[0].removeprefix("+"))
        verb = _verb(words[1])
        plain = [word for word in words[2:] if "=" not in word]
        options = dict(_option(verb, word) for word in words[2:] if "=" in word)
        count, names = _operands(verb, plain)
    except ValueError as error:
        raise ValueError(f"event {text!r}: {error}") from None
    return Happening(at_s, verb, count, names, options, " ".join(words[1:]))


def _verb(word: str) -> Verb:
    if word not in _WRITTEN:
        raise ValueError(f"nothing is called {word!r}; known are {', '.join(_WRITTEN)}")
    return Verb(word)


def _option(verb: Verb, word: str) -> tuple[str, float]:
    name, _, value = word.partition("=")
    known = _OPTIONS.get(verb, {})
    if name not in known:
        have = f"known are {', '.join(f'{k}=' for k in known)}" if known else "it takes none"
        raise ValueError(f"{verb} has no option {name!r}; {have}")
    return name, float(_count(value)) if known[name] == "count" else parse_duration(value)


def _operands(verb: Verb, words: list[str]) -> tuple[int, tuple[str, ...]]:
    """Reads how many workers or feeds are meant, or which."""
    if verb in _OF_HOSTS:
        if not words:
            raise ValueError(f"say which host: {verb} host1")
        return 1, tuple(words)
    if verb is Verb.DEPLOY:
        if words:
            raise ValueError(f"deploy restarts every worker; {words[0]!r} means nothing here")
        return 1, ()
    if not words:
        if verb in _OF_FEEDS:
            raise ValueError(f"say how many feeds: {verb} 100")
        return 1, ()
    if len(words) == 1 and words[0].isdecimal():
        return _count(words[0]), ()
    if verb in _OF_FEEDS:
        raise ValueError(f"{words[0]!r} is no number of feeds")
    return 1, tuple(words)


def _count(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 2_000_000:
        raise ValueError(f"{text!r} is no number from 1 to 2000000")
    return int(text)
