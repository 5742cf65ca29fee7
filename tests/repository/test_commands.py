"""Every command explains itself, and loads no more than it needs."""

from __future__ import annotations

import os
import subprocess
import sys

import click
import pytest

import feedq
from feedq.cli import main
from tests.repository.test_docs import generator

COMMANDS: dict[str, click.Command] = dict(generator().commands(main, "feedq"))


def test_every_length_of_time_may_have_a_unit_and_has_a_bound() -> None:
    lengths = [
        (path, option)
        for path, command in COMMANDS.items()
        for option in command.params
        if {"--timeout", "--interval", "--since", "--for"} & {*option.opts}
    ]
    assert len(lengths) > 5
    for path, option in lengths:
        assert option.type.convert("1m", option, None) == 60.0, path
        with pytest.raises(click.BadParameter, match="is not from"):
            option.type.convert("99999999d", option, None)


@pytest.mark.parametrize("path", COMMANDS)
def test_every_command_explains_itself_with_an_example_and_takes_json(path: str) -> None:
    command = COMMANDS[path]
    assert command.help is not None
    assert "Example:" in command.help
    assert path in command.help
    assert "--json" in {option for p in command.get_params(click.Context(command)) for option in p.opts}
    assert all(p.help for p in command.params if isinstance(p, click.Option))


def run(*arguments: str, **environment: str) -> tuple[str, str, set[str]]:
    """What a command prints and complains of, and all modules that are loaded when it ends."""
    script = (
        "import sys\nfrom feedq.cli import main\n"
        "try:\n    main(sys.argv[1:], prog_name='feedq')\n"
        "finally:\n    print('', *sys.modules)\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    said, _, loaded = ran.stdout.rstrip().rpartition("\n")
    return said, ran.stderr, set(loaded.split())


COMPLETING = {"_FEEDQ_COMPLETE": "bash_complete"}
LIGHT: dict[str, tuple[list[str], dict[str, str], str]] = {
    "version": (["--version"], {}, f"feedq, version {feedq.__version__}"),
    "help": (["--help"], {}, "Usage: feedq [OPTIONS] COMMAND [ARGS]..."),
    "commands": ([], COMPLETING | {"COMP_WORDS": "feedq feed ", "COMP_CWORD": "2"}, "plain,list"),
    "options": ([], COMPLETING | {"COMP_WORDS": "feedq feed list --", "COMP_CWORD": "3"}, "plain,--status"),
}
"""What is asked, and a line of the answer."""


@pytest.mark.parametrize("asked", LIGHT)
def test_what_scripts_and_people_ask_often_loads_nothing_heavy(asked: str) -> None:
    """Half a second of processor time, each time."""
    arguments, environment, expected = LIGHT[asked]
    said, complaints, loaded = run(*arguments, **environment)
    assert expected in said.splitlines(), complaints
    packages = {name.partition(".")[0] for name in loaded} - set(sys.stdlib_module_names)
    # What begins with an underscore is how Python finds packages here.
    assert {name for name in packages if not name.startswith("_")} == {"click", "feedq"}


def test_the_status_loads_no_more_than_it_needs() -> None:
    """Each of these takes some hundredths of a second, of the four tenths that it may take."""
    _, complaints, loaded = run("status", FEEDQ_DATABASE_URL="postgresql://127.0.0.1:1/nobody")
    assert "Error: control database" in complaints
    assert "psycopg2" in loaded
    heavy = {
        "sqlalchemy",
        "celery",
        "kombu",
        "httpx",
        "structlog",
        "prometheus_client",
        "rich",
        "yaml",
        "tornado",
    }
    assert not heavy & loaded
