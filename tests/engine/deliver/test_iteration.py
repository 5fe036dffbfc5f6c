"""How far an iteration has come, also for those who ask from another thread."""

from __future__ import annotations

from typing import Any

from penstock._engine.deliver.iteration import Course
from penstock._engine.query.query import Question
from penstock.model import Position
from penstock.testing import example


class Ending(Course):
    """An iteration that ends, on another thread, as soon as somebody has looked where it is."""

    coming: Any

    @property
    def at(self) -> Any:
        """Return where it is now, and go on."""
        now, self.coming = self.coming, Position(epoch=1)
        return now

    @at.setter
    def at(self, value: Any) -> None:
        self.coming = value


def test_a_position_is_one_of_those_that_there_were() -> None:
    """Whoever asks while another thread is handed the end gets the step before it, or the end."""
    question = Question(size=4)
    course = Ending(example()._table.plan(question), question, Position())
    leg = next(course.legs())
    course.at = (leg, 2)

    assert [course.position, course.position] == [leg.after(2), Position(epoch=1)]
