create table postroad.api_key (
    key_id       text        primary key check (key_id ~ '^[0-9a-f]{12}$'),
    digest       bytea       not null unique check (length(digest) = 32),
    name         text        not null,
    scopes       text[]      not null
                 check (cardinality(scopes) > 0 and scopes <@ array['submit', 'read', 'operate']),
    pipelines    text[]      check (cardinality(pipelines) > 0),
    rate         text,
    burst        integer     check (burst > 0),
    created_at   timestamptz not null default now(),
    created_by   text        not null,
    expires_at   timestamptz,
    revoked_at   timestamptz,
    last_used_at timestamptz
);

comment on table postroad.api_key is
    'Who may use the HTTP door. Rows stay when a key is revoked: that there was one says that keys are required.';

comment on column postroad.api_key.digest is
    'SHA-256 of the secret part of the key. That has 192 random bits, so nobody can guess it from a fast hash either.';

comment on column postroad.api_key.pipelines is 'The only pipelines that it is good for; null: all.';

comment on column postroad.api_key.last_used_at is 'To the minute.';

alter table postroad.stage add column switched_by text;

comment on column postroad.stage.switched_by is 'Who paused or resumed the stage last.';
