"""How many examples are tried by day, and how many by night."""

from typing import Any

from hypothesis import HealthCheck, settings


def examples(by_day: int, by_night: int, **more: Any) -> settings:
    """Settings of a test; the profile of the run says which it is.

    By day the examples are the same each time: enough for what usually goes wrong. The
    night looks for what seldom does.

    Args:
        by_day: How many are tried in every run.
        by_night: How many are tried in nightly runs.
        **more: What else `hypothesis.settings` takes.
    """
    night = (
        settings.default.max_examples >= settings.get_profile("nightly").max_examples
    )
    return settings(max_examples=by_night if night else by_day, **more)


def slow_examples(by_day: int, by_night: int) -> settings:
    """The same where an example takes as long to make as to try: that is no fault."""
    return examples(by_day, by_night, suppress_health_check=list(HealthCheck))
