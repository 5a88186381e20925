"""What XLA's GPU compiler makes of sliced collective matmuls."""

import pytest

from lagom_jax.decompose import Form
from tests.decompose.programs import program, walk


@pytest.mark.slow
@pytest.mark.parametrize("cluster", ["h100:1x4", "b200:1x4"])
@pytest.mark.parametrize("form", [Form("ring"), Form("direct")], ids=lambda f: f.kind)
def test_the_first_slice_of_a_gather_waits_for_nothing(cluster, form):
    order = walk(program("gather", form, cluster).module)
    assert order.count("start") == order.count("done") == 3, order
    assert order.count("matmul") == 4
    # The own slice is multiplied while the first message is under way; every other
    # message has a matmul between its start and its end.
    assert order == ["start", "matmul", "done"] * 3 + ["matmul"]


@pytest.mark.slow
@pytest.mark.parametrize("cluster", ["h100:1x4", "b200:1x4"])
def test_nothing_is_sent_after_the_last_slice_of_a_scatter(cluster):
    order = walk(program("scatter", Form("ring"), cluster).module)
    assert order.count("start") == 3, order
    assert order.count("matmul") == 4
    assert order == ["matmul"] + ["start", "matmul", "done"] * 3


@pytest.mark.slow
def test_finer_slices_in_both_directions():
    order = walk(program("gather", Form("ring", slices=2, both_ways=True)).module)
    assert order.count("start") == 3 * 4
    assert order.count("matmul") == 4 * 4
    assert "synchronous start" not in order


@pytest.mark.slow
def test_less_memory_than_the_plain_form():
    plain = program("gather", Form("chunks")).peak_memory_bytes
    assert program("gather", Form("ring")).peak_memory_bytes < plain
