"""What is written is read again, and what XLA refuses is refused here."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xla_flags import (
    FlagError,
    find,
    flags,
    parse_flag,
    parse_option,
    print_flag,
    print_option,
)

from .values_of import values

ANY = st.sampled_from(flags()).flatmap(
    lambda flag: st.tuples(st.just(flag), values(flag))
)


@given(ANY)
def test_what_is_printed_is_parsed_again(pair):
    flag, value = pair
    if flag.routes != ("compiler_options",):
        assert parse_flag(flag, print_flag(flag, value)) == value
    if "compiler_options" in flag.routes:
        assert parse_option(flag, print_option(flag, value)) == value


@given(ANY, ANY)
def test_a_value_of_another_type_is_refused(one, other):
    flag, _ = one
    _, value = other
    assume_other = type(value) is not type(one[1])
    if assume_other and "compiler_options" in flag.routes:
        with pytest.raises(FlagError, match=flag.name):
            print_option(flag, value)


def test_changes_to_a_default_are_for_xla_flags_only():
    flag = find("xla_gpu_enable_command_buffer")
    value = parse_flag(flag, "+collectives,-FUSION")
    assert value == ("+COLLECTIVES", "-FUSION")
    assert print_flag(flag, value) == "+COLLECTIVES,-FUSION"
    with pytest.raises(FlagError):
        print_option(flag, value)


def test_a_list_that_no_text_means_is_refused():
    empty = find("xla_gpu_disable_async_collectives")
    with pytest.raises(FlagError):
        print_flag(empty, ())
    assert print_option(empty, ()) == ""
    # XLA writes all kinds out.
    assert len(parse_flag(empty, "allcollectives")) == 7
    with pytest.raises(FlagError, match="nothing in XLA_FLAGS means"):
        print_flag(empty, ("ALLCOLLECTIVES",))


def test_a_map_is_no_compiler_option():
    flag = find("xla_gpu_analytical_latency_estimator_options")
    with pytest.raises(FlagError, match="set by XLA_FLAGS"):
        print_option(flag, {"rtt_us": "1"})


def test_a_build_option_is_no_flag():
    with pytest.raises(FlagError, match="is a compiler option"):
        parse_flag(find("optimization_level"), "1")


@pytest.mark.parametrize("value", [1, True, "1", "WARN", "PGLE_STRICTNESS_LEVEL_wARN"])
def test_numbers_and_parts_are_no_names_of_choices(value):
    flag = find("xla_gpu_pgle_accuracy_checker")
    with pytest.raises(FlagError, match="as a compiler option it cannot be"):
        parse_option(flag, value)
