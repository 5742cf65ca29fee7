"""What feeds declare is parsed once, and kept once, for all that declare the same."""

from __future__ import annotations

import pytest

from feedq.core.model import Feed, FeedSpec
from feedq.errors import InvalidInput
from feedq.worker.declared import declared, lean
from tests.fakes.sink import IDENTITY
from tests.unit.data_path import AT


def _feed(id_: int, **source: object) -> Feed:
    spec = FeedSpec(
        name=f"f/{id_}",
        connector="tcp",
        source={"url": "tcp://127.0.0.1:1", **source},
        sink={"table": "t"},
        tenant=f"t{id_}",
    )
    return Feed(id_, spec, 1, AT, AT, IDENTITY)


def test_equal_declarations_are_kept_once() -> None:
    one, two = lean(_feed(1, cursor="/seq")), lean(_feed(2, cursor="/seq"))
    assert declared(one) is declared(two)
    assert one.spec.source is two.spec.source
    assert one.spec.sink is two.spec.sink


def test_a_lean_feed_is_the_same_feed() -> None:
    assert lean(_feed(1, cursor="/seq")) == _feed(1, cursor="/seq")


def test_a_wrong_declaration_is_refused_every_time() -> None:
    for _ in range(2):
        with pytest.raises(InvalidInput, match="unknown option"):
            declared(_feed(1, curser="/seq"))
