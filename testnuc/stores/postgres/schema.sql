-- version 1

CREATE TABLE scopes (
    id integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    scope bytea NOT NULL UNIQUE,
    facts text NOT NULL          -- JSON: model, labels
);

CREATE TABLE predictions (
    key bytea PRIMARY KEY,
    scope integer NOT NULL,      -- scopes.id
    text bytea NOT NULL,         -- hash
    sample integer NOT NULL,
    label text,                  -- NULL: the answer is outside the label set
    confidence double precision, -- NULL: unknown
    said text                    -- the answer; NULL: equal to the label
);

CREATE TABLE embedders (
    id integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name text NOT NULL UNIQUE,
    dim integer NOT NULL,
    size bigint NOT NULL DEFAULT 0,      -- numbers assigned in its pool
    removals bigint NOT NULL DEFAULT 0   -- texts removed from its pool
);

-- UNLOGGED: after a server crash no lease is needed, since requests end or are retried
CREATE UNLOGGED TABLE leases (
    key bytea PRIMARY KEY,
    owner bytea NOT NULL,
    call bigint NOT NULL,
    until timestamptz NOT NULL   -- by the server's clock
);

-- version 2

CREATE TABLE batches (
    id bytea PRIMARY KEY,        -- assigned before the batch is submitted
    scope bytea NOT NULL,
    facts text NOT NULL,         -- JSON: metadata for decoding the answers
    requests integer NOT NULL,
    created double precision NOT NULL,  -- seconds since the epoch, by the process's clock
    items bytea NOT NULL,        -- keys of each request; empty once it has ended
    remote text,                 -- the provider's id; NULL: not known to be submitted
    outcome text,                -- NULL: open
    usage text,                  -- JSON, once it has ended
    owner bytea NOT NULL,        -- worker that holds the lease
    until timestamptz NOT NULL   -- expiry of the lease
);

CREATE INDEX batches_open ON batches (scope) WHERE outcome IS NULL;

-- version 3

CREATE TABLE learned (scope bytea PRIMARY KEY, data bytea NOT NULL);
