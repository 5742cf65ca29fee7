"""History that folds the same trouble of a feed into one event."""

from feedq.store.migrations import run_live

revision = "0009"
down_revision = "0008"

COLUMNS = """
    ALTER TABLE feedq.event
        ADD COLUMN IF NOT EXISTS count integer NOT NULL DEFAULT 1,
        ADD COLUMN IF NOT EXISTS since timestamptz
"""

# As `feedq.store.history` says it, and `tests/fakes/memory/history.py` in Python. The one that is kept is the one
# that comes, so that events stay in the order of their ids. Of what somebody trims just now nothing is folded: to
# wait for a pass could be to wait for each other. With its owner's rights, for those who may write history and not
# change it.
FOLD = """
    CREATE OR REPLACE FUNCTION feedq.fold_event() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog AS $body$
    DECLARE
        tries constant text[] := '{lease_assigned,lease_claimed,lease_raised}';
        before feedq.event;
        begins bigint;
    BEGIN
        SELECT * INTO before FROM feedq.event
        WHERE feed_id = NEW.feed_id AND kind <> ALL (tries) ORDER BY id DESC LIMIT 1;
        IF before.id IS NULL OR before.kind <> NEW.kind OR before.at < NEW.at - interval '1 hour'
            OR before.detail ->> 'reason' IS DISTINCT FROM NEW.detail ->> 'reason'
        THEN
            RETURN NEW;
        END IF;
        PERFORM FROM feedq.event WHERE id = before.id FOR UPDATE SKIP LOCKED;
        IF NOT FOUND THEN
            RETURN NEW;
        END IF;
        SELECT coalesce(max(id), 0) INTO begins FROM feedq.event
        WHERE feed_id = NEW.feed_id AND id < before.id AND kind <> ALL (tries);
        WITH tried AS (
            SELECT id, kind, at, since, count FROM feedq.event
            WHERE feed_id = NEW.feed_id AND id > begins AND kind = ANY (tries) FOR UPDATE SKIP LOCKED
        ), latest AS (
            SELECT kind, max(id) AS id, sum(count) AS count, min(coalesce(since, at)) AS since
            FROM tried GROUP BY kind HAVING count(*) > 1
        ), dropped AS (
            DELETE FROM feedq.event e USING tried, latest
            WHERE e.id = tried.id AND tried.kind = latest.kind AND tried.id <> latest.id
        )
        UPDATE feedq.event e SET count = latest.count, since = latest.since FROM latest WHERE e.id = latest.id;
        DELETE FROM feedq.event WHERE id = before.id;
        NEW.count := before.count + NEW.count;
        NEW.since := coalesce(before.since, before.at);
        RETURN NEW;
    END $body$
"""

TRIGGER = """
    CREATE OR REPLACE TRIGGER event_fold BEFORE INSERT ON feedq.event FOR EACH ROW
    WHEN (NEW.feed_id IS NOT NULL AND (NEW.kind IN ('lease_overdue', 'sink_rewound') OR (
        NEW.kind = 'lease_released'
        AND NEW.detail ->> 'reason' IN ('backoff', 'fenced', 'quarantined'))))
    EXECUTE FUNCTION feedq.fold_event()
"""


def upgrade() -> None:
    run_live(COLUMNS, FOLD, TRIGGER)
