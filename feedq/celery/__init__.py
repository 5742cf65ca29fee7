"""The Celery edge: application, pool, bootsteps, broker, beat and tasks.

``celery -A feedq`` looks for `app` here. It is made when it is first asked for, so that importing a module of this
package reads no settings.
"""

from __future__ import annotations

import gc
import sys
import typing
from typing import Any

import click

OTHER_COMMANDS = ("flower", "amqp")
LIBRARIES_OF_OTHERS = frozenset(
    {"flower", "tornado", "click_repl", "prompt_toolkit", "wcwidth", "xml", "humanize", "pytz", "pygments"}
)


def __getattr__(name: str) -> Any:
    if name == "app":
        if running_command() in ("worker", "beat"):
            _forget_other_commands()
        from feedq.celery.application import app

        return app
    raise AttributeError(f"module 'feedq.celery' has no attribute {name!r}")


def running_command() -> str | None:
    """Return the subcommand of ``celery`` that this process runs. Celery loads the app inside its click context,
    which knows by then; nothing is parsed twice."""
    context = click.get_current_context(silent=True)
    while context is not None and context.invoked_subcommand is None:
        context = context.parent
    return None if context is None else context.invoked_subcommand


def _forget_other_commands() -> None:
    """Give back the ten megabytes that ``celery`` takes for commands which are not running.

    It loads Flower's in every process (``with_plugins`` in `celery.bin.celery`), a library for terminals
    (`click_repl`) for ``celery amqp``, and one that colors the answers of others (`celery.bin.base`). Called
    before anything else is imported, which then takes the place.
    """
    root = click.get_current_context().find_root().command
    module = sys.modules.get("celery.bin.celery")
    if not isinstance(root, click.Group) or module is None or root is not module.celery:
        return  # somebody else's command, with a subcommand of that name
    for command in OTHER_COMMANDS:
        root.commands.pop(command, None)
    vars(module).pop("amqp", None)
    for name in ("highlight", "PythonLexer", "LEXER", "Terminal256Formatter", "FORMATTER"):
        vars(sys.modules["celery.bin.base"]).pop(name, None)
    loaded = list(sys.modules)
    # What came before Celery's command was imported by somebody else.
    for name in loaded[loaded.index("celery.bin") :]:
        if name == "celery.bin.amqp" or name.partition(".")[0] in LIBRARIES_OF_OTHERS:
            package, _, last = name.rpartition(".")
            if package in sys.modules:
                vars(sys.modules[package]).pop(last, None)
            del sys.modules[name]
    # What `typing` remembers of these modules would keep them.
    typing.clear_overloads()
    for clear_cache in getattr(typing, "_cleanups", ()):
        clear_cache()
    gc.collect()
