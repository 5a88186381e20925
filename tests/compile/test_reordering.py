"""An order for what was scheduled before gives what a compile with that order gives."""

import re

import jax
import pytest
from jax.sharding import NamedSharding, PartitionSpec

import lagom_models
from lagom_jax.compile import Compiler, ScheduledOrder, Target, compile_step, lower
from lagom_jax.compile.child import WorkerAnswer
from lagom_jax.compile.reordering import NoPlaceholderError, placeholder
from lagom_jax.compile.schema import message_class
from lagom_jax.plan import ScheduleEdit
from lagom_jax.plan.order import APPLIED, NOT_MET
from tests.compile.conftest import TARGET_TEXT, hlo_text, mesh
from tests.compile.overlapping import OPTIONS, overlapping_step
from tests.compile.steps import training_step

TARGET = Target("h100:1x8", TARGET_TEXT, "1x1x8")


def overlapping():
    step, arguments = overlapping_step(mesh(8))
    return lower(step, *arguments)


def small():
    step, arguments = training_step(mesh(4, 2))
    return lower(step, *arguments)


def zoo(model, parallelism):
    def made():
        step = lagom_models.build(model, devices=8, parallelism=parallelism, tiny=True)
        return lower(step.function, *step.arguments)

    return made


def parameters_first(scheduled):
    """Possible always, and another order in nearly all sequences."""
    order = ScheduledOrder.of(scheduled)
    sequences = {
        number: tuple(
            sorted(
                range(len(computation.opcodes)),
                key=lambda i, kinds=computation.opcodes: kinds[i] != "parameter",
            )
        )
        for number, computation in enumerate(order.computations)
    }
    return ScheduleEdit(order.fingerprint, sequences)


def without_names(module):
    """A module's text, but for what differs from compile to compile of one program.

    XLA counts in names as it goes, and its mark of what it scheduled knows which of two
    fusions came first.
    """
    text = re.sub(r'fingerprint_before_lhs="\w+"', "", hlo_text(module))
    return re.sub(r"(?<=[a-z_-])(\.\d+)+\b", "", text)


@pytest.fixture
def asked(monkeypatch):
    """Whether each compile was of an order alone."""
    found = []
    ask = Compiler.ask

    def seen(self, *arguments, **named):
        answer = ask(self, *arguments, **named)
        found.append((answer.header or {}).get("only_reordered"))
        return answer

    monkeypatch.setattr(Compiler, "ask", seen)
    return found


@pytest.mark.parametrize(
    ("made", "options"),
    [
        pytest.param(overlapping, OPTIONS, id="overlapping"),
        pytest.param(small, {}, id="small"),
        *(
            pytest.param(zoo(*named), {}, id="-".join(named), marks=pytest.mark.nightly)
            for named in [
                ("llama-3-8b", "fsdp"),
                ("llama-3-8b", "tp-sliced"),
                ("olmoe-1b-7b", "ep"),
                ("phi-2", "tp"),
            ]
        ),
    ],
)
def test_it_is_what_a_compile_with_the_order_gives(made, options, asked):
    step = made()
    with Compiler(store=False) as compiler:
        before = compile_step(step, TARGET, options, capture=True, compiler=compiler)
        edit = parameters_first(before.scheduled_bytes)
        quick = compile_step(
            step, TARGET, options, order=edit, capture=True, compiler=compiler
        )
    # Another compiler has kept nothing.
    with Compiler(store=False) as compiler:
        whole = compile_step(
            step, TARGET, options, order=edit, capture=True, compiler=compiler
        )
    assert asked == [False, True, False]
    assert quick.order_outcome == whole.order_outcome == APPLIED
    assert quick.memory == whole.memory
    assert quick.notes == whole.notes
    assert quick.warnings == whole.warnings
    assert quick.device_kind == whole.device_kind
    assert quick.schedule_fingerprint == whole.schedule_fingerprint
    assert quick.scheduled_bytes == before.scheduled_bytes
    assert without_names(quick.module_bytes) == without_names(whole.module_bytes)


def test_another_schedule_is_compiled_in_full_and_says_so(asked):
    step = small()
    with Compiler(store=False) as compiler:
        before = compile_step(step, TARGET, capture=True, compiler=compiler)
        edit = parameters_first(before.scheduled_bytes)
        other = ScheduleEdit("0" * 64, edit.sequences)
        found = compile_step(step, TARGET, order=other, compiler=compiler)
    assert asked == [False, False]
    assert found.order_outcome == NOT_MET


def test_an_order_that_moves_nothing_keeps_donation(asked):
    step = small()
    with Compiler(store=False) as compiler:
        before = compile_step(step, TARGET, capture=True, compiler=compiler)
        order = ScheduledOrder.of(before.scheduled_bytes)
        same = ScheduleEdit(
            order.fingerprint,
            {n: tuple(range(len(c.opcodes))) for n, c in enumerate(order.computations)},
        )
        found = compile_step(step, TARGET, order=same, compiler=compiler)
    assert asked == [False, False]
    assert found.memory == before.memory


def test_a_kept_compile_of_another_run_will_do(tmp_path, asked):
    step = small()
    with Compiler(store=tmp_path) as compiler:
        before = compile_step(step, TARGET, capture=True, compiler=compiler)
    with Compiler(store=tmp_path) as compiler:
        edit = parameters_first(before.scheduled_bytes)
        compile_step(step, TARGET, order=edit, compiler=compiler)
    assert asked == [False, True]


def test_other_options_are_another_compile(asked):
    step = small()
    with Compiler(store=False) as compiler:
        before = compile_step(step, TARGET, capture=True, compiler=compiler)
        edit = parameters_first(before.scheduled_bytes)
        others = {"xla_gpu_enable_latency_hiding_scheduler": False}
        compile_step(step, TARGET, others, order=edit, compiler=compiler)
    assert asked == [False, False]


def test_a_process_that_dies_of_it_is_followed_by_a_whole_compile(monkeypatch, caplog):
    step, ask = small(), Compiler.ask
    died = []

    def dying(self, request, *arguments, **named):
        if "scheduled_size" in request:
            died.append(request)
            return WorkerAnswer(None, b"", -6, False, ())
        return ask(self, request, *arguments, **named)

    monkeypatch.setattr(Compiler, "ask", dying)
    with Compiler(store=False) as compiler, caplog.at_level("INFO", "lagom_jax"):
        before = compile_step(step, TARGET, capture=True, compiler=compiler)
        edit = parameters_first(before.scheduled_bytes)
        found = compile_step(step, TARGET, order=edit, compiler=compiler)
    assert len(died) == 1
    assert found.order_outcome == APPLIED
    assert "XLA died of an order" in caplog.text


def test_why_an_order_alone_failed_is_in_the_log(caplog, asked):
    everywhere = NamedSharding(mesh(4, 2), PartitionSpec())
    numbers = (
        jax.ShapeDtypeStruct((64, 64), kind, sharding=everywhere)
        for kind in ("complex64", "float32")
    )
    step = lower(jax.jit(lambda c, x: (c * 2, x @ x, x.sum())), *numbers)
    with Compiler(store=False) as compiler, caplog.at_level("INFO", "lagom_jax"):
        before = compile_step(step, TARGET, capture=True, compiler=compiler)
        edit = parameters_first(before.scheduled_bytes)
        found = compile_step(step, TARGET, order=edit, compiler=compiler)
    assert asked == [False, False]
    assert found.order_outcome == APPLIED
    assert "compiled whole for a new order: NoPlaceholderError: " in caplog.text


def module(**shape):
    parsed = message_class("HloModuleProto")(name="step", entry_computation_id=1)
    entry = parsed.computations.add(id=1, root_id=2)
    one = entry.instructions.add(opcode="parameter", id=2)
    one.shape.element_type = shape.get("element_type", 11)
    one.shape.dimensions.extend([4, 8])
    one.shape.layout.minor_to_major.extend(shape.get("layout", [1, 0]))
    one.shape.layout.memory_space = shape.get("memory_space", 0)
    return parsed.SerializeToString()


def test_a_placeholder_has_the_parameters_and_results():
    text, given, made = placeholder(module(), 8)
    assert (given, made) == (1, 1)
    assert b"@main(%a0: tensor<4x8xf32>) -> (tensor<4x8xf32>)" in text
    assert b"mhlo.num_partitions = 8" in text


@pytest.mark.parametrize(
    "shape", [{"element_type": 15}, {"layout": [0, 1]}, {"memory_space": 5}], ids=str
)
def test_what_no_program_of_ours_can_have_has_no_placeholder(shape):
    with pytest.raises(NoPlaceholderError):
        placeholder(module(**shape), 8)


def swapped(scheduled):
    """Two neighbours that can change places, do."""
    order = ScheduledOrder.of(scheduled)
    last = len(order.computations) - 1
    count = len(order.computations[last].opcodes)
    for place in range(count - 1):
        numbers = [*range(count)]
        numbers[place : place + 2] = place + 1, place
        edit = ScheduleEdit(order.fingerprint, {last: tuple(numbers)})
        if order.objection(edit) is None:
            return edit
    raise AssertionError("nothing can move")


def test_where_there_is_none_the_step_is_compiled_in_full(asked):
    def step(x, y):
        return x @ x.T, y @ y.T

    shape = jax.ShapeDtypeStruct((64, 64), "complex64")
    target = Target("h100:1x1", TARGET_TEXT, "1x1x1")
    lowered = lower(jax.jit(step), shape, shape)
    with Compiler(store=False) as compiler:
        before = compile_step(lowered, target, capture=True, compiler=compiler)
        edit = swapped(before.scheduled_bytes)
        found = compile_step(lowered, target, order=edit, compiler=compiler)
    assert asked == [False, False]
    assert found.order_outcome == APPLIED
