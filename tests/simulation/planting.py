"""Plant defects: attributes of the real code are replaced during a history, and restored after it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

Plant = Callable[[ExitStack], None]


@dataclass(frozen=True, slots=True)
class Defect:
    """A known defect.

    Attributes:
        text: the behaviour of the code with the defect.
        reference: where it happened, or which rule it breaks.
        plant: enables it until the stack is closed.
    """

    name: str
    text: str
    reference: str
    plant: Plant


def swap(stack: ExitStack, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
    """Replace an attribute of a class or module by what ``make`` returns for the original one."""
    original = owner.__dict__[name]
    plain = original.__func__ if isinstance(original, staticmethod) else original
    made = make(plain)
    setattr(owner, name, staticmethod(made) if isinstance(original, staticmethod) else made)
    stack.callback(setattr, owner, name, original)


class Registry(dict[str, Defect]):
    """Defects by name."""

    def add(self, name: str, reference: str, text: str) -> Callable[[Plant], Plant]:
        """Return a decorator for the function that plants the defect."""

        def register(plant: Plant) -> Plant:
            assert name not in self, f"two defects are called {name}"
            self[name] = Defect(name, text, reference, plant)
            return plant

        return register
