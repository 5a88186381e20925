"""Rows of tables, on the cluster that they name."""

from hypothesis import assume, given
from hypothesis import strategies as st

from lagom_jax.cluster import Cluster
from lagom_jax.commands.rows import on_network
from lagom_jax.cost.collective import CollectiveTerms
from lagom_jax.cost.constants import load_constants
from lagom_jax.cost.nccl_default import default_of, offered_by
from lagom_jax.cost.span import Span
from tests.depth import examples

KINDS = ("all-gather", "reduce-scatter", "all-reduce", "all-to-all")
# Between the rates of networks that were measured, at them, and beyond.
RATES = st.one_of(
    st.sampled_from((6.25e9, 25e9, 50e9)), st.floats(3e9, 200e9, allow_nan=False)
)


@given(
    st.sampled_from(("a100", "h100", "h200", "b200", "a40-nvlink")),
    st.sampled_from((2, 4, 16)),
    st.sampled_from(KINDS),
    st.floats(4, 34),
    st.tuples(RATES, RATES),
    st.sampled_from(("ll", "ll128", "simple")),
)
@examples(by_day=100, by_night=2000)
def test_no_collective_is_slower_on_a_faster_network(
    name, hosts, kind, log2_bytes, rates, protocol
):
    """In each of NCCL's protocols; which of them it takes is its own choice."""
    full = Cluster.parse(name).gpus_per_host
    cluster = Cluster.parse(f"{name}:{hosts}x{full}")
    span, nbytes = Span(hosts * full, hosts, full), 2.0**log2_bytes

    def at(rate):
        there = on_network(cluster, rate)
        constants = load_constants(there)
        offered = {choice[1] for choice in offered_by(kind, span, constants.facts)}
        assume(protocol in offered)
        setting = default_of(kind, nbytes, span, constants.facts, protocol)
        terms = CollectiveTerms.of(kind, nbytes, span, there, constants)
        return setting, terms.price(setting).seconds

    (usual, slow), (other, fast) = (at(rate) for rate in sorted(rates))
    assume(usual == other)
    assert fast <= slow * (1 + 1e-9)
