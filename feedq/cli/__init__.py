"""The `feedq` command.

Commands are thin: they read options, have a verb of `feedq.verbs` done, at the database or by a server, and show
its answer, as tables for people or as one JSON document. A `FeedqError` ends a command with one line on standard
error and no traceback.
"""

from feedq.cli.root import main

__all__ = ["main"]
