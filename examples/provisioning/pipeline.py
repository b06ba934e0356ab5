"""The pipeline: ``validate``, then ``allocate`` beside ``notify``, then ``launch``.

A handler that asks for a connection is given the transaction in which its outcome commits. So what it writes is
there exactly once, or not at all, however often the stage is delivered and whatever dies: none of these handlers looks
whether it has run before.
"""

from random import uniform
from typing import Any

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from postroad import Event, Pipeline, Reject, Snooze, Task, append

provisioning = Pipeline("provisioning")

# The statements stand beside their handlers, so that the example can be read in one go.
FIND_QUOTA = text("select quota from provisioning.account where name = :user")

# The best fit, so that whole machines remain for those who need one. A machine that another task is just taking from
# is passed over; both tables number their rows while the machine's row is locked.
ALLOCATE = text("""
    with chosen as (
        select name from provisioning.machine where free >= :processors
         order by free, name limit 1 for update skip locked
    ), taken as (
        update provisioning.machine set free = free - :processors
          from chosen where machine.name = chosen.name
        returning machine.name
    )
    insert into provisioning.allocation (task_id, machine, processors)
    select :task_id, name, :processors from taken
    returning machine
""")

FIND_LARGEST = text("select coalesce(max(processors), 0) from provisioning.machine")

LAUNCH = text("""
    with given_back as (
        update provisioning.machine set free = free + :processors where name = :machine
        returning name
    )
    insert into provisioning.launch (task_id, machine, processors, message)
    select :task_id, name, :processors, :message from given_back
    returning launch_id
""")


@provisioning.stage()
async def validate(task: Task, connection: AsyncConnection) -> dict[str, int]:
    """May this user have so many processors? If not, no retry will change it: the task is a dead letter."""
    user, processors = _request(task.payload)
    quota = (await connection.execute(FIND_QUOTA, {"user": user})).scalar()
    if quota is None:
        raise Reject(f"there is no account {user!r:.40}")
    if processors > quota:
        raise Reject(f"{user} may have {quota} processors at most, not {processors}")
    return {"quota": quota}


# Each attempt locks one of eight machines until it commits: more at once would only be in each other's way.
@provisioning.stage(after="validate", concurrency=4)
async def allocate(task: Task, connection: AsyncConnection) -> dict[str, Any]:
    """Take the processors from one machine, and put it on record."""
    processors = task.payload["processors"]
    wanted = {"task_id": task.task_id, "processors": processors}
    machine = (await connection.execute(ALLOCATE, wanted)).scalar()
    if machine is None:
        largest = (await connection.execute(FIND_LARGEST)).scalar_one()
        if processors > largest:
            raise Reject(f"no machine has {processors} processors, the largest has {largest}")
        # Spread, so that those who wait do not all come back at once.
        raise Snooze(uniform(0.25, 1), f"no machine has {processors} processors to spare right now")

    allocated = {"machine": machine, "processors": processors}
    await append(
        connection,
        Event(
            "ProcessorsAllocated",
            task.task_id,
            task.pipeline,
            stage=task.stage,
            data=allocated,
            traceparent=task.traceparent,
        ),
    )
    return allocated


@provisioning.stage(after="validate")
def notify(task: Task) -> dict[str, str]:
    """Compose the message to the user. A plain function runs in a thread, so it may block."""
    user, processors = task.payload["user"], task.payload["processors"]
    unit = "processor" if processors == 1 else "processors"
    return {"to": user, "text": f"Dear {user}, your job will run on {processors} {unit}."}


@provisioning.stage(after=("allocate", "notify"), concurrency=4)
async def launch(task: Task, connection: AsyncConnection) -> dict[str, int]:
    """Start the job. Jobs of this example end at once, so their processors go back to the machine here."""
    allocated, message = task.results["allocate"], task.results["notify"]
    launched = {"task_id": task.task_id, "message": message["text"], **allocated}
    return {"launch_id": (await connection.execute(LAUNCH, launched)).scalar_one()}


def _request(payload: Any) -> tuple[str, int]:
    """The user and the processors in ``payload``, which a client may have filled with anything."""
    if not isinstance(payload, dict):
        raise Reject("the payload must be an object with 'user' and 'processors'")
    user, processors = payload.get("user"), payload.get("processors")
    if user is None:
        raise Reject("user is missing")
    if not isinstance(user, str):
        raise Reject(f"user must be a string, not {user!r:.40}")
    if processors is None:
        raise Reject("processors is missing")
    if not isinstance(processors, int) or isinstance(processors, bool):
        raise Reject(f"processors must be a whole number, not {processors!r:.40}")
    if processors < 1:
        raise Reject(f"processors must be 1 or more, not {processors}")
    return user, processors
