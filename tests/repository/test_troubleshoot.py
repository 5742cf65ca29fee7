"""Whoever searches the page of troubles for what they see finds the row that is about it."""

from __future__ import annotations

import re

import pytest

from tests.pages import ROOT

PAGE = ROOT / "docs" / "howto" / "troubleshoot.md"
ROWS = [
    [cell.strip() for cell in line.strip("| ").split(" | ")]
    for line in re.findall(r"^\| (?!you see|---).*$", PAGE.read_text(), re.MULTILINE)
]
QUESTIONS = [
    ("permission denied sequence", "GRANT"),
    ("duplicates restart", "`key`"),
    ("rows twice replaced", "`key`"),
    ("column NULL", "`feedq feed test NAME`"),
    ("another client id MQTT", "its own"),
    ("HTTP poll first page only", "pointers"),
    ("Redis stream deleted", "beginning"),
    ("table locked", "`pg_locks`"),
    ("last line file", "End the line"),
    ("new worker idle", "`feedq worker list`"),
    ("drain hangs", "`feedq status`"),
    ("too many connections", "Count them"),
    ("crash loop", "`/healthz`"),
    ("out of memory", "memory"),
    ("task twice Redis", "`FEEDQ_VISIBILITY_TIMEOUT_S`"),
    ("job ran twice", "semantics"),
    ("daylight saving", "`zone`"),
    ("missed_catchup", "`catch_up`"),
    ("env feedq env", "eval"),
    ("leading zeros", "`text`"),
    ("schema drift", "`drift: add`"),
    ("401 credentials", "secrets"),
    ("no alert", "--alerts"),
    ("waiting no_capacity", "`-c`"),
    ("streaming no data", "tap"),
    ("Flower task succeeded", "status"),
    ("deploy move twice", "`FEEDQ_RESTART_HOLD_S`"),
    ("removed declared again start", "Adopt"),
    ("certificate", "`source.ca_file`"),
    ("skipped_overlap", "`overlap`"),
    ("pgbouncer session locks", "session mode"),
    ("redis eviction", "`noeviction`"),
]
"""Words of a symptom, taken from faults that users met, and a word of what helps."""


def test_every_row_says_what_is_seen_its_cause_and_what_to_do() -> None:
    assert len(ROWS) > 40
    assert [row for row in ROWS if len(row) != 3 or not all(row)] == []


@pytest.mark.parametrize(("words", "remedy"), QUESTIONS)
def test_a_symptom_finds_its_row(words: str, remedy: str) -> None:
    found = [row for row in ROWS if all(word.lower() in row[0].lower() for word in words.split())]
    assert [row for row in found if remedy in row[2]], found
    assert len(found) <= 2
