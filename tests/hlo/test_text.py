"""Old, new and wrapped spellings of HLO text, and texts that are none."""

import contextlib
import html
import json
import re
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from lagom_jax.compile.schema import message_class
from lagom_jax.errors import HloError
from lagom_jax.hlo import Module, read_module
from lagom_jax.hlo.collective import collective_kind, read_collective
from lagom_jax.hlo.config import backend_config, source_line
from lagom_jax.hlo.elided import keep_elided, restore_elided
from lagom_jax.hlo.spellings import REPAIRS
from lagom_jax.hlo.text import parse_noting, parse_text
from lagom_jax.hlo.work import work
from tests.depth import examples

DUMPS = Path(__file__).parent / "dumps"
MODULE = """HloModule step, is_scheduled=true, num_partitions=4

%sum (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %add = f32[] add(%a, %b)
}

ENTRY %main (p: f32[16]) -> f32[16] {
  %p = f32[16]{0} parameter(0), metadata={op_name="x \\"quoted\\" #1"}
  ROOT %all = f32[16]{0} all-reduce(%p), channel_id=1, replica_groups={{0,1},{2,3}}, use_global_device_ids=true, to_apply=%sum
}
"""


def dump(year: int) -> str:
    return (DUMPS / f"spelled_{year}.txt").read_text()


def read(text: str) -> Module:
    return read_module(parse_text(text))


def collectives(module: Module):
    """kind -> (operand bytes, result bytes, groups, devices a group, synchronous)."""
    found = {}
    for computation in module.computations.values():
        for instruction in computation.instructions.values():
            if instruction.opcode == "async-start":
                (body,) = module.called(instruction)
                part, launcher = body, (computation, instruction)
                inner = body.root
            else:
                part, launcher, inner = computation, None, instruction
            if collective_kind(inner.opcode) is None or body_of_start(
                module, computation
            ):
                continue
            it = read_collective(module, part, inner, launcher=launcher)
            members = it.groups.members
            found[it.kind] = (
                it.operand_bytes,
                it.result_bytes,
                len(members),
                len(members[0]),
                it.is_sync,
            )
    return found


def body_of_start(module: Module, computation) -> bool:
    return any(
        computation.id in instruction.called_ids
        for other in module.computations.values()
        for instruction in other.instructions.values()
        if instruction.opcode == "async-start"
    )


MIB = 1 << 20


def test_a_dump_of_2023_keeps_its_groups_bytes_and_trip_count():
    module = read(dump(2023))
    assert module.devices == 8
    assert collectives(module) == {
        "reduce-scatter": (32 * MIB, 4 * MIB, 1, 8, True),
        "all-gather": (4 * MIB, 32 * MIB, 1, 8, False),
        "collective-permute": (4 * MIB, 4 * MIB, 8, 2, False),
    }
    entry = module.entry.instructions.values()
    (loop,) = [i for i in entry if i.opcode == "while"]
    assert backend_config(loop)["known_trip_count"]["n"] == "8"
    (table,) = [i for i in entry if i.name == "table"]
    assert (table.opcode, table.shape.byte_size) == ("constant", 4 * 30000**2)
    (body,) = [c for c in module.computations.values() if c.name == "body"]
    (gemm,) = [i for i in body.instructions.values() if i.opcode == "custom-call"]
    assert work(module, body, gemm).flops == 2 * 1024**3
    assert source_line(module, gemm) == "train.py:12"


def test_a_dump_of_2024_keeps_its_groups_bytes_and_fp8_operands():
    module = read(dump(2024))
    size = 8 * 256 * 256 * 1024
    assert module.devices == 16
    assert collectives(module)["all-to-all"] == (size, size, 4, 4, True)
    assert collectives(module)["send"][0] == size
    matmul = next(i for i in module.entry.instructions.values() if i.name == "matmul")
    done = work(module, module.entry, matmul)
    assert done.flops == 2 * 2048 * 4096 * 8192
    # The 32 MiB of scratch in its result are not written to memory for a reader.
    assert done.bytes_written == 4 * 2048 * 8192


def test_a_dump_of_2026_keeps_its_groups_bytes_and_lines():
    module = read(dump(2026))
    assert module.devices == 8
    assert collectives(module) == {"all-gather": (256 << 10, 2 * MIB, 1, 8, False)}
    (gather,) = [
        instruction
        for computation in module.computations.values()
        for instruction in computation.instructions.values()
        if instruction.opcode == "all-gather"
    ]
    assert source_line(module, gather) == "train.py:33"
    (body,) = [c for c in module.computations.values() if c.name == "body"]
    dot = next(i for i in body.instructions.values() if i.opcode == "dot")
    left = body.operands(dot)[0]
    assert (left.opcode, left.proto.tuple_index) == ("get-tuple-element", 1)
    metadata = next(i for i in body.instructions.values() if i.opcode == "add")
    assert metadata.proto.metadata.op_name == "not an operand: %param#9"


SPELLINGS = {
    "tuple elements as operands": (
        "  %t = ((f32[16]{0}, f32[8]{0}), f32[4]{0}) parameter(0)\n"
        "  ROOT %r = f32[24]{0} concatenate(%t#0#0, %t#0#1), dimensions={0}"
    ),
    "async_group_id": (
        "  %p = f32[16]{0} parameter(0)\n"
        "  %s = ((f32[16]{0}), f32[16]{0}, u32[]) async-start(%p), async_group_id=3, "
        "calls=%wrapped\n"
        "  ROOT %d = f32[16]{0} async-done(%s), async_group_id=3, calls=%wrapped"
    ),
    "is_cross_program_prefetch": (
        "  %p = f32[16]{0} parameter(0)\n"
        "  %s = (f32[16]{0}, f32[16]{0}, u32[]) copy-start(%p), "
        "is_cross_program_prefetch=true\n"
        "  ROOT %d = f32[16]{0} copy-done(%s)"
    ),
    "settings of the whole module": "  ROOT %p = f32[16]{0} parameter(0)",
    "is_stable": (
        "  %p = f32[16]{0} parameter(0)\n"
        "  ROOT %r = (f32[2]{0}, s32[2]{0}) topk(%p), k=2, largest=true, is_stable=true"
    ),
    "has_dynamic_root": (
        "  %p = f32[16]{0} parameter(0)\n"
        "  ROOT %r = f32[16]{0} collective-broadcast(%p), replica_groups={{0,1}}, "
        "has_dynamic_root=true"
    ),
}


@pytest.mark.parametrize("repair", REPAIRS, ids=lambda repair: repair.name)
def test_every_repair_makes_its_spelling_readable(repair):
    settings_of = repair.name == "settings of the whole module"
    text = "HloModule m, is_scheduled=true" + (
        ', backend_config={"a":{"b":"}"}}, debug_attributes={}' if settings_of else ""
    )
    text += (
        "\n\n%wrapped (q: f32[16]) -> f32[16] {\n"
        "  ROOT %q = f32[16]{0} parameter(0)\n}\n\n"
        f"ENTRY %e {{\n{SPELLINGS[repair.name]}\n}}\n"
    )
    mended = repair(text)
    assert mended != text
    if settings_of:
        assert mended.splitlines()[0] == "HloModule m, is_scheduled=true"
    data, used = parse_noting(text)
    # A newer parser reads some of them as they are; then nothing is mended.
    assert used in ((), (repair.name,))
    # What it became is what the text said.
    assert read_module(parse_text(mended)).entry.root.shape == (
        read_module(data).entry.root.shape
    )


def test_repairs_leave_readable_text_alone():
    assert parse_noting(MODULE)[1] == ()
    for repair in REPAIRS:
        assert repair(MODULE) == MODULE


def numbered(prefix: str) -> str:
    lines = enumerate(MODULE.splitlines())
    return "\n".join(prefix.replace("N", str(n)) + line for n, line in lines)


ENVELOPES = {
    "fences": f"It hangs:\n```hlo\n{MODULE}```\nand then\n```\nmodule @jit_step {{}}\n```",
    "one fence lost": f"<details>\n\n```\n{MODULE}",
    "before and after": "```\n"
    + MODULE.replace(", is_scheduled=true", "").replace("f32[16]{0}", "f32[16]")
    + f"```\ncompiles to\n```\n{MODULE}```",
    "the same twice": f"rank 0:\n{MODULE}\nrank 1:\n{MODULE}",
    "absl log": numbered("I0102 03:04:05.6N 77 gpu_compiler.cc:123] "),
    "tensorflow log": numbered("2024-05-15 10:04:1N.5: I xla/service/dump.cc:7] "),
    "log with one prefix": f"I0102 03:04:05.67 77 a.cc:9] {MODULE}I0102 done",
    "mpirun": numbered("[1,3]<stdout>:"),
    "mail": numbered("> "),
    "indented": numbered("    "),
    "ansi": numbered("\x1b[32m"),
    "html": f"<pre>\n{html.escape(MODULE)}</pre>",
    "python repr": f"text = {MODULE!r}\nprint(text)",
    "json": json.dumps({"output": MODULE}),
    "notebook": json.dumps(
        {"cells": [{"outputs": [{"text": MODULE.splitlines(keepends=True)}]}]},
        indent=1,
    ),
    "byte order mark": "\ufeff" + MODULE,
    "carriage returns": MODULE.replace("\n", "\r\n"),
    "trailing log": MODULE + "\nStep 1: loss 3.5\n",
}


@pytest.mark.parametrize("text", ENVELOPES.values(), ids=ENVELOPES)
def test_a_module_is_found_in_what_surrounds_it(text):
    module = read(text)
    assert (module.name, module.devices) == ("step", 4)
    assert collectives(module) == {"all-reduce": (64, 64, 2, 2, True)}
    (parameter,) = (
        i for i in module.entry.instructions.values() if i.opcode == "parameter"
    )
    assert parameter.proto.metadata.op_name == 'x "quoted" #1'


OTHER = MODULE.replace("HloModule step", "HloModule other")
REFUSED = {
    "": "the text is empty",
    "loss = 3.5": "this is not HLO.*'loss = 3.5'",
    "module @jit_f attributes {a = 1} {\n}": "StableHLO.*compile",
    MODULE.partition("\n")[2]: "without its beginning.*HloModule NAME",
    f"{MODULE}\n{OTHER}": r"2 HLO modules \(step, other\).*a file of its own",
    json.dumps([MODULE, OTHER]): r"2 HLO modules \(step, other\)",
    MODULE[:-40]: "ends in the middle, at line 11.*cut off",
    MODULE[: MODULE.index("ENTRY")]: "ends in the middle",
    MODULE.replace("  %p = f32", "  ...\n  %p = f32"): "line 10.*shortened the text",
    MODULE.replace("all-reduce", "all-reduce-v2"): "all-reduce-v2.*pip install -U jax",
    MODULE.replace("use_gl", "new_gl"): "new_global.*-U jax",
    MODULE.replace("f32[16]{0} all-", "f32[1\n6]{0} all-"): "line 12.*take the file",
    # Makes the compiler's parser abort its process.
    MODULE.replace("ROOT %add = f32[] add(%a, %b)", "ROOT %t = f32[] tuple(%a)"): (
        "contradicts itself.*Expected a tuple shape"
    ),
}


@pytest.mark.parametrize(
    ("text", "message"), REFUSED.items(), ids=list(map(str, range(len(REFUSED))))
)
def test_what_cannot_be_read_is_refused_with_advice(text, message):
    with pytest.raises(HloError, match=f"(?s){message}"):
        parse_text(text)


def test_partitions_and_replicas_are_kept():
    text = MODULE.replace("num_partitions=4", "replica_count=2, num_partitions=3")
    assignment = read(text).proto.device_assignment
    assert (assignment.replica_count, assignment.computation_count) == (2, 3)
    devices = [list(c.replica_device_ids) for c in assignment.computation_devices]
    assert devices == [[0, 3], [1, 4], [2, 5]]


def test_elided_constants_take_no_memory_and_stay_constants():
    text = MODULE.replace(
        "  ROOT %all", "  %table = f32[999999,99999]{1,0} constant({...})\n  ROOT %all"
    )
    data = parse_text(text)
    assert len(data) < 10_000
    table = next(
        i for i in read_module(data).entry.instructions.values() if i.name == "table"
    )
    assert table.opcode == "constant"
    assert table.proto.custom_call_target == ""
    assert keep_elided("c = f32[2] constant({1, 2})") == (
        "c = f32[2] constant({1, 2})",
        False,
    )


def test_restoring_touches_nothing_else():
    module = message_class("HloModuleProto")(name="m")
    computation = module.computations.add(name="e")
    computation.instructions.add(
        name="c", opcode="custom-call", custom_call_target="__cublas$gemm"
    )
    data = module.SerializeToString()
    assert restore_elided(data) == data


def test_in_process_and_isolated_parsing_agree():
    def content(data: bytes):
        # Not the bytes themselves: maps are serialised in any order.
        module = read_module(data)
        return [
            (c.name, [(i.id, i.name, i.opcode, i.shape) for i in c.sequence or ()])
            for c in module.computations.values()
        ]

    assert content(parse_text(MODULE, isolated=False)) == content(parse_text(MODULE))


@examples(8, 100, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_damaged_text_gives_a_module_or_an_error_of_ours(data):
    parts = re.split(r"(\W)", data.draw(st.sampled_from([MODULE, dump(2024)])))
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(parts) - 1))
        parts[place] = data.draw(
            st.sampled_from(["", "tuple", "parameter", "-1", "{", "f32[]", "%p", "\0"])
        )
    module = None
    with contextlib.suppress(HloError):
        module = read("".join(parts))
    assert module is None or module.entry.sequence is not None
