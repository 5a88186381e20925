"""Functions in the place of others."""

from __future__ import annotations

import functools
import types
from typing import Any


class FunctionWrapper:
    """A function in the place of another one: it has all attributes of that one.

    Example:
        >>> class Twice(FunctionWrapper):
        ...     def __call__(self, x):
        ...         return 2 * self.__wrapped__(x)
        >>> twice = Twice(len)
        >>> twice("ab"), twice.__name__, twice.__self__ is len.__self__
        (4, 'len', True)
    """

    __wrapped__: Any
    __call__: Any

    def __init__(self, wrapped: Any) -> None:
        """Takes the other one's name, docstring and signature."""
        functools.update_wrapper(self, wrapped, updated=())

    def __getattr__(self, name: str) -> Any:
        """The other one's attribute, where this has none of its own."""
        # A copy is asked before it has anything.
        return getattr(vars(self).get("__wrapped__"), name)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        """The function as a method."""
        return self if instance is None else types.MethodType(self, instance)
