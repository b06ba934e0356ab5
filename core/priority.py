"""How urgent a task is, in a pipeline that has priorities."""

from enum import IntEnum


class Priority(IntEnum):
    """Three levels, most urgent first; Postgres keeps the number, people use the word."""

    HIGH = 2
    NORMAL = 1
    LOW = 0

    @property
    def word(self) -> str:
        """``high``, ``normal`` or ``low``."""
        return self.name.lower()

    @property
    def lane(self) -> str:
        """What the keys of a stage's stream end with; nothing for ``normal``, whose stream each stage has."""
        return "" if self is Priority.NORMAL else self.word


WORDS = {priority.word: priority for priority in Priority}
"""The levels by their words."""
