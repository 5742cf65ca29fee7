"""The SQL of the sink, and the two conditions that everything rests on: `EPOCH_MATCHES` and `COMMIT_MATCHES`.

Statements are composed from constants of this module only; values always travel as parameters.

Rows of ``feedq_checkpoint`` are always locked in the order of their feed ids, so that group commits, fences
and settlements wait for one another but never deadlock. Every fence and every commit leaves a ``commit_id`` that
nobody ever used before: who comes back to a row knows by it whether it is as he left it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

EPOCH_MATCHES: Final = "c.epoch = m.epoch"
"""Only the owner of this very epoch may lock, land and advance. Without it a worker that was paused would
write beside its successor."""
COMMIT_MATCHES: Final = "(m.commit = 0 OR c.commit_id = (%(commits)s::uuid[])[m.commit])"
"""Only the checkpoint that the feed left may be continued. Without it a sink that has lost commits (a restored
backup, a promoted replica) would be written to as if nothing were missing, and its cursor moved beyond the gap.
Few commits stand for thousands of feeds, so that each names its own by a number; 0 names none."""
_BETWEEN: Final = "\0"
"""No text that PostgreSQL takes holds one."""

CREATION_LOCK: Final = "SELECT pg_advisory_xact_lock(hashtext('feedq.create'));"
"""Before something is created IF NOT EXISTS, which fails when two sessions do it at the same moment."""

LOCK_MINE: Final = f"""
WITH mine AS MATERIALIZED (
    SELECT * FROM unnest(%(feed_ids)s::bigint[], %(epochs)s::bigint[], %(continues)s::int[])
        AS m (feed_id, epoch, commit)
), locked AS MATERIALIZED (
    SELECT m.feed_id, m.epoch
    FROM feedq_checkpoint AS c JOIN mine AS m ON m.feed_id = c.feed_id AND {EPOCH_MATCHES} AND {COMMIT_MATCHES}
    WHERE c.environment = %(environment)s
    ORDER BY c.feed_id
    FOR NO KEY UPDATE OF c SKIP LOCKED
)
SELECT feed_id, epoch FROM mine EXCEPT SELECT feed_id, epoch FROM locked
"""
# Those that are not ours any more are few, and to read thousands of rows that say nothing costs the client a lot.
# A row that somebody has locked is not waited for: it would hold up all the others.

ADVANCE: Final = f"""
UPDATE feedq_checkpoint AS c
SET cursor = m.cursor::json, records = c.records + m.records, commit_id = %(commit_id)s, is_given = false,
    updated_at = clock_timestamp()
FROM unnest(%(feed_ids)s::bigint[], %(epochs)s::bigint[], %(cursors)s::text[], %(records)s::bigint[])
    AS m (feed_id, epoch, cursor, records)
WHERE c.environment = %(environment)s AND c.feed_id = m.feed_id AND {EPOCH_MATCHES}
"""

FENCE: Final = """
INSERT INTO feedq_checkpoint AS c (environment, feed_id, feed, epoch, owner, commit_id, feed_uuid, installation)
SELECT %(environment)s, m.feed_id, m.feed, m.epoch, %(owner)s, %(commit_id)s, m.feed_uuid, m.installation
FROM unnest(%(feed_ids)s::bigint[], %(feeds)s::text[], %(epochs)s::bigint[], %(feed_uuids)s::uuid[],
            %(installations)s::uuid[]) AS m (feed_id, feed, epoch, feed_uuid, installation)
ORDER BY m.feed_id
ON CONFLICT (environment, feed_id) DO UPDATE
SET epoch = excluded.epoch, owner = excluded.owner, feed = excluded.feed, commit_id = excluded.commit_id,
    feed_uuid = excluded.feed_uuid, installation = excluded.installation, updated_at = clock_timestamp()
WHERE c.epoch < excluded.epoch OR (c.epoch = excluded.epoch AND c.owner = excluded.owner)
RETURNING feed_id, epoch, cursor, records, is_given
"""
# As `feedq.sinks.session` has it for other databases; by arrays, hundreds of feeds take a fifth of the time.

END_SESSIONS: Final = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE datname = current_database() AND application_name = ANY(%(names)s) AND pid <> pg_backend_pid()
    AND (%(pid)s IS NULL OR pid = %(pid)s)
"""

COPY_DEAD_LETTERS: Final = (
    "COPY feedq_dead_letter (environment, feed_id, feed, epoch, record, error, cursor) FROM STDIN"
)

INPUT_ERRORS: Final = """
SELECT t.n, e.message, e.detail, e.sql_error_code
FROM unnest(%(texts)s::text[]) WITH ORDINALITY AS t (text, n),
    LATERAL pg_input_error_info(t.text, %(type)s) AS e
WHERE e.message IS NOT NULL
"""
# PostgreSQL 16 and later: asks input functions about many values at once, without an error for each.

_FINGERPRINT: Final = """c.oid, concat_ws(' ', c.relnamespace::regnamespace, c.relname, c.relowner, c.relacl,
    (SELECT string_agg(concat(a.xmin, a.ctid), ' ' ORDER BY a.attnum)
     FROM pg_attribute AS a WHERE a.attrelid = c.oid AND a.attnum > 0),
    (SELECT string_agg(concat(i.indexrelid, i.xmin, i.ctid), ' ' ORDER BY i.indexrelid)
     FROM pg_index AS i WHERE i.indrelid = c.oid AND i.indisunique))"""
# The rows of the catalog for a column or an index are written anew whenever anything about it changes. Without the
# unique index of its key, a table would take a record twice.

FINGERPRINTS: Final = f"SELECT {_FINGERPRINT} FROM pg_class AS c WHERE c.oid = ANY(%(oids)s::oid[])"
# With each commit, so it takes no names: to look these up costs more than all the rest.

DESCRIBE: Final = f"""
SELECT w.n, {_FINGERPRINT}, ns.nspname, c.relname, c.relkind::text,
    CASE WHEN NOT has_schema_privilege(ns.oid, 'USAGE') THEN pg_get_userbyid(ns.nspowner)::text END,
    current_user::text, pg_get_userbyid(c.relowner)::text,
    (SELECT jsonb_agg(jsonb_build_object(
        'name', a.attname,
        'type', format_type(a.atttypid, NULL),
        'definition', format_type(a.atttypid, a.atttypmod),
        'not_null', a.attnotnull,
        'has_default', a.atthasdef OR a.attidentity <> '',
        'generated', a.attgenerated <> '' OR a.attidentity = 'a',
        'insertable', has_column_privilege(c.oid, a.attnum, 'INSERT'),
        'selectable', has_column_privilege(c.oid, a.attnum, 'SELECT'),
        'updatable', has_column_privilege(c.oid, a.attnum, 'UPDATE'),
        'remedy', (
            SELECT format('have %%I run GRANT USAGE ON SEQUENCE %%I.%%I TO %%I',
                pg_get_userbyid(s.relowner), sn.nspname, s.relname, current_user)
            FROM pg_attrdef AS d
            JOIN pg_depend AS p ON p.classid = 'pg_attrdef'::regclass AND p.objid = d.oid
                AND p.refclassid = 'pg_class'::regclass
            JOIN pg_class AS s ON s.oid = p.refobjid
            JOIN pg_namespace AS sn ON sn.oid = s.relnamespace
            WHERE d.adrelid = c.oid AND d.adnum = a.attnum
                AND CASE WHEN s.relkind = 'S' THEN NOT has_sequence_privilege(s.oid, 'USAGE, UPDATE') END
            LIMIT 1)) ORDER BY a.attnum)
     FROM pg_attribute AS a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped),
    (SELECT jsonb_agg((SELECT jsonb_agg(a.attname) FROM pg_attribute AS a
                      WHERE a.attrelid = c.oid
                          AND a.attnum = ANY((i.indkey::int2[])[0:i.indnkeyatts - 1])))
     FROM pg_index AS i
     WHERE i.indrelid = c.oid AND i.indisunique AND i.indimmediate AND i.indisvalid
        AND i.indpred IS NULL AND i.indexprs IS NULL)
FROM unnest(%(numbers)s::int[], %(schemas)s::text[], %(names)s::text[]) AS w (n, schema, name)
JOIN pg_class AS c ON c.relname = w.name AND c.relpersistence <> 't'
JOIN pg_namespace AS ns ON ns.oid = c.relnamespace
WHERE CASE WHEN w.schema IS NULL THEN pg_table_is_visible(c.oid) ELSE ns.nspname = w.schema END
    AND c.relkind IN ('r', 'p', 'f', 'v', 'm', 'S')
"""

REMEDY: Final = """
SELECT format('have %%I run GRANT %%s ON %%s TO %%I', pg_get_userbyid(o.owner), o.rights, o.object, current_user)
FROM (
    SELECT c.relname AS name, c.relowner AS owner,
        CASE c.relkind WHEN 'S' THEN 'SEQUENCE ' ELSE '' END || format('%%I.%%I', n.nspname, c.relname) AS object,
        CASE WHEN c.relkind <> 'S' THEN (
            SELECT string_agg(r, ', ') FROM unnest(%(rights)s) AS r WHERE NOT has_table_privilege(c.oid, r))
        WHEN NOT has_sequence_privilege(c.oid, 'USAGE, UPDATE') THEN 'USAGE' END AS rights
    FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
    WHERE c.relkind IN ('r', 'p', 'f', 'v', 'm', 'S')
    UNION ALL
    SELECT p.proname, p.proowner,
        format('FUNCTION %%I.%%I(%%s)', n.nspname, p.proname, pg_get_function_identity_arguments(p.oid)), 'EXECUTE'
    FROM pg_proc AS p JOIN pg_namespace AS n ON n.oid = p.pronamespace
    WHERE NOT has_function_privilege(p.oid, 'EXECUTE')
    UNION ALL
    SELECT nspname, nspowner, format('SCHEMA %%I', nspname),
        CASE WHEN has_schema_privilege(oid, 'USAGE') THEN 'CREATE' ELSE 'USAGE' END
    FROM pg_namespace WHERE NOT (has_schema_privilege(oid, 'USAGE') AND has_schema_privilege(oid, 'CREATE'))
    UNION ALL
    SELECT datname, datdba, format('DATABASE %%I', datname), %(of_database)s
    FROM pg_database WHERE datname = current_database() AND NOT has_database_privilege(oid, %(of_database)s)
) AS o
WHERE strpos(%(said)s, o.name) > 0 AND o.rights IS NOT NULL
ORDER BY length(o.name) DESC LIMIT 1
"""
# The server's message has the bare name of what may not be used, and nothing else tells it.


def integers(values: Iterable[int]) -> str:
    """A list in PostgreSQL's own notation, for a parameter that a statement casts to ``bigint[]``.

    psycopg2 makes an object for each element of a list and asks it for its text, all with the interpreter's lock
    held: for a statement about 2,500 feeds that is ten milliseconds in which no stream is read.
    """
    return f"{{{','.join(map(str, values))}}}"


def texts(values: Sequence[str | None]) -> str:
    """Writes a list for ``text[]``, likewise. Raises `ValueError` for a text with a NUL."""
    if None in values:
        return f"{{{','.join('NULL' if value is None else _quoted(value) for value in values)}}}"
    joined = _BETWEEN.join(values)  # type: ignore[arg-type]  # none of them is None
    if joined.count(_BETWEEN) != max(0, len(values) - 1):
        raise ValueError("a text with a NUL character cannot be a parameter")
    between = '","'
    return f"{{{_quoted(joined).replace(_BETWEEN, between)}}}" if values else "{}"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
