"""The `feedq` command in this process, on real servers: loading the drivers takes longer than the commands do."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import structlog
from click.testing import CliRunner, Result

from feedq.cli import main
from feedq.settings import settings


class Shell:
    """Runs the command with an environment of its own."""

    def __init__(self, database_url: str, broker_url: str) -> None:
        self.environment = {"FEEDQ_DATABASE_URL": database_url, "FEEDQ_BROKER_URL": broker_url}

    def run(self, *arguments: str, given: str = "") -> Result:
        settings.cache_clear()
        return CliRunner(env=self.environment).invoke(main, list(arguments), input=given)

    def ok(self, *arguments: str, given: str = "") -> str:
        """What a command that must succeed prints."""
        done = self.run(*arguments, given=given)
        assert done.exit_code == 0, done.output
        return done.stdout

    def json(self, *arguments: str, status: int = 0, given: str = "") -> Any:
        done = self.run(*arguments, "--json", given=given)
        assert done.exit_code == status, done.output
        return msgspec.json.decode(done.stdout)


@contextmanager
def opened_shell(database_url: str, broker_url: str) -> Iterator[Shell]:
    handlers, level = logging.root.handlers[:], logging.root.level
    yield Shell(database_url, broker_url)
    # As it was before a command set up its log and read its settings.
    settings.cache_clear()
    structlog.reset_defaults()
    logging.root.handlers[:] = handlers
    logging.root.setLevel(level)
