"""How many examples are tried where each of them compiles programs."""

from hypothesis import settings


def examples(by_day: int, by_night: int) -> settings:
    """Settings of a test; the profile of the run says which it is."""
    night = (
        settings.default.max_examples >= settings.get_profile("nightly").max_examples
    )
    return settings(max_examples=by_night if night else by_day)
