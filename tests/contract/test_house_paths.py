"""Which files a record passes through, and which a claim: traced, so that `make house` counts no others."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain
from types import CodeType, FrameType
from typing import Any

import pytest

from feedq import control
from feedq.model import Batch, Claim
from feedq.records.framing import Framed
from feedq.sinks.base import FeedWrite
from feedq.worker import actions
from feedq.worker.runner import FeedRunner
from tests import house
from tests.contract.harness import PostgresHarness
from tests.contract.test_supervisor import Stage, until

pytestmark = pytest.mark.servers

RECORD = b'{"seq": 7'
DEPTH = 3
"""Of containers that are looked into."""
FORMS = {"model.py", "sinks/base.py", "worker/actions.py"}
"""Modules that only say what a record or a claim is."""


class Path:
    """The files of feedq whose functions hold something, in the order in which they first do."""

    def __init__(self, holds: Callable[[Any], bool], *, end: CodeType | None = None) -> None:
        """``end``: the function that the path ends with."""
        self._holds, self._end = holds, end
        self.is_open = False
        self.files: dict[str, None] = {}

    def look(self, frame: FrameType, event: str, returned: Any) -> None:
        if not self.is_open or event not in ("call", "return"):
            return
        for one in (frame, frame.f_back):
            if one is not None and one.f_code.co_filename.startswith(f"{house.PACKAGE}/"):
                held = [value for name, value in list(one.f_locals.items()) if name != "self"]
                if any(map(self._holds, held)) or (one is frame and self._holds(returned)):
                    self.files[one.f_code.co_filename.removeprefix(f"{house.PACKAGE}/")] = None
        if frame.f_code is self._end:
            self.is_open = False

    @contextmanager
    def followed(self) -> Iterator[None]:
        self.is_open = True
        try:
            yield
        finally:
            self.is_open = False

    @property
    def passed(self) -> set[str]:
        return self.files.keys() - FORMS


def parts_of(value: Any) -> Iterator[Any]:
    match value:
        case Batch() | Framed():
            yield from (value.lines, value.records)
        case FeedWrite():
            yield value.batches
        case actions.ClaimFeeds():
            yield value.keys
        case actions.StartFeeds():
            yield value.claims
        case dict():
            yield from chain(value, value.values())
        case list() | tuple() | set() | deque():
            yield from value


def holds_record(value: Any, depth: int = 0) -> bool:
    if isinstance(value, bytes | bytearray):
        return RECORD in value
    return depth < DEPTH and any(holds_record(part, depth + 1) for part in parts_of(value))


def holds_claim(value: Any, depth: int = 0) -> bool:
    if isinstance(value, Claim) or value == (1, 1):
        return True
    return depth < DEPTH and any(holds_claim(part, depth + 1) for part in parts_of(value))


@pytest.fixture
def record() -> Iterator[Path]:
    yield from traced(Path(holds_record))


@pytest.fixture
def claim() -> Iterator[Path]:
    yield from traced(Path(holds_claim, end=FeedRunner.__init__.__code__))


def traced(path: Path) -> Iterator[Path]:
    """For threads that begin from now on."""
    threading.setprofile(path.look)
    yield path
    threading.setprofile(None)


def test_a_record_passes_through_no_other_files(record: Path, postgres_harness: PostgresHarness) -> None:
    stage = Stage(postgres_harness)
    stage.add_feed()
    stage.reconcile()
    with record.followed():
        until(lambda: "sinks/postgresql_session.py" in record.files, "a record is copied")
        stage.leave()
    stage.source.close()
    assert record.passed == set(house.RECORD_PATH)


def test_a_claim_passes_through_no_other_files(claim: Path, postgres_harness: PostgresHarness) -> None:
    """From the notification to the runner."""
    stage = Stage(postgres_harness)
    stage.add_feed()
    with claim.followed():
        control.reconcile(stage.store, lambda _: None, stage.settings)
        stage.streaming()
    stage.leave()
    stage.source.close()
    assert claim.passed == set(house.CLAIM_PATH)
