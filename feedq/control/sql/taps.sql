-- Taps: who listens to the records of which feed, and what they are shown.
--
-- A row a listener, so that a tap ends with the last one who leaves, or with the time of those who were killed
-- (`is_listening`). What is shown is kept for a minute, in a table that is not logged: no archive of changes has records
-- of customers. Run twice, each of these leaves the same behind.

-- Shows what a worker has landed, of each feed the latest parts; what nobody listens to is dropped.
CREATE FUNCTION feedq_1.show_landed(session uuid, parts json, kept int) RETURNS boolean LANGUAGE plpgsql AS $body$
BEGIN
    INSERT INTO feedq.tap_part (feed_id, epoch, worker, records, left_out, refused)
    SELECT given.feed_id, given.epoch, (SELECT name FROM feedq.worker WHERE id = session), given.records,
        given.left_out, given.refused
    FROM ROWS FROM (json_to_recordset(parts) AS (
            feed_id bigint, epoch bigint, records text, left_out bigint, refused bigint))
        WITH ORDINALITY AS given (feed_id, epoch, records, left_out, refused, place)
    WHERE EXISTS (SELECT FROM feedq.tap t WHERE t.feed_id = given.feed_id AND feedq_1.is_listening(t))
    ORDER BY place;
    DELETE FROM feedq.tap_part p USING json_to_recordset(parts) AS given (feed_id bigint)
    WHERE p.feed_id = given.feed_id AND p.id <= (
        SELECT id FROM feedq.tap_part WHERE feed_id = given.feed_id ORDER BY id DESC OFFSET kept LIMIT 1);
    RETURN true;
END $body$;

-- Says that somebody still listens; made anew if it is not there: perhaps nothing was heard of the listener for long.
-- Answers with false when the feed is gone, or being removed.
CREATE FUNCTION feedq_1.listen(to_feed bigint, listener uuid) RETURNS boolean LANGUAGE plpgsql AS $body$
BEGIN
    INSERT INTO feedq.tap (id, feed_id) SELECT listener, id FROM feedq.feed WHERE id = to_feed AND removed_at IS NULL
    ON CONFLICT (id) DO UPDATE SET listened_at = feedq.clock();
    RETURN FOUND;
END $body$;

-- Forgets what nobody listens to any more.
CREATE FUNCTION feedq_1.forget_shown() RETURNS boolean LANGUAGE plpgsql AS $body$
BEGIN
    DELETE FROM feedq.tap_part p WHERE NOT EXISTS (SELECT FROM feedq.tap t WHERE t.feed_id = p.feed_id);
    RETURN FOUND;
END $body$;

-- Begins to listen. Answers with the last part that is there already, or with why not (`refusal`):
-- the feed is `gone`, or as many as may listen already (`full`).
CREATE FUNCTION feedq_1.open_tap(to_feed bigint, listener uuid, most int) RETURNS json LANGUAGE plpgsql AS $body$
BEGIN
    LOCK TABLE feedq.tap IN SHARE ROW EXCLUSIVE MODE;
    DELETE FROM feedq.tap t WHERE NOT feedq_1.is_listening(t);
    PERFORM feedq_1.forget_shown();
    IF (SELECT count(*) FROM feedq.tap) >= most THEN
        RETURN json_build_object('refusal', 'full');
    ELSIF NOT feedq_1.listen(to_feed, listener) THEN
        RETURN json_build_object('refusal', 'gone');
    END IF;
    RETURN json_build_object('last', (SELECT coalesce(max(id), 0) FROM feedq.tap_part WHERE feed_id = to_feed));
END $body$;

-- Ends to listen.
CREATE FUNCTION feedq_1.close_tap(listener uuid) RETURNS boolean LANGUAGE plpgsql AS $body$
BEGIN
    DELETE FROM feedq.tap WHERE id = listener;
    RETURN feedq_1.forget_shown();
END $body$;
