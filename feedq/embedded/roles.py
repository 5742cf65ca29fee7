"""The roles that the processes of `feedq up` have in its own PostgreSQL: those of `feedq db grants`.

Their passwords are made up once and kept as those of the servers are. The superuser makes the roles at each start
and does nothing else. What it made in ``public`` while an earlier release ran everything as the superuser is
handed over to the role of the default sink.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from feedq.embedded.postgres import USER, Postgres
from feedq.embedded.server import kept_password
from feedq.settings import DEFAULT_SINK
from feedq.store import grants

SINK = grants.sink_role(DEFAULT_SINK)
NAMES = (*map(str, grants.Role), SINK)

_HAND_OVER = f"""
    DO $$ DECLARE found record; BEGIN
        FOR found IN SELECT c.oid::regclass AS name, c.relkind FROM pg_class c
            WHERE c.relnamespace = 'public'::regnamespace AND pg_get_userbyid(c.relowner) = '{USER}'
                AND c.relkind IN ('r', 'p', 'v', 'm', 'f') AND NOT EXISTS (
                    SELECT FROM pg_depend d WHERE d.classid = 'pg_class'::regclass AND d.objid = c.oid
                        AND d.deptype = 'e')
        LOOP
            EXECUTE format('ALTER TABLE %s OWNER TO %I', found.name, '{grants.PREFIX}{SINK}');
        END LOOP;
    END $$
"""  # noqa: S608 - constants


def make_roles(postgres: Postgres, passwords: Path) -> Mapping[str, str]:
    """Make what is missing; returns the URL of the database by role. ``passwords`` is a directory.

    Raises `Unavailable`.
    """
    passwords.mkdir(exist_ok=True, mode=0o700)
    kept = {name: kept_password(passwords / f"{name}.password", account=None) for name in NAMES}
    admin = postgres.url()
    with grants.opened(admin) as connection:
        sink = grants.sink_tables(connection, DEFAULT_SINK, with_control=True)
        grants.apply(admin, grants.script(connection, grants.PREFIX, [sink], kept), connection)
        with connection.cursor() as cursor:
            cursor.execute(_HAND_OVER)
        connection.commit()
    return {
        name: postgres.url(user=grants.role_name(grants.PREFIX, name), password=kept[name]) for name in NAMES
    }
