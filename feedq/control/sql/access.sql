-- Tokens of the API, of which only the hash is kept.

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
