"""Whatever the command line does, a verb does, but for what makes no sense elsewhere; and each is documented."""

from __future__ import annotations

import re

from feedq.cli.invocation import LOCAL
from feedq.verbs.registry import MODULES, load
from tests.house import PACKAGE, ROOT
from tests.repository.test_cli_docs import COMMANDS

DECLARES = "declare list_declared_feeds list_declared_schedules list_declared_queues"
VERBS = {
    "apply": "declare",
    "diff": "declare",
    "export": DECLARES,
    "schema": "show_schema",
    "events": "list_events",
    "feed set": DECLARES,
    "feed edit": DECLARES,
    "feed list": "list_feeds",
    "feed show": "show_feed",
    "feed cursor": "show_cursor change_cursor",
    "feed backfill": "begin_backfill show_backfill list_backfills cancel_backfill",
    "feed dead-letters": "list_dead_letters show_dead_letter replay_dead_letters drop_dead_letters",
    "feed tap": "tap_feed",
    "feed drift": "show_drift add_columns",
    "feed pause": "act_on_feeds",
    "feed resume": "act_on_feeds",
    "feed restart": "act_on_feeds",
    "feed move": "act_on_feeds",
    "feed adopt": "adopt_checkpoint",
    "feed remove": "act_on_feeds",
    "schedule set": DECLARES,
    "schedule edit": DECLARES,
    "schedule list": "list_schedules list_queues",
    "schedule show": "show_schedule",
    "schedule next": "show_next_ticks",
    "schedule runs": "list_runs show_run",
    "schedule trigger": "trigger_schedule",
    "schedule backfill": "backfill_schedule",
    "schedule pause": "act_on_schedule",
    "schedule resume": "act_on_schedule",
    "schedule remove": "declare",
    "schedule cancel": "cancel_run act_on_schedule",
    "worker list": "list_workers",
    "worker show": "show_worker",
    "worker cordon": "act_on_worker",
    "worker uncordon": "act_on_worker",
    "worker drain": "act_on_worker",
    "status": "show_status list_problems",
    "top": "show_status list_feeds",
    "doctor": "diagnose_fleet try_alerts",
    "sync": "list_catalogs sync_catalog",
    "do": "",  # any of them
    "connectors": "list_connectors show_connector",
    "token add": "add_token",
    "token list": "list_tokens",
    "token remove": "remove_token",
}
"""Commands, and the verbs that do what they do."""
OF_PAGES = {"count_feeds", "list_landed", "show_landed"}
"""Verbs that pages alone ask."""


def test_no_verb_of_the_command_line_is_missing() -> None:
    commands = {path.removeprefix("feedq ") for path in COMMANDS}
    assert commands == VERBS.keys() | LOCAL
    assert not VERBS.keys() & LOCAL


def test_the_verbs_that_stand_for_commands_exist_and_there_are_no_others() -> None:
    assert {verb for verbs in VERBS.values() for verb in verbs.split()} | OF_PAGES == load().keys()


def test_no_module_with_verbs_is_left_out() -> None:
    verbs = PACKAGE / "verbs"
    written = {
        ".".join(path.relative_to(verbs).with_suffix("").parts)
        for path in verbs.rglob("*.py")
        if "\n@verb(" in path.read_text()
    }
    assert written == set(MODULES)


def test_each_address_is_documented() -> None:
    written = (ROOT / "docs/reference/api.md").read_text()
    looking, _, changes = written.partition("## Changes")
    for verb in load().values():
        table = changes if verb.changes else looking
        assert re.search(f"^\\| .*`{re.escape(verb.path)}`.* \\|$", table, re.MULTILINE), verb.path
