-- Tokens of the API, of which only the hash is kept; and what is remembered of catalogs.

-- Makes a token. Answers with why not: `taken`, or `full` when there are as many as there may be; else with nothing.
CREATE FUNCTION feedq_1.add_token(named text, hashed bytea, as_role text, of_tenant text, lasts_s float8, most int)
RETURNS json LANGUAGE plpgsql AS $body$
BEGIN
    IF (SELECT count(*) FROM feedq.token) >= most THEN
        RETURN '"full"';
    END IF;
    INSERT INTO feedq.token (name, hash, role, tenant, expires_at)
    VALUES (named, hashed, as_role, of_tenant, feedq.clock() + make_interval(secs => lasts_s))
    ON CONFLICT (name) DO NOTHING;
    IF NOT FOUND THEN
        RETURN '"taken"';
    END IF;
    RETURN '""';
END $body$;

-- Ends a token at once. Answers with false when there is none of that name.
CREATE FUNCTION feedq_1.remove_token(named text) RETURNS boolean LANGUAGE plpgsql AS $body$
BEGIN
    DELETE FROM feedq.token WHERE name = named;
    RETURN FOUND;
END $body$;

-- Keeps how a sync left a catalog: as which version of its content its feeds are, and what they were right after it.
CREATE FUNCTION feedq_1.note_catalog(named text, at_version text, in_state text) RETURNS boolean LANGUAGE plpgsql AS $body$
BEGIN
    INSERT INTO feedq.catalog (name, version, owned) VALUES (named, at_version, in_state)
    ON CONFLICT (name) DO UPDATE SET version = excluded.version, owned = excluded.owned;
    RETURN true;
END $body$;
