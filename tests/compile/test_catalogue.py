"""The catalogue against the XLA that is installed: names, types, defaults, values."""

import importlib.metadata
import math

import pytest

from xla_flags import FlagError, find, flags, join, known, parse_flag, print_flag, split
from xla_flags.catalogue import removed

from .debug_options import message, parsed, plain

JAXLIB = importlib.metadata.version("jaxlib")
SEEN = {v for flag in flags(holder="xla") for v in (*flag.seen, *flag.absent)}
FIELDS = [flag for flag in flags(holder="xla") if flag.routes[0] == "XLA_FLAGS"]
HERE = [flag for flag in FIELDS if JAXLIB in flag.seen]

pytestmark = pytest.mark.skipif(
    JAXLIB not in SEEN, reason=f"the catalogue has not seen jaxlib {JAXLIB}"
)


@pytest.fixture(scope="module")
def defaults():
    return parsed("")


def type_in_xla(field):
    if field.message_type and field.message_type.GetOptions().map_entry:
        return "map", 0
    if field.is_repeated:
        return "list", 0
    if field.enum_type:
        return "enum", 0
    kind = field.cpp_type
    if kind in (field.CPPTYPE_INT32, field.CPPTYPE_INT64):
        return "int", 32 if kind == field.CPPTYPE_INT32 else 64
    kinds = {
        field.CPPTYPE_BOOL: "bool",
        field.CPPTYPE_FLOAT: "float",
        field.CPPTYPE_STRING: "string",
    }
    return kinds[kind], 0


@pytest.mark.parametrize("flag", FIELDS, ids=lambda flag: flag.name)
def test_names_and_types_are_xlas(flag):
    field = message().DESCRIPTOR.fields_by_name.get(flag.name)
    assert (field is None) == (JAXLIB in flag.absent)
    if field is None:
        return
    assert type_in_xla(field) == (flag.type, flag.bits)
    if field.enum_type:
        names = [
            name for name in field.enum_type.values_by_name if "INVALID" not in name
        ]
        assert set(names) <= set(flag.choices)


@pytest.mark.parametrize("flag", HERE, ids=lambda flag: flag.name)
def test_defaults_are_xlas(flag, defaults):
    assert plain(defaults, flag.name) == flag.seen[JAXLIB]


@pytest.mark.parametrize("name", sorted(removed()))
def test_what_was_removed_is_gone(name):
    assert name not in message().DESCRIPTOR.fields_by_name


def another(flag, options):
    """A value that is not the default, and that this version knows."""
    field = message().DESCRIPTOR.fields_by_name[flag.name]
    default = plain(options, flag.name)
    match flag.type:
        case "bool":
            return not default
        case "int":
            return 1234
        case "float":
            return 0.375
        case "string":
            return "a 'word' \\ \"another\""
        case "map":
            return {"rtt_us": "7", "gpus_per_node": "4"}
        case "enum":
            names = [n for n in field.enum_type.values_by_name if "INVALID" not in n]
            return next(name for name in reversed(names) if name != default)
        case "list":
            if not flag.choices:
                return ("cse", "dce")
            return (
                ("ALLGATHER", "ALLREDUCE")
                if "ALLGATHER" in flag.choices
                else (
                    "FUSION",
                    "CUDNN",
                )
            )


def test_xla_reads_what_is_written(defaults):
    """All flags at once, each with another value than its default."""
    wanted = {
        flag.name: another(flag, defaults)
        for flag in HERE
        if JAXLIB not in flag.not_a_flag_in
    }
    text = join((n, print_flag(known()[n], v)) for n, v in wanted.items())
    options = parsed(text)
    assert options is not None
    assert split(text)[1] == ""
    for name, value in wanted.items():
        found = plain(options, name)
        assert (found | value if known()[name].type == "map" else value) == found, name


OPTIONS_ONLY = [flag for flag in HERE if JAXLIB in flag.not_a_flag_in]


@pytest.mark.parametrize("flag", OPTIONS_ONLY, ids=lambda flag: flag.name)
def test_what_is_no_flag_is_refused_or_ignored(flag, defaults):
    value = print_flag(flag, another(flag, defaults))
    options = parsed(join([(flag.name, value)]))
    default = plain(defaults, flag.name)
    assert options is None or plain(options, flag.name) == default


FORMS = [
    *(
        ("xla_gpu_enable_pipelined_p2p", t)
        for t in (None, "tRUE", "1", "0", "yes", "", "2")
    ),
    *(
        ("xla_gpu_autotune_level", t)
        for t in ("+3", "-0", "0x1", "1.0", "", None, "2147483648", "1_0", '"2 "')
    ),
    ("xla_gpu_all_gather_combine_threshold_bytes", "9223372036854775807"),
    ("xla_gpu_all_gather_combine_threshold_bytes", "9223372036854775808"),
    ("xla_gpu_pgle_accuracy_checker", "PGLE_STRICTNESS_LEVEL_OFF"),
    *(
        ("xla_gpu_pgle_accuracy_checker", t)
        for t in ("OFF", "pgle_strictness_level_off", "0")
    ),
    ("xla_gpu_enable_while_loop_unrolling", "while_loop_unrolling_no_unroll"),
    ("xla_gpu_enable_while_loop_unrolling", "NO_UNROLL"),
    *(
        ("xla_gpu_all_gather_mode", t)
        for t in ("peer", "COLLECTIVES_PEER_MEMORY", "INVALID")
    ),
    ("xla_gpu_command_buffer_update_mode", "always_update"),
    *(
        ("xla_gpu_disable_async_collectives", t)
        for t in (
            "AllReduce,allgather",
            '"ALLREDUCE, ALLGATHER"',
            "+ALLREDUCE",
            "",
            "1",
        )
    ),
    ("xla_gpu_disable_async_collectives", "ALLREDUCE,allcollectives"),
    *(
        ("xla_gpu_enable_command_buffer", t)
        for t in ('"fusion, CUDNN"', "", "FUSION,-CUDNN", "none", "FUSION,FUSION")
    ),
    *(("xla_disable_hlo_passes", t) for t in ("", "a,,b", '"a, b"')),
    ("xla_dump_to", '"a\\"b\\\\ \\n"'),
    ("xla_dump_to", 'a"b c"'),
    ("xla_dump_to", "'open"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "text"), FORMS)
def test_xla_reads_and_refuses_what_is_read_and_refused_here(name, text):
    written = f"--{name}" if text is None else f"--{name}={text}"
    ((_, value),), _ = split(written)
    try:
        wanted = parse_flag(find(name), value)
    except FlagError:
        assert parsed(written) is None
        return
    options = parsed(written)
    assert options is not None
    assert plain(options, name) == wanted


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("--{0}=1 --{0}=2", 2),
        ("--{0}=1\n\t--{0}=2 ", 2),
        ("--{0}=1 stray --{0}=2", 1),
        ("--{0}='1'stray --{0}=2", 1),
        ("--{0}=1 -{0}=2", None),
        ("{0}=1", None),
    ],
)
def test_xla_stops_reading_where_it_stops_here(text, value, defaults):
    name = "xla_gpu_autotune_level"
    options = parsed(text.format(name))
    assert (options and plain(options, name)) == value
    try:
        pairs, rest = split(text.format(name))
    except FlagError:
        assert value is None
        return
    assert bool(rest) == ("stray" in text or value is None)
    assert [v for _, v in pairs][-1:] == ([] if value is None else [str(value)])


def test_infinity_is_no_special_case():
    name = "xla_gpu_auto_spmd_partitioning_memory_budget_ratio"
    assert math.isinf(plain(parsed(f"--{name}=inf"), name))
