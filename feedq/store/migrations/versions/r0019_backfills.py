"""Backfills: feeds beside others, which have the declaration of their parent and follow what becomes of it."""

from feedq.store.migrations import run_live

revision = "0019"
down_revision = "0018"

STATEMENTS = """
    ALTER TABLE feedq.feed
        ADD COLUMN IF NOT EXISTS parent bigint,
        ADD COLUMN IF NOT EXISTS backfill jsonb;

    CREATE INDEX IF NOT EXISTS feed_parent ON feedq.feed (parent) WHERE parent IS NOT NULL
"""

# Whoever changes a feed, one or thousands, by a command or by hand, changes its backfill in the same transaction.
# One whose cursors would mean something else by now, or whose rows would double, ends.
FOLLOW = """
    CREATE OR REPLACE FUNCTION feedq.follow_parent() RETURNS trigger LANGUAGE plpgsql AS $body$
    BEGIN
        WITH followed AS (
            UPDATE feedq.feed f SET
                name = NEW.name || '~backfill', tenant = NEW.tenant, labels = NEW.labels, weight = NEW.weight,
                selector = NEW.selector, target_state = NEW.target_state, sink = NEW.sink,
                source = NEW.source || jsonb_build_object('limits', f.source -> 'limits'),
                removed_at = CASE WHEN NEW.removed_at IS NOT NULL OR NEW.connector <> f.connector
                        OR coalesce(NEW.sink -> 'key', '[]') = '[]' THEN clock_timestamp() END,
                generation = f.generation + 1, dirty = true, updated_at = clock_timestamp()
            WHERE f.parent = NEW.id AND f.removed_at IS NULL
            RETURNING f.removed_at
        )
        INSERT INTO feedq.event (kind, feed_id, detail)
        SELECT 'backfill_cancelled', NEW.id, jsonb_build_object('why',
            CASE WHEN NEW.removed_at IS NULL THEN 'feed edited' ELSE 'feed removed' END)
        FROM followed WHERE removed_at IS NOT NULL;
        RETURN NULL;
    END $body$
"""

TRIGGER = """
    CREATE OR REPLACE TRIGGER feed_followed AFTER UPDATE ON feedq.feed FOR EACH ROW
        WHEN (NEW.parent IS NULL
            AND (NEW.generation <> OLD.generation OR NEW.removed_at IS DISTINCT FROM OLD.removed_at))
        EXECUTE FUNCTION feedq.follow_parent();
"""


def upgrade() -> None:
    run_live(STATEMENTS, FOLLOW, TRIGGER)
