"""How commands answer: in which form, again and again, and with whose settings."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from feedq.cli import main
from feedq.cli.invocation import Invocation
from feedq.cli.output import ProgressLine
from feedq.local.datadir import DataDir
from feedq.settings import settings
from tests.unit.command import Command

pytestmark = pytest.mark.usefixtures("control")

URL = "postgresql://operator:hunter2@127.0.0.1:1/feedq"


@pytest.fixture
def command() -> Command:
    made = Command()
    made.feed("acme/a", tenant="acme", labels={"region": "eu"})
    made.feed("acme/b")
    return made


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_completion_is_printed_for_a_shell(command: Command, shell: str) -> None:
    assert f"_FEEDQ_COMPLETE={shell}_complete" in command.ok("completion", shell)


# -- the stack that runs here ------------------------------------------------------------------------


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    # Whatever a command sets is taken back.
    monkeypatch.setattr(os, "environ", {k: v for k, v in os.environ.items() if not k.startswith("FEEDQ_")})
    settings.cache_clear()
    yield tmp_path
    settings.cache_clear()


def test_a_stack_that_runs_in_this_directory_is_found_and_said(here: Path) -> None:
    stack = DataDir(here / ".feedq")
    with stack.held():
        stack.write_settings({"FEEDQ_DATABASE_URL": URL})
        ran = CliRunner().invoke(main, ["feed", "list"], obj=Invocation())
        assert ran.exit_code == 1
        assert ran.stdout == ""
        said, error = ran.stderr.splitlines()
        assert said == f"(using the feedq up in {here / '.feedq'})"
        assert "postgresql://operator:***@127.0.0.1:1/feedq" in error


@pytest.mark.parametrize(("total", "shown"), [(10, "5 of 10 feeds"), (None, "5 feeds")])
def test_progress_shows_itself_after_a_second_and_clears_its_line(
    total: int | None, shown: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    passed_s = iter((0.0, 0.5, 2.0, 2.01))
    monkeypatch.setattr(time, "monotonic", lambda: next(passed_s))
    with ProgressLine("feeds") as progress:
        progress.may_show = True
        for done in (1, 5, 6):
            progress(done, total)
    assert capsys.readouterr().err == f"\r{shown}\r"  # the rest is for terminals alone
