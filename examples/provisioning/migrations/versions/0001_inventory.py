"""Accounts, machines, and what was taken from them and given back."""

from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

ACCOUNT = """
create table provisioning.account (
    name  text    primary key,
    quota integer not null check (quota > 0)
)
"""

MACHINE = """
create table provisioning.machine (
    name       text    primary key,
    processors integer not null check (processors > 0),
    free       integer not null check (free between 0 and processors)
)
"""

# One sequence for allocations and launches. It is drawn from under the lock of the machine's row, so that it tells
# in which order they followed each other on a machine; a clock may be set back.
MOMENT = "create sequence provisioning.moment"

# No unique task_id in these two, on purpose: if a stage's effect ever happened twice, it would show.
ALLOCATION = """
create table provisioning.allocation (
    allocation_id bigint      generated always as identity primary key,
    task_id       uuid        not null,
    machine       text        not null references provisioning.machine,
    processors    integer     not null check (processors > 0),
    moment        bigint      not null default nextval('provisioning.moment'),
    allocated_at  timestamptz not null default now()
)
"""

LAUNCH = """
create table provisioning.launch (
    launch_id   bigint      generated always as identity primary key,
    task_id     uuid        not null,
    machine     text        not null references provisioning.machine,
    processors  integer     not null check (processors > 0),
    message     text        not null,
    moment      bigint      not null default nextval('provisioning.moment'),
    launched_at timestamptz not null default now()
)
"""

# Every eighth account has a small quota, so that some real jobs are refused.
ACCOUNTS = """
insert into provisioning.account (name, quota)
select 'user' || number, case when number % 8 = 0 then 32 else 128 end from generate_series(1, 700) as number
"""

MACHINES = """
insert into provisioning.machine (name, processors, free)
select 'machine' || number, 128, 128 from generate_series(1, 8) as number
"""


def upgrade() -> None:
    for statement in (ACCOUNT, MACHINE, MOMENT, ALLOCATION, LAUNCH):
        op.execute(statement)
    op.execute("create index on provisioning.allocation (task_id)")
    op.execute("create index on provisioning.launch (task_id)")
    op.execute(ACCOUNTS)
    op.execute(MACHINES)
