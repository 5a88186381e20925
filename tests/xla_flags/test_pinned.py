"""What the user has set, and what of it counts."""

import pytest

from xla_flags import (
    in_effect,
    pinned_by_environment,
    pinned_by_options,
    pinned_by_xla_flags,
)

LEVEL = "xla_gpu_autotune_level"


def test_nothing_is_pinned_where_nothing_is_set():
    assert pinned_by_environment({"PATH": "/bin", "XLA_FLAGS": " "}) == ()


def test_a_file_of_flags_is_read_and_named():
    files = {"/flags": f"--{LEVEL}=2\n--xla_dump_to='a b'"}
    pins = pinned_by_xla_flags("/flags", files.get)
    assert [(p.name, p.value, p.where) for p in pins] == [
        (LEVEL, 2, "/flags"),
        ("xla_dump_to", "a b", "/flags"),
    ]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, "cannot be read"),
        (f"# mine\n--{LEVEL}=2", "stops reading /flags at '#'"),
        (f"{LEVEL}=2", "stops reading"),
        (f"-{LEVEL}=2", "two dashes"),
    ],
)
def test_a_file_that_sets_nothing_is_told(content, problem):
    pins = pinned_by_xla_flags("/flags", {"/flags": content}.get)
    assert pins
    assert all(problem in pin.problem for pin in pins)
    assert not in_effect(pins)


def test_what_stands_behind_a_stray_word_does_not_count():
    pins = pinned_by_xla_flags(f"--{LEVEL}=1 stray --{LEVEL}=2 --xla_b")
    assert in_effect(pins)[LEVEL].value == 1
    assert [(p.name, p.given) for p in pins if p.problem] == [
        (LEVEL, "2"),
        ("xla_b", None),
    ]


def test_a_value_that_xla_refuses_is_told():
    (pin,) = pinned_by_xla_flags(f"--{LEVEL}=high")
    assert "it cannot be 'high'" in pin.problem
    assert not in_effect([pin])


def test_what_the_catalogue_does_not_have_is_pinned_as_it_is():
    (pin,) = pinned_by_xla_flags("--xla_cpu_something=3")
    assert (pin.flag, pin.given, pin.value) == (None, "3", None)
    assert in_effect([pin]) == {"xla_cpu_something": pin}


def test_options_of_a_step_win_over_the_environment():
    pins = pinned_by_environment({"XLA_FLAGS": f"--{LEVEL}=1"})
    pins += pinned_by_options({LEVEL: 3, "xla_unknown": object})
    assert in_effect(pins)[LEVEL].where == "compiler_options"
    assert "xla_unknown" in in_effect(pins)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("=FUSION --{0}=CUBLAS", ("CUBLAS",)),
        ("=FUSION --{0}=+CUBLAS", ("FUSION", "CUBLAS")),
        ("=FUSION,CUBLAS --{0}=-CUBLAS", ("FUSION",)),
        ("=+CUBLAS --{0}=-FUSION", ("+CUBLAS", "-FUSION")),
        ("=FUSION --{0}=", ()),
    ],
)
def test_lists_in_xla_flags_add_up_as_in_xla(text, value):
    name = "xla_gpu_enable_command_buffer"
    pins = pinned_by_xla_flags(f"--{name}{text.format(name)}")
    assert in_effect(pins)[name].value == value


def test_nccls_files_come_after_the_environment():
    files = {
        "/mine": "NCCL_MAX_CTAS=4\n#NCCL_ALGO=tree\nNCCL_MIN_CTAS=2\nNCCL_MAX_CTAS=9",
        "/etc/nccl.conf": "NCCL_MAX_CTAS=5\nNCCL_PROTO=LL\nnot a setting",
    }
    pins = pinned_by_environment(
        {"NCCL_CONF_FILE": "/mine", "NCCL_MIN_CTAS": "3"}, files.get, home="/home/me"
    )
    found = {name: (pin.value, pin.where) for name, pin in in_effect(pins).items()}
    assert found == {
        "NCCL_CONF_FILE": ("/mine", "the environment"),
        "NCCL_MAX_CTAS": (4, "/mine"),
        "NCCL_MIN_CTAS": (3, "the environment"),
        "NCCL_PROTO": ("LL", "/etc/nccl.conf"),
    }


def test_nccls_own_file_is_looked_for_at_home():
    files = {"/home/me/.nccl.conf": "NCCL_ALGO=ring"}
    (pin,) = pinned_by_environment({}, files.get, home="/home/me")
    assert (pin.name, pin.where) == ("NCCL_ALGO", "/home/me/.nccl.conf")
