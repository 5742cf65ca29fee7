"""`feedq up`, `feedq doctor` and the docs agree on the oldest PostgreSQL."""

from __future__ import annotations

from pathlib import Path

import pytest

from feedq.control.store.database import POSTGRESQL_MIN
from feedq.errors import Unavailable
from feedq.local import postgres
from feedq.verbs.diagnosis.checks import Level
from feedq.verbs.diagnosis.server_checks import judge_version

ROOT = Path(__file__).parents[2]


def test_no_older_server_is_started_or_passed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for major in (POSTGRESQL_MIN - 1, POSTGRESQL_MIN):
        directory = tmp_path / str(major)
        directory.mkdir()
        for name in ("postgres", "initdb"):
            (directory / name).write_text(f"#!/bin/sh\necho 'postgres (PostgreSQL) {major}.3'\n")
            (directory / name).chmod(0o755)
    found = [tmp_path / str(POSTGRESQL_MIN - 1)]
    monkeypatch.setattr(postgres, "_postgres_candidates", lambda _: iter(found))
    with pytest.raises(Unavailable, match=f"PostgreSQL {POSTGRESQL_MIN} or newer"):
        postgres.postgres_binaries(None)
    found.append(tmp_path / str(POSTGRESQL_MIN))
    assert postgres.postgres_binaries(None).major == POSTGRESQL_MIN

    check = judge_version(10_000 * POSTGRESQL_MIN - 1, "postgresql://h/d")
    assert (check.level, f"PostgreSQL {POSTGRESQL_MIN} or newer" in check.advice) == (Level.FAIL, True)
    assert judge_version(10_000 * POSTGRESQL_MIN, "postgresql://h/d").level is Level.OK


@pytest.mark.parametrize("page", ["howto/deploy.md", "reference/cli.md", "reference/sinks.md"])
def test_the_docs_name_the_same_release(page: str) -> None:
    words = (ROOT / "docs" / page).read_text().replace("(", " ")
    assert f"PostgreSQL {POSTGRESQL_MIN} or newer" in " ".join(words.split())
