-- version 1

CREATE TABLE scopes (
    id INTEGER PRIMARY KEY,
    scope BLOB NOT NULL UNIQUE,
    facts TEXT NOT NULL          -- JSON: model, labels
);

CREATE TABLE predictions (
    key BLOB PRIMARY KEY,
    scope INTEGER NOT NULL REFERENCES scopes (id),
    text BLOB NOT NULL,          -- hash
    sample INTEGER NOT NULL,
    label TEXT,                  -- NULL: the answer is outside the label set
    confidence REAL,             -- NULL: unknown
    said TEXT                    -- the answer; NULL: equal to the label
) WITHOUT ROWID;

CREATE TABLE embedders (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    dim INTEGER NOT NULL,
    size INTEGER NOT NULL DEFAULT 0,      -- numbers assigned in its pool
    removals INTEGER NOT NULL DEFAULT 0,  -- texts removed from its pool
    saved TEXT                            -- JSON: the files of its index
);

CREATE TABLE vectors (
    id INTEGER PRIMARY KEY,
    embedder INTEGER NOT NULL REFERENCES embedders (id),
    hash BLOB NOT NULL,          -- of the text
    vector BLOB NOT NULL,        -- little-endian float16
    UNIQUE (embedder, hash)
);

CREATE TABLE pool (
    id INTEGER PRIMARY KEY,
    vector INTEGER NOT NULL REFERENCES vectors (id),
    text TEXT NOT NULL,
    label TEXT,                  -- known label
    removed INTEGER              -- 1-based removal sequence number; NULL: in the pool
);

CREATE UNIQUE INDEX pool_vector ON pool (vector) WHERE removed IS NULL;

CREATE INDEX pool_removed ON pool (removed) WHERE removed IS NOT NULL;

-- version 2

CREATE TABLE batches (
    id BLOB PRIMARY KEY,         -- assigned before the batch is submitted
    scope BLOB NOT NULL,
    facts TEXT NOT NULL,         -- JSON: metadata for decoding the answers
    requests INTEGER NOT NULL,
    created REAL NOT NULL,       -- seconds since the epoch
    items BLOB NOT NULL,         -- keys of each request; empty once it has ended
    remote TEXT,                 -- the provider's id; NULL: not known to be submitted
    outcome TEXT,                -- NULL: open
    usage TEXT,                  -- JSON, once it has ended
    owner BLOB NOT NULL,         -- worker that holds the lease
    until REAL NOT NULL          -- expiry of the lease
) WITHOUT ROWID;

CREATE INDEX batches_open ON batches (scope) WHERE outcome IS NULL;

-- version 3

CREATE TABLE learned (scope BLOB PRIMARY KEY, data BLOB NOT NULL);
