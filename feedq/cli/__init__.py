"""The `feedq` command.

Commands are thin: they read options, call `feedq.control.reconcile`, the store or `feedq.verbs.diagnosis`, and
show what came back, as tables for people or as one JSON document. A `FeedqError` ends a command with one line on
standard error and no traceback."""

from feedq.cli.root import main

__all__ = ["main"]
