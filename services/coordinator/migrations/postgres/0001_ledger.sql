-- The ledger. One set of names for both databases; `receipts contract` §8 says what each column promises.
-- Times are milliseconds since 1970 by the database clock, taken inside the statement by `now_ms()`. JSON is kept as the
-- bytes that arrived. A `*_ref` is the text `<sha256 hex>.<size>` of a payload of the same bucket.
--
-- Seven tables are partitioned by `bucket`, the UTC day of the run, so that a day is dropped at once. Days are created
-- ahead; the default partitions take what no day is there for, so that a write never fails for want of one.
--
-- Keys end with `bucket`: it prunes partitions and is the same in all rows of one, so a range of it must never look like
-- a cheap way into a day without statistics.

CREATE FUNCTION now_ms() RETURNS BIGINT LANGUAGE sql VOLATILE PARALLEL SAFE
    AS $$ SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint $$;

-- Whether a backend may have forgotten a key: nine tenths of its promise have passed since the first claim.
CREATE FUNCTION key_window_closed(first_claim_ms BIGINT, key_ttl_ms BIGINT, now_ms BIGINT) RETURNS BOOLEAN
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS $$ SELECT coalesce(now_ms >= first_claim_ms + (key_ttl_ms - (key_ttl_ms + 9) / 10), false) $$;

CREATE TABLE sessions (
    session_id  TEXT     NOT NULL PRIMARY KEY,
    role        SMALLINT NOT NULL,              -- 1 coordinator, 2 worker
    kind        TEXT     NOT NULL,
    name        TEXT     NOT NULL,
    build       TEXT     NOT NULL,
    instance    TEXT,                           -- exclusive name of the replica
    started_ms  BIGINT   NOT NULL,
    expires_ms  BIGINT   NOT NULL,
    dead_ms     BIGINT,                         -- set once
    closed      BOOLEAN  NOT NULL DEFAULT false, -- known to be over (closed, or replaced by its instance), not only silent
    ledger_mark TEXT                            -- database identity and timeline seen at the start
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 200);

CREATE TABLE offers (
    session_id TEXT    NOT NULL,
    n          INTEGER NOT NULL,
    kind       TEXT    NOT NULL,
    pool       TEXT,
    node       TEXT    NOT NULL,
    source     TEXT,
    offer      BYTEA   NOT NULL,
    PRIMARY KEY (session_id, n)
);

-- Submit keys outlive the day of their run.
CREATE TABLE submissions (
    namespace  TEXT    NOT NULL,
    submit_key TEXT    NOT NULL,
    bucket     INTEGER NOT NULL,
    loop_id    TEXT    NOT NULL,
    body_hash  BYTEA   NOT NULL,
    created_ms BIGINT  NOT NULL,
    PRIMARY KEY (namespace, submit_key)
);

CREATE TABLE loops (
    bucket          INTEGER  NOT NULL,
    loop_id         TEXT     NOT NULL COLLATE "C",
    namespace       TEXT     NOT NULL COLLATE "C",
    submit_key      TEXT,
    body_hash       BYTEA    NOT NULL,
    loop_name       TEXT     NOT NULL,
    loop_rev        TEXT     NOT NULL,
    status          SMALLINT NOT NULL,
    owner_session   TEXT,
    epoch           BIGINT   NOT NULL DEFAULT 0,
    version         BIGINT   NOT NULL DEFAULT 0,
    bell            BIGINT   NOT NULL DEFAULT 0, -- rung by every write the owner must learn of
    bell_seen       BIGINT   NOT NULL DEFAULT 0, -- up to here its owner has read everything
    wake_ms         BIGINT,
    deadline_ms     BIGINT,
    cancel_ms       BIGINT,
    ended_ms        BIGINT,
    signal_seen     BIGINT   NOT NULL DEFAULT 0,
    created_ms      BIGINT   NOT NULL,
    traceparent     TEXT,
    input           BYTEA,
    input_ref       TEXT,
    output          BYTEA,
    output_ref      TEXT,
    error_class     TEXT,
    error_code      TEXT,
    error_message   TEXT,
    error_retryable BOOLEAN,
    PRIMARY KEY (loop_id, bucket)
) PARTITION BY RANGE (bucket);
CREATE INDEX loops_namespace ON loops (namespace, loop_id);
-- No column of these changes when a run advances from running to running, so that its row stays in its page.
CREATE INDEX loops_active ON loops (owner_session) WHERE status IN (1, 2, 4);
CREATE INDEX loops_bell ON loops (owner_session) WHERE ended_ms IS NULL AND bell > bell_seen;
CREATE INDEX loops_open ON loops (status) WHERE status < 5;
CREATE INDEX loops_wake ON loops (wake_ms) WHERE ended_ms IS NULL AND wake_ms IS NOT NULL;

CREATE TABLE checkpoints (
    bucket     INTEGER NOT NULL,
    loop_id    TEXT    NOT NULL COLLATE "C",
    version    BIGINT  NOT NULL,
    epoch      BIGINT  NOT NULL,
    session_id TEXT    NOT NULL,
    body_hash  BYTEA   NOT NULL,
    body       BYTEA,                           -- NULL once pruned
    boundary   BOOLEAN NOT NULL,
    progress   BYTEA,
    created_ms BIGINT  NOT NULL,
    PRIMARY KEY (loop_id, version, bucket)
) PARTITION BY RANGE (bucket);

CREATE TABLE receipts (
    bucket            INTEGER  NOT NULL,
    call_uid          TEXT     NOT NULL COLLATE "C",
    loop_id           TEXT     NOT NULL COLLATE "C",
    decided_version   BIGINT   NOT NULL,
    decided_at        INTEGER  NOT NULL,        -- ascending within its version
    kind              SMALLINT NOT NULL,        -- 1 tool 2 mcp 3 delivery 4 infer 5 memory 6 context
    call_id           TEXT     NOT NULL COLLATE "C",
    node              TEXT     NOT NULL,
    source            TEXT,
    pool              TEXT,
    label             TEXT     NOT NULL,
    policy            BYTEA    NOT NULL,        -- JSON of the pinned policy; the next seven repeat it for guards
    effect_class      SMALLINT NOT NULL,        -- R 1, K 2, N 3
    exclusive         BOOLEAN  NOT NULL,
    unclaimed         BOOLEAN  NOT NULL,        -- executed without a claim
    has_query         BOOLEAN  NOT NULL,
    rejections_stored BOOLEAN  NOT NULL,
    key_ttl_ms        BIGINT,
    max_attempts      INTEGER  NOT NULL,
    on_unknown        SMALLINT NOT NULL,        -- 1 park 2 surface 3 fail
    idem_key          TEXT     NOT NULL,
    request_hash      BYTEA    NOT NULL,
    state             SMALLINT NOT NULL,        -- 1 planned 2 claimed 3 succeeded 4 failed 5 unknown 6 cancelled
    fence             INTEGER  NOT NULL DEFAULT 0,
    unresolved        INTEGER  NOT NULL DEFAULT 0,
    claim_token       TEXT,                     -- of the current fence
    session_id        TEXT,
    claimed_ms        BIGINT,
    first_claim_ms    BIGINT,
    dispatch_no       INTEGER  NOT NULL,
    reconcile_no      INTEGER  NOT NULL DEFAULT 0,
    due_ms            BIGINT   NOT NULL,        -- when somebody must look at it again
    unknown_ms        BIGINT,                   -- first became unknown
    deadline_ms       BIGINT,
    cancel_ms         BIGINT,
    settled_ms        BIGINT,
    settled_by        SMALLINT,                 -- 1 worker 2 late result 3 query 4 person 5 sweeper
    settle_rev        INTEGER  NOT NULL DEFAULT 0,
    created_ms        BIGINT   NOT NULL,
    traceparent       TEXT,
    error_class       TEXT,
    error_code        TEXT,
    error_message     TEXT,
    error_retryable   BOOLEAN,
    request           BYTEA,
    request_ref       TEXT,
    outcome           BYTEA,
    outcome_ref       TEXT,
    PRIMARY KEY (call_uid, bucket),
    UNIQUE (loop_id, kind, call_id, bucket),
    CHECK (unresolved >= 0 AND unresolved <= fence)
) PARTITION BY RANGE (bucket);
-- The open set: outbox, lease table and reconcile queue at once. By `settled_ms`, not `state`: a claim changes no
-- indexed column and stays in its page.
CREATE INDEX receipts_open ON receipts (due_ms) WHERE settled_ms IS NULL;
CREATE INDEX receipts_unknown ON receipts (call_uid) WHERE unknown_ms IS NOT NULL;

-- What did not change a receipt, or replaced an attempt of it.
CREATE SEQUENCE attempts_n CACHE 32;
CREATE TABLE attempts (
    bucket      INTEGER  NOT NULL,
    call_uid    TEXT     NOT NULL COLLATE "C",
    fence       INTEGER  NOT NULL,
    n           BIGINT   NOT NULL DEFAULT nextval('attempts_n'),
    session_id  TEXT,
    claim_token TEXT,
    event       SMALLINT NOT NULL,              -- 1 superseded 2 released 3 late 4 query 5 person
    detail      BYTEA    NOT NULL,
    at_ms       BIGINT   NOT NULL,
    PRIMARY KEY (call_uid, n, bucket)
) PARTITION BY RANGE (bucket);

CREATE TABLE payloads (
    bucket     INTEGER NOT NULL,
    digest     BYTEA   NOT NULL,
    size       INTEGER NOT NULL,
    body       BYTEA   NOT NULL,
    created_ms BIGINT  NOT NULL,
    PRIMARY KEY (digest, bucket)
) PARTITION BY RANGE (bucket);

CREATE TABLE payload_chunks (
    bucket     INTEGER NOT NULL,
    digest     BYTEA   NOT NULL,
    size       INTEGER NOT NULL,                -- of the whole
    at         INTEGER NOT NULL,                -- offset of this piece
    body       BYTEA   NOT NULL,
    created_ms BIGINT  NOT NULL,
    PRIMARY KEY (digest, size, at, bucket)
) PARTITION BY RANGE (bucket);

CREATE TABLE signals (
    bucket     INTEGER  NOT NULL,
    loop_id    TEXT     NOT NULL COLLATE "C",
    n          BIGINT   NOT NULL,               -- from 1 within its run
    kind       SMALLINT NOT NULL,               -- 1 signal, 2 late resolution
    name       TEXT     NOT NULL,
    body       BYTEA    NOT NULL,
    request_id TEXT,
    created_ms BIGINT   NOT NULL,
    PRIMARY KEY (loop_id, n, bucket)
) PARTITION BY RANGE (bucket);
CREATE UNIQUE INDEX signals_request ON signals (loop_id, request_id, bucket) WHERE request_id IS NOT NULL;

CREATE TABLE definitions (
    namespace  TEXT   NOT NULL COLLATE "C",
    name       TEXT   NOT NULL COLLATE "C",
    revision   TEXT   NOT NULL COLLATE "C",
    seq        BIGINT NOT NULL,                 -- the newest of a name has the highest
    source     BYTEA  NOT NULL,                 -- UTF-8
    created_ms BIGINT NOT NULL,
    PRIMARY KEY (namespace, name, revision)
);
CREATE SEQUENCE definitions_seq;

-- Unknown outcomes outlive the day of their run.
CREATE TABLE unknown_register (
    bucket        INTEGER  NOT NULL,
    call_uid      TEXT     NOT NULL,
    loop_id       TEXT     NOT NULL,
    namespace     TEXT     NOT NULL,
    kind          SMALLINT NOT NULL,
    call_id       TEXT     NOT NULL,
    node          TEXT     NOT NULL,
    source        TEXT,
    idem_key      TEXT     NOT NULL,
    error_code    TEXT,
    created_ms    BIGINT   NOT NULL,
    registered_ms BIGINT   NOT NULL,
    PRIMARY KEY (bucket, call_uid)
);

-- One name per table and day, e.g. `receipts_d20787`. Autovacuum comes early on what is updated in place.
CREATE FUNCTION ledger_partition_options(parent TEXT) RETURNS TEXT LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE parent
        WHEN 'loops' THEN 'WITH (fillfactor = 60, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_limit = 2000, autovacuum_analyze_scale_factor = 0.05)'
        WHEN 'receipts' THEN 'WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_limit = 2000, autovacuum_analyze_scale_factor = 0.05)'
        ELSE '' END $$;

DO $$
DECLARE parent TEXT;
BEGIN
    FOREACH parent IN ARRAY ARRAY['loops', 'checkpoints', 'receipts', 'attempts', 'payloads', 'payload_chunks', 'signals'] LOOP
        EXECUTE format('CREATE TABLE %I PARTITION OF %I DEFAULT %s', parent || '_default', parent, ledger_partition_options(parent));
    END LOOP;
END $$;

-- What the ledger makes of a worker's verdict: a read is never unknown, an effect is never cancelled, and a refusal
-- proves nothing while another attempt is unresolved whose effect it does not rule out.
CREATE FUNCTION settled_state(verdict SMALLINT, effect_class SMALLINT, unresolved INTEGER, rejections_stored BOOLEAN)
    RETURNS SMALLINT LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS $$ SELECT CASE verdict
        WHEN 3 THEN 3
        WHEN 4 THEN CASE WHEN effect_class = 1 OR unresolved <= 1 OR (effect_class = 2 AND rejections_stored) THEN 4 ELSE 5 END
        WHEN 5 THEN CASE WHEN effect_class = 1 THEN 4 ELSE 5 END
        ELSE CASE WHEN effect_class = 1 THEN 6 ELSE 5 END END::smallint $$;

-- Whether an outcome stays open: class K unknown is reconciled.
CREATE FUNCTION asked_for(state SMALLINT, effect_class SMALLINT) RETURNS BOOLEAN
    LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$ SELECT state = 5 AND effect_class = 2 $$;
