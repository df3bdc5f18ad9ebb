-- The ledger. One set of names for both databases; `receipts contract` §8 says what each column promises.
-- Times are milliseconds since 1970 by the database clock. JSON is kept as the bytes that arrived.
-- A `*_ref` is the text `<sha256 hex>.<size>` of a payload of the same bucket.

CREATE TABLE sessions (
    session_id  TEXT    NOT NULL PRIMARY KEY,
    role        INTEGER NOT NULL,               -- 1 coordinator, 2 worker
    kind        TEXT    NOT NULL,
    name        TEXT    NOT NULL,
    build       TEXT    NOT NULL,
    instance    TEXT,                           -- exclusive name of the replica
    started_ms  INTEGER NOT NULL,
    expires_ms  INTEGER NOT NULL,
    dead_ms     INTEGER,                        -- set once
    closed      INTEGER NOT NULL DEFAULT 0,     -- 1: known to be over (closed, or replaced by its instance), not only silent
    ledger_mark TEXT
) STRICT;

CREATE TABLE offers (
    session_id TEXT    NOT NULL,
    n          INTEGER NOT NULL,
    kind       TEXT    NOT NULL,
    pool       TEXT,
    node       TEXT    NOT NULL,
    source     TEXT,                            -- NULL: the node itself, whatever the source
    offer      BLOB    NOT NULL,                -- JSON
    PRIMARY KEY (session_id, n)
) STRICT;

-- Submit keys outlive the day of their run.
CREATE TABLE submissions (
    namespace  TEXT    NOT NULL,
    submit_key TEXT    NOT NULL,
    bucket     INTEGER NOT NULL,
    loop_id    TEXT    NOT NULL,
    body_hash  BLOB    NOT NULL,
    created_ms INTEGER NOT NULL,
    PRIMARY KEY (namespace, submit_key)
) STRICT;

CREATE TABLE loops (
    bucket          INTEGER NOT NULL,
    loop_id         TEXT    NOT NULL,
    namespace       TEXT    NOT NULL,
    submit_key      TEXT,
    body_hash       BLOB    NOT NULL,
    loop_name       TEXT    NOT NULL,
    loop_rev        TEXT    NOT NULL,
    status          INTEGER NOT NULL,
    owner_session   TEXT,
    epoch           INTEGER NOT NULL DEFAULT 0,
    version         INTEGER NOT NULL DEFAULT 0,
    bell            INTEGER NOT NULL DEFAULT 0, -- rung by every write the owner must learn of
    bell_seen       INTEGER NOT NULL DEFAULT 0, -- up to here its owner has read everything
    wake_ms         INTEGER,
    deadline_ms     INTEGER,
    cancel_ms       INTEGER,
    ended_ms        INTEGER,
    signal_seen     INTEGER NOT NULL DEFAULT 0,
    created_ms      INTEGER NOT NULL,
    traceparent     TEXT,
    input           BLOB,
    input_ref       TEXT,
    output          BLOB,
    output_ref      TEXT,
    error_class     TEXT,
    error_code      TEXT,
    error_message   TEXT,
    error_retryable INTEGER,
    PRIMARY KEY (bucket, loop_id)
) STRICT;
CREATE INDEX loops_namespace ON loops (namespace, loop_id);
CREATE INDEX loops_owner ON loops (owner_session, status) WHERE ended_ms IS NULL;
CREATE INDEX loops_bell ON loops (owner_session) WHERE ended_ms IS NULL AND bell > bell_seen;
CREATE INDEX loops_wake ON loops (wake_ms) WHERE ended_ms IS NULL AND wake_ms IS NOT NULL;

CREATE TABLE checkpoints (
    bucket     INTEGER NOT NULL,
    loop_id    TEXT    NOT NULL,
    version    INTEGER NOT NULL,
    epoch      INTEGER NOT NULL,
    session_id TEXT    NOT NULL,
    body_hash  BLOB    NOT NULL,
    body       BLOB,                            -- NULL once pruned
    boundary   INTEGER NOT NULL,
    progress   BLOB,
    created_ms INTEGER NOT NULL,
    PRIMARY KEY (bucket, loop_id, version)
) STRICT;

CREATE TABLE receipts (
    bucket            INTEGER NOT NULL,
    call_uid          TEXT    NOT NULL,
    loop_id           TEXT    NOT NULL,
    decided_version   INTEGER NOT NULL,
    kind              INTEGER NOT NULL,         -- 1 tool 2 mcp 3 delivery 4 infer 5 memory 6 context
    call_id           TEXT    NOT NULL,
    node              TEXT    NOT NULL,
    source            TEXT,
    pool              TEXT,
    label             TEXT    NOT NULL,
    policy            BLOB    NOT NULL,         -- JSON of the pinned policy; the next five repeat it for guards
    effect_class      INTEGER NOT NULL,         -- R 1, K 2, N 3
    exclusive         INTEGER NOT NULL,         -- 1: every attempt needs a claim
    has_query         INTEGER NOT NULL,
    rejections_stored INTEGER NOT NULL,
    key_ttl_ms        INTEGER,
    on_unknown        INTEGER NOT NULL,         -- 1 park 2 surface 3 fail
    idem_key          TEXT    NOT NULL,
    request_hash      BLOB    NOT NULL,
    state             INTEGER NOT NULL,         -- 1 planned 2 claimed 3 succeeded 4 failed 5 unknown 6 cancelled
    fence             INTEGER NOT NULL DEFAULT 0,
    unresolved        INTEGER NOT NULL DEFAULT 0,
    max_attempts      INTEGER NOT NULL,
    claim_token       TEXT,                     -- of the current fence
    session_id        TEXT,                     -- NULL with a token: given back as unstarted
    claimed_ms        INTEGER,
    first_claim_ms    INTEGER,
    dispatch_no       INTEGER NOT NULL,
    reconcile_no      INTEGER NOT NULL DEFAULT 0,
    due_ms            INTEGER NOT NULL,         -- when somebody must look at it again
    unknown_ms        INTEGER,                  -- first became unknown
    deadline_ms       INTEGER,
    cancel_ms         INTEGER,
    settled_ms        INTEGER,
    settled_by        INTEGER,                  -- 1 worker 2 late result 3 query 4 person 5 sweeper
    settle_rev        INTEGER NOT NULL DEFAULT 0,
    created_ms        INTEGER NOT NULL,
    traceparent       TEXT,
    error_class       TEXT,
    error_code        TEXT,
    error_message     TEXT,
    error_retryable   INTEGER,
    request           BLOB,
    request_ref       TEXT,
    outcome           BLOB,
    outcome_ref       TEXT,
    PRIMARY KEY (bucket, call_uid),
    UNIQUE (bucket, loop_id, kind, call_id),
    CHECK (unresolved >= 0 AND unresolved <= fence)
) STRICT;
-- The open set: outbox, lease table and reconcile queue at once.
CREATE INDEX receipts_open ON receipts (due_ms) WHERE settled_ms IS NULL;
CREATE INDEX receipts_unknown ON receipts (call_uid) WHERE state = 5;
CREATE INDEX receipts_claimed ON receipts (session_id) WHERE settled_ms IS NULL AND state = 2;

-- What did not change a receipt, or replaced an attempt of it.
CREATE TABLE attempts (
    bucket      INTEGER NOT NULL,
    call_uid    TEXT    NOT NULL,
    fence       INTEGER NOT NULL,
    n           INTEGER NOT NULL,               -- from 1 within its call
    session_id  TEXT,
    claim_token TEXT,
    event       INTEGER NOT NULL,               -- 1 superseded 2 released 3 late 4 query 5 person
    detail      BLOB    NOT NULL,
    at_ms       INTEGER NOT NULL,
    PRIMARY KEY (bucket, call_uid, n)
) STRICT;

CREATE TABLE payloads (
    bucket     INTEGER NOT NULL,
    digest     BLOB    NOT NULL,
    size       INTEGER NOT NULL,
    body       BLOB    NOT NULL,
    created_ms INTEGER NOT NULL,
    PRIMARY KEY (bucket, digest)
) STRICT;

CREATE TABLE payload_chunks (
    bucket     INTEGER NOT NULL,
    digest     BLOB    NOT NULL,
    size       INTEGER NOT NULL,                -- of the whole
    at         INTEGER NOT NULL,                -- offset of this piece
    body       BLOB    NOT NULL,
    created_ms INTEGER NOT NULL,
    PRIMARY KEY (bucket, digest, size, at)
) STRICT;

CREATE TABLE signals (
    bucket     INTEGER NOT NULL,
    loop_id    TEXT    NOT NULL,
    n          INTEGER NOT NULL,                -- from 1 within its run
    kind       INTEGER NOT NULL,                -- 1 signal, 2 late resolution
    name       TEXT    NOT NULL,
    body       BLOB    NOT NULL,
    request_id TEXT,
    created_ms INTEGER NOT NULL,
    PRIMARY KEY (bucket, loop_id, n)
) STRICT;
CREATE UNIQUE INDEX signals_request ON signals (bucket, loop_id, request_id) WHERE request_id IS NOT NULL;

CREATE TABLE definitions (
    namespace  TEXT    NOT NULL,
    name       TEXT    NOT NULL,
    revision   TEXT    NOT NULL,
    seq        INTEGER NOT NULL,                -- the newest of a name has the highest
    source     TEXT    NOT NULL,
    created_ms INTEGER NOT NULL,
    PRIMARY KEY (namespace, name, revision)
) STRICT;

-- Unknown outcomes outlive the day of their run.
CREATE TABLE unknown_register (
    bucket        INTEGER NOT NULL,
    call_uid      TEXT    NOT NULL,
    loop_id       TEXT    NOT NULL,
    namespace     TEXT    NOT NULL,
    kind          INTEGER NOT NULL,
    call_id       TEXT    NOT NULL,
    node          TEXT    NOT NULL,
    source        TEXT,
    idem_key      TEXT    NOT NULL,
    error_code    TEXT,
    created_ms    INTEGER NOT NULL,
    registered_ms INTEGER NOT NULL,
    PRIMARY KEY (bucket, call_uid)
) STRICT;
