"""What processes say when they do not agree."""

import pytest

from lagom_jax.errors import LagomError
from lagom_jax.runtime import agreement
from lagom_jax.runtime.agreement import NoAgreementError, Peers


def test_after_the_shutdown_of_jax_distributed():
    assert issubclass(NoAgreementError, LagomError)
    with pytest.raises(NoAgreementError, match="has been shut down"):
        Peers(1, 2).gather("late", "I", seconds=1)


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ("ab", "process 0 'a', process 1 'b'"),
        ("abb", "processes 1-2 'b', process 0 'a'"),
        ("abaac", "processes 0, 2-3 'a', process 1 'b', process 4 'c'"),
        (
            "abcdefa",
            "processes 0, 6 'a', process 1 'b', process 2 'c', process 3 'd', "
            "processes 4-5 other things still",
        ),
        (["", "a"], "process 0 '', process 1 'a'"),
        (["x" * 99, "y" * 99], f"0 '{'x' * 60}…', process 1 '{'y' * 60}…'"),
    ],
)
def test_who_says_what(words, shown):
    assert f"{shown}; start all" in agreement._difference(words)
