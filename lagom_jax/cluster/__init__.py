"""Clusters: GPUs, links, systems, and their descriptions for XLA.

Example:
    >>> cluster = Cluster.parse("a40-nvlink:2x8")
    >>> topology(cluster)
    '2x1x8'
"""

from lagom_jax.cluster.cluster import Cluster
from lagom_jax.cluster.hardware import Gpu, Link, System
from lagom_jax.cluster.target import target_config, topology

__all__ = ["Cluster", "Gpu", "Link", "System", "target_config", "topology"]
