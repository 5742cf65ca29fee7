"""The commands in outline: their names, what each is for, and its options.

Help and completion show these and answer at once, without importing a command: most import half of feedq. The
outline is kept in ``outline.json``, which ``make docs`` writes from the commands themselves; a test compares them.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import click

from feedq.cli.completing import completion_of

FILE = Path(__file__).with_name("outline.json")


@cache
def _kept() -> dict[str, Any]:
    kept: dict[str, Any] = json.loads(FILE.read_text())
    return kept


def short_help(name: str) -> str:
    """The line that help shows of a command at the top."""
    return str(_kept()["commands"].get(name, {}).get("help", ""))


def stand_in(name: str) -> click.Command | None:
    """A command at the top with all that completion asks of it, and nothing to run."""
    found = _kept()["commands"].get(name)
    return None if found is None else _built(name, found, (name,))


def _built(name: str, outline: dict[str, Any], path: tuple[str, ...]) -> click.Command:
    params = [_parameter(given, path) for given in outline["params"]]
    inner = outline.get("commands")
    if inner is None:
        return click.Command(name, params=params, short_help=outline["help"])
    commands = {key: _built(key, below, (*path, key)) for key, below in inner.items()}
    return click.Group(name, commands, params=params, short_help=outline["help"])


def _parameter(given: dict[str, Any], path: tuple[str, ...]) -> click.Parameter:
    kind = click.Choice(given["choices"]) if "choices" in given else click.Path() if "path" in given else None
    names = completion_of(path, given["name"], is_option="option" in given)
    if "option" not in given:
        return click.Argument(
            [given["name"]], nargs=given["nargs"], required=False, type=kind, shell_complete=names
        )
    declared = [given["name"], *given["option"]]
    is_flag, multiple = given.get("flag", False), given.get("multiple", False)
    if is_flag:
        return click.Option(declared, is_flag=True, help=given["help"])
    return click.Option(declared, multiple=multiple, help=given["help"], type=kind, shell_complete=names)


def outline_of(command: click.Command) -> dict[str, Any]:
    """What is kept of a command, and of those below it."""
    outline: dict[str, Any] = {
        "help": command.get_short_help_str(limit=200),
        "params": [_outline_of_parameter(param) for param in command.params],
    }
    if isinstance(command, click.Group):
        context = click.Context(command)
        inner = {name: command.get_command(context, name) for name in command.list_commands(context)}
        outline["commands"] = {name: outline_of(one) for name, one in inner.items() if one is not None}
    return outline


def _outline_of_parameter(param: click.Parameter) -> dict[str, Any]:
    kept: dict[str, Any] = {"name": param.name}
    if isinstance(param, click.Option):
        kept |= {"option": [*param.opts, *param.secondary_opts], "help": param.help}
        kept |= {key: True for key, is_so in (("flag", param.is_flag), ("multiple", param.multiple)) if is_so}
    else:
        kept["nargs"] = param.nargs
    if isinstance(param.type, click.Choice):
        kept["choices"] = [str(choice) for choice in param.type.choices]
    elif isinstance(param.type, click.Path | click.File):
        kept["path"] = True
    return kept


def write(command: click.Command) -> None:
    """Write the outline of this command and of all below it."""
    FILE.write_text(json.dumps(outline_of(command), ensure_ascii=False, indent=1) + "\n")
