"""The table of rights has a word for every table, and names only what there is."""

from __future__ import annotations

from feedq.store.grants import CHANGES, DECLARED, INHERITS, SEQUENCES, Right, Role
from feedq.store.tables import SCHEMA, metadata

TABLES = {table.name: table for table in metadata.sorted_tables}


def test_every_table_says_who_may_change_it() -> None:
    """A new table: add it to `CHANGES` in feedq/store/grants.py, with the roles whose processes write to it."""
    assert CHANGES.keys() == TABLES.keys()
    # Who this installation is was said once, by the migration.
    assert [table for table, changes in CHANGES.items() if not changes] == ["installation"]


def test_every_sequence_that_is_asked_by_name_says_who_may() -> None:
    named = set(metadata._sequences)
    identities = {f"{name}_id_seq" for name, table in TABLES.items() if "id" in table.columns}
    assert {name.removeprefix(f"{SCHEMA}.") for name in named} <= SEQUENCES.keys()
    assert SEQUENCES.keys() <= {name.removeprefix(f"{SCHEMA}.") for name in named} | identities


def test_what_is_declared_is_a_column_and_there_are_others() -> None:
    for table, declared in DECLARED.items():
        columns = set(TABLES[table].columns.keys())
        assert set(declared) < columns, table
    with_state = {
        table
        for table, changes in CHANGES.items()
        if any(Right.UPDATE_STATE in rights for rights in changes.values())
    }
    assert with_state == DECLARED.keys()


def test_only_the_operator_declares_feeds_and_a_reader_changes_nothing() -> None:
    declaring = {Right.INSERT, Right.UPDATE}
    assert {role for role, rights in CHANGES["feed"].items() if declaring & set(rights)} == {Role.OPERATOR}
    assert Role.READER not in {role for changes in CHANGES.values() for role in changes}
    assert Role.MIGRATION not in {role for changes in CHANGES.values() for role in changes}, "it owns them"
    assert Role.OPERATOR not in INHERITS
