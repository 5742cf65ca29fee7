"""Whatever the command line does, the API does; but for what makes no sense from elsewhere."""

from __future__ import annotations

from feedq.api.app import document_of
from feedq.cli.root import LOCAL
from tests.repository.test_cli_docs import COMMANDS

VERBS = {
    "apply": "declare_feeds put_feed remove_feed put_schedule remove_schedule put_queue remove_queue",
    "diff": "put_feed put_schedule put_queue",
    "export": "export_feeds show_declaration export_schedules show_schedule_declaration",
    "schema": "show_schema",
    "events": "list_events list_events_of_feed",
    "feed set": "patch_feed",
    "feed edit": "put_feed",
    "feed list": "list_feeds",
    "feed show": "show_feed",
    "feed history": "show_landed",
    "feed cursor show": "show_cursor",
    "feed cursor set": "set_cursor",
    "feed cursor rewind": "rewind_cursor reset_cursor",
    "feed backfill begin": "begin_backfill",
    "feed backfill show": "show_backfill list_backfills",
    "feed backfill cancel": "cancel_backfill",
    "feed dead-letters list": "list_dead_letters show_dead_letter",
    "feed dead-letters replay": "replay_dead_letters",
    "feed dead-letters drop": "drop_dead_letters",
    "feed tap": "tap_feed",
    "feed drift": "show_drift add_columns",
    "feed pause": "pause_feed act_on_feeds",
    "feed resume": "resume_feed act_on_feeds",
    "feed restart": "restart_feed act_on_feeds",
    "feed move": "move_feed act_on_feeds",
    "feed adopt": "adopt_checkpoint",
    "feed remove": "remove_feed act_on_feeds",
    "schedule set": "patch_schedule",
    "schedule edit": "put_schedule",
    "schedule list": "list_schedules list_queues",
    "schedule show": "show_schedule",
    "schedule next": "show_next_ticks",
    "schedule runs": "list_runs show_run",
    "schedule trigger": "trigger_schedule",
    "schedule backfill": "backfill_schedule",
    "schedule pause": "pause_schedule",
    "schedule resume": "resume_schedule",
    "schedule remove": "remove_schedule",
    "schedule cancel": "cancel_run purge_schedule",
    "worker list": "list_workers",
    "worker show": "show_worker",
    "worker cordon": "cordon_worker",
    "worker uncordon": "uncordon_worker",
    "worker drain": "drain_worker",
    "status": "show_status list_problems",
    "top": "show_status list_feeds",
    "doctor": "show_doctor",
    "sync": "list_catalogs sync_catalog",
    "connectors": "list_connectors show_connector",
    "token add": "add_token",
    "token list": "list_tokens",
    "token remove": "remove_token",
}
"""Commands, and the operations that do what they do."""


def test_the_api_lacks_no_verb_of_the_command_line() -> None:
    commands = {path.removeprefix("feedq ") for path in COMMANDS}
    assert commands == VERBS.keys() | LOCAL
    assert not VERBS.keys() & LOCAL


def test_the_operations_that_stand_for_commands_exist() -> None:
    operations = {
        operation["operationId"] for path in document_of()["paths"].values() for operation in path.values()
    }
    named = {one for operations in VERBS.values() for one in operations.split()}
    assert named - operations == set()
    assert operations - named == set()
