"""For the tests of those who write pipelines: a stage in memory, a pipeline on real servers, a crash in the middle.

Nothing here needs pytest; ``postroad.testing.plugin`` is the same as fixtures.
"""

from .crash import Crash
from .pipelines import Road, StageRun, TaskState, ViolationError, road
from .places import servers
from .stage import Completed, run_stage, run_stage_sync

__all__ = [
    "Completed",
    "Crash",
    "Road",
    "StageRun",
    "TaskState",
    "ViolationError",
    "road",
    "run_stage",
    "run_stage_sync",
    "servers",
]
