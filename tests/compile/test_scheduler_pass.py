"""XLA's own compiler with another order than its scheduler's."""

import contextlib
import dataclasses
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import jax
import pytest

import lagom_models
from lagom_jax import typed_json
from lagom_jax.compile import (
    Compiler,
    ScheduledOrder,
    Target,
    _plugin_pass,
    compile_step,
    lower,
    worker,
)
from lagom_jax.compile.scheduler_pass import SchedulerPass, scheduler_pass
from lagom_jax.compile.schema import message_class
from lagom_jax.plan import ScheduleEdit
from lagom_jax.plan.order import APPLIED, NOT_MET, OrderOutcome
from tests.compile import overlapping
from tests.compile.conftest import TARGET_TEXT, comparable, hlo_text, mesh
from tests.compile.overlapping import OPTIONS, STARTS, overlapping_step
from tests.compile.steps import training_step

ROOT = Path(__file__).parents[2]
TARGET = Target("h100:1x8", TARGET_TEXT, "1x1x8")
# Before it, XLA forgot donation when a pass had changed the module.
KEEPS_DONATION = jax.__version_info__ >= (0, 12)


@pytest.fixture(scope="module")
def lowered():
    step, arguments = overlapping_step(mesh(8))
    return lower(step, *arguments)


@pytest.fixture(scope="module")
def plain(lowered):
    # A store may have it from a compile that asked for more.
    with Compiler(store=False) as compiler:
        return compile_step(lowered, TARGET, OPTIONS, compiler=compiler)


@pytest.fixture(scope="module")
def captured(lowered):
    return compile_step(lowered, TARGET, OPTIONS, capture=True)


@pytest.fixture(scope="module")
def order(captured):
    return ScheduledOrder.of(captured.scheduled_bytes)


@pytest.fixture(scope="module")
def hoisted(lowered, order):
    # With a store that has the captured schedule, the order alone would be compiled.
    with Compiler(store=False) as compiler:
        return compile_step(
            lowered, TARGET, OPTIONS, order=hoisting(order), compiler=compiler
        )


def entry(order):
    return order.computations[-1]


def places(computation, opcodes):
    return [i for i, opcode in enumerate(computation.opcodes) if opcode in opcodes]


def edit_of(order, permutation):
    return ScheduleEdit(
        order.fingerprint, {len(order.computations) - 1: tuple(permutation)}
    )


def hoisting(order):
    """All parameters first, then the last collective to start, then the others."""
    computation = entry(order)
    first = [*places(computation, ("parameter",)), places(computation, STARTS)[-1]]
    others = (i for i in range(len(computation.opcodes)) if i not in first)
    return edit_of(order, [*first, *others])


def same(one, other):
    return comparable(hlo_text(one)) == comparable(hlo_text(other))


def test_without_order_and_capture_nothing_is_said(plain):
    assert plain.scheduled_bytes is None
    assert plain.schedule_fingerprint is None
    assert plain.order_outcome is None
    assert plain.notes == ()


def test_capture_changes_nothing(plain, captured):
    assert same(captured.module_bytes, plain.module_bytes)
    assert captured.memory == plain.memory
    assert captured.order_outcome is None
    assert captured.notes == ()
    assert captured.warnings == plain.warnings


def test_the_whole_module_is_captured_and_not_a_kernel(captured, order):
    assert captured.schedule_fingerprint == order.fingerprint
    names = entry(order).names
    assert sum("gemm" in name for name in names) == overlapping.LAYERS
    assert len(places(entry(order), STARTS)) == overlapping.LAYERS


def test_the_final_module_has_the_captured_instructions_in_the_captured_order(
    captured, order
):
    # A collective that waits at once is made synchronous after the pass; from jax 0.12
    # on that leaves one instruction of the two, under a name of its own.
    final = entry(ScheduledOrder.of(captured.module_bytes)).names
    before = entry(order).names
    kept = [name for name in before if name in final]
    assert kept == [name for name in final if name in before]
    lost = {name for name in before if name not in final}
    assert all(name.startswith("all-gather-") for name in lost)
    assert KEEPS_DONATION or not lost


def test_a_captured_order_in_place_changes_nothing(lowered, plain, order):
    size = len(entry(order).opcodes)
    again = compile_step(lowered, TARGET, OPTIONS, order=edit_of(order, range(size)))
    assert again.order_outcome == APPLIED
    assert same(again.module_bytes, plain.module_bytes)
    assert again.memory == plain.memory


def test_a_hoisted_collective_is_obeyed(plain, order, hoisted):
    assert hoisted.order_outcome == APPLIED
    assert hoisted.notes == ()
    assert hoisted.schedule_fingerprint == order.fingerprint
    assert hoisted.scheduled_bytes is None
    before = entry(order)
    wanted = [
        before.names[i] for i in hoisting(order).sequences[len(order.computations) - 1]
    ]
    final = entry(ScheduledOrder.of(hoisted.module_bytes))
    assert [name for name in wanted if name in final.names] == [
        name for name in final.names if name in wanted
    ]
    # What had waited at once is asynchronous now that others start in between.
    last = before.names[places(before, STARTS)[-1]]
    usual = entry(ScheduledOrder.of(plain.module_bytes)).names
    assert final.names.index(last) < usual.index(last)
    # One more gathered weight is alive from the start.
    assert hoisted.memory.temp_bytes != plain.memory.temp_bytes
    assert hoisted.memory.argument_bytes == plain.memory.argument_bytes


def test_every_process_makes_the_same_of_an_order(lowered, order, hoisted):
    edit = typed_json.typed(
        ScheduleEdit, json.loads(json.dumps(typed_json.plain(hoisting(order))))
    )
    again = compile_step(lowered, TARGET, OPTIONS, order=edit)
    assert hlo_text(again.module_bytes) == hlo_text(hoisted.module_bytes)


def impossible_orders():
    def user_before_its_operand(order):
        names = entry(order).names
        permutation = list(range(len(names)))
        user = places(entry(order), ("fusion",))[0]
        permutation.insert(0, permutation.pop(user))
        return edit_of(order, permutation), f"{names[user]}, a fusion of main"

    def too_short(order):
        size = len(entry(order).opcodes)
        return edit_of(order, range(size - 1)), f"has {size - 1} instructions for main"

    def no_such_sequence(order):
        count = len(order.computations)
        return ScheduleEdit(order.fingerprint, {count: ()}), f"no sequence {count}"

    def of_another_schedule(order):
        edit = dataclasses.replace(hoisting(order), fingerprint="0" * 64)
        return edit, f"schedule {'0' * 12}, and .* made {order.fingerprint[:12]}"

    return [user_before_its_operand, too_short, no_such_sequence, of_another_schedule]


@pytest.mark.parametrize("impossible", impossible_orders(), ids=lambda f: f.__name__)
def test_an_impossible_order_is_left_out_with_a_note(lowered, plain, order, impossible):
    edit, message = impossible(order)
    compiled = compile_step(lowered, TARGET, OPTIONS, order=edit)
    assert same(compiled.module_bytes, plain.module_bytes)
    assert compiled.memory == plain.memory
    (note,) = compiled.notes
    assert note.startswith("the order of instructions was left out: ")
    assert re.search(message, note)
    known = edit.fingerprint == order.fingerprint
    reason = note.partition(": ")[2]
    refused = OrderOutcome("refused", reason) if known else NOT_MET
    assert compiled.order_outcome == refused
    assert compiled.schedule_fingerprint == order.fingerprint


def test_only_an_order_that_was_met_is_kept_in_the_store(lowered, order, tmp_path):
    """Another compile may meet what this one did not."""
    met = hoisting(order)
    for edit in (met, dataclasses.replace(met, fingerprint="0" * 64)):
        with Compiler(store=tmp_path) as compiler:
            one, other = (
                compile_step(lowered, TARGET, OPTIONS, order=edit, compiler=compiler)
                for _ in range(2)
            )
        assert one.order_outcome == other.order_outcome
        assert other.stored == (edit == met)


def test_control_dependencies_are_kept(captured):
    parsed = message_class("HloModuleProto").FromString(captured.scheduled_bytes)
    order = ScheduledOrder.of(captured.scheduled_bytes)
    computation = next(c for c in parsed.computations if c.name == entry(order).name)
    by_name = {made.name: made for made in computation.instructions}
    names = entry(order).names
    first, second = places(entry(order), ("parameter",))[:2]
    by_name[names[second]].control_predecessor_ids.append(by_name[names[first]].id)
    tied = ScheduledOrder.of(parsed.SerializeToString())
    assert tied.fingerprint != order.fingerprint
    moved = [second, *(i for i in range(len(names)) if i != second)]
    assert order.objection(edit_of(order, moved)) is None
    assert tied.objection(edit_of(tied, moved)) == (
        f"{names[second]}, a parameter of {entry(order).name}, would run before "
        f"{names[first]}, which it must wait for"
    )


class TestFingerprint:
    def changed(self, captured, change):
        parsed = message_class("HloModuleProto").FromString(captured.scheduled_bytes)
        for computation in parsed.computations:
            for instruction in computation.instructions:
                change(instruction)
        return ScheduledOrder.of(parsed.SerializeToString()).fingerprint

    def test_names_metadata_and_numbers_do_not_count(self, captured, order):
        def change(instruction):
            instruction.name += ".other"
            instruction.metadata.source_line += 7
            instruction.channel_id += 3
            instruction.id += 1000
            for ids in (instruction.operand_ids, instruction.control_predecessor_ids):
                ids[:] = [each + 1000 for each in ids]

        parsed = message_class("HloModuleProto").FromString(captured.scheduled_bytes)
        for computation in parsed.computations:
            for instruction in computation.instructions:
                change(instruction)
        for entry_ in parsed.schedule.sequences:
            ids = entry_.value.instruction_ids
            ids[:] = [each + 1000 for each in ids]
        renamed = ScheduledOrder.of(parsed.SerializeToString())
        assert renamed.fingerprint == order.fingerprint

    def test_opcodes_and_shapes_count(self, captured, order):
        def opcode(instruction):
            if instruction.opcode == "fusion":
                instruction.opcode = "custom-call"

        def shape(instruction):
            if instruction.opcode == "parameter":
                instruction.shape.dimensions[:] = [1, 1]

        kinds = {self.changed(captured, change) for change in (opcode, shape)}
        assert len(kinds | {order.fingerprint}) == 3

    def test_the_order_counts(self, order, hoisted):
        moved = ScheduledOrder.of(hoisted.module_bytes)
        assert moved.fingerprint != order.fingerprint

    def test_it_is_the_same_for_a_checkout_elsewhere(self, captured, tmp_path):
        copy = tmp_path / "elsewhere.py"
        shutil.copy(overlapping.__file__, copy)
        spec = importlib.util.spec_from_file_location("elsewhere", copy)
        elsewhere = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(elsewhere)
        step, arguments = elsewhere.overlapping_step(mesh(8))
        again = compile_step(lower(step, *arguments), TARGET, OPTIONS, capture=True)
        assert b"elsewhere.py" in again.scheduled_bytes
        assert again.schedule_fingerprint == captured.schedule_fingerprint


def small():
    step, arguments = training_step(mesh(4, 2))
    return lower(step, *arguments)


def llama():
    step = lagom_models.build("llama-3-8b", devices=8, parallelism="fsdp", tiny=True)
    return lower(step.function, *step.arguments)


@pytest.mark.parametrize(
    "made", [small, pytest.param(llama, marks=pytest.mark.nightly)]
)
def test_a_training_step_with_loops_and_donation(made):
    step = made()
    plain = compile_step(step, TARGET)
    captured = compile_step(step, TARGET, capture=True)
    assert same(captured.module_bytes, plain.module_bytes)
    order = ScheduledOrder.of(captured.scheduled_bytes)
    assert order.donates
    # Parameters first, in every sequence that has any: always possible.
    edit = ScheduleEdit(
        order.fingerprint,
        {
            number: tuple(
                sorted(
                    range(len(computation.opcodes)),
                    key=lambda i, kinds=computation.opcodes: kinds[i] != "parameter",
                )
            )
            for number, computation in enumerate(order.computations)
        },
    )
    assert not edit.keeps_everything
    moved = compile_step(step, TARGET, order=edit)
    assert moved.order_outcome == APPLIED
    final = ScheduledOrder.of(moved.module_bytes)
    assert entry(final).opcodes != entry(order).opcodes
    parameters = places(entry(final), ("parameter",))
    assert parameters == list(range(len(parameters)))
    assert final.donates == KEEPS_DONATION
    assert (moved.memory.alias_bytes == plain.memory.alias_bytes) == KEEPS_DONATION
    assert any("donated" in note for note in moved.notes) != KEEPS_DONATION


@pytest.mark.parametrize(
    ("order", "capture", "times"),
    [
        (None, False, 0),
        (None, True, 1),
        ({"fingerprint": "", "sequences": {}, "second_stream": {}}, False, 1),
    ],
)
def test_a_pass_is_registered_only_where_one_is_needed(
    monkeypatch, order, capture, times
):
    registered = []

    @contextlib.contextmanager
    def register(transform):
        registered.append(transform)
        yield

    monkeypatch.setattr(_plugin_pass, "registered", register)
    edit = None if order is None else typed_json.typed(ScheduleEdit, order)
    with scheduler_pass(edit, capture):
        pass
    assert len(registered) == times
    with worker.schedule_pass({"order": order, "capture": capture}) as seen:
        assert (seen is None) == (times == 0)
    assert len(registered) == 2 * times


class TestThePassItself:
    def test_bytes_that_are_no_module_are_left_alone(self):
        seen = SchedulerPass(ScheduleEdit("ab12", {}), capture=True)
        assert seen.transform(b"\xff\xff\xff") is None
        assert seen.outcome.why.startswith("the pass failed: DecodeError")

    def test_what_xla_refuses_is_left_alone(self, captured, order, monkeypatch):
        monkeypatch.setattr(ScheduledOrder, "objection", lambda *_: None)
        size = len(entry(order).opcodes)
        seen = SchedulerPass(edit_of(order, reversed(range(size))), capture=False)
        assert seen.transform(captured.scheduled_bytes) is None
        assert "is not scheduled after its operand" in seen.outcome.why

    def test_ctrl_c_waits_for_the_end_of_the_compile(self, captured, monkeypatch):
        def interrupt(_):
            raise KeyboardInterrupt

        monkeypatch.setattr(ScheduledOrder, "of", interrupt)
        seen = SchedulerPass(None, capture=True)
        assert seen.transform(captured.scheduled_bytes) is None
        with pytest.raises(KeyboardInterrupt):
            seen.raise_if_interrupted()


def test_in_a_process_of_the_users_own(tmp_path):
    """Registration, threads and jax's persistent cache; see the script."""
    environment = os.environ | {
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)]),
    }
    result = subprocess.run(
        [
            sys.executable,
            "-m",
            "tests.compile.pass_in_process",
            str(tmp_path / "cache"),
        ],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout.splitlines()[-1]) == {
        "outcome": "applied",
        "order was obeyed": True,
        "next compile is as without": True,
        "next compile went by": False,
        "cleared after an error": True,
        "threads saw their own": True,
        "cache hits inside": 0,
        "cache entries inside": 0,
        "cache entries outside": True,
        "cache hits outside": 1,
        "cache is on again": True,
    }
