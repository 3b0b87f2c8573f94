"""Seconds of collective operations over n GPUs.

A ring moves (n - 1) / n of the bytes over every link in n - 1 steps; an all-reduce does so twice, as a reduce-scatter
and an all-gather (Patarasuk and Yuan 2009, "Bandwidth optimal all-reduce algorithms for clusters of workstations"). A
pair of binary trees moves the bytes up and down once each in about log2 of the machines' steps (Sanders, Speck and
Traff 2009), which is what NCCL takes for small messages on many GPUs. Where rings leave a machine there are as many as
it has ports, so that together they have the bandwidth of all of them.
"""

from __future__ import annotations

import math

from .hardware import Network


def bandwidth(network: Network, n: int) -> float:
    """Bytes/s that a collective over n GPUs moves past each of them."""
    slowest = network.intra if n <= network.node else min(network.intra, network.inter * network.node)
    return network.share * slowest


def all_gather(network: Network, n: int, size: float) -> float:
    """Seconds to give everybody `size` bytes in all, 1/n from each, by a ring; 0 on one GPU."""
    if n == 1:
        return 0.0
    between = math.ceil(n / network.node) - 1  # steps that leave a machine
    latency = network.start + (n - 1 - between) * network.hop_intra + between * network.hop_inter
    return latency + (n - 1) / n * size / bandwidth(network, n)


reduce_scatter = all_gather  # the same steps, with a sum in each


def all_reduce(network: Network, n: int, size: float) -> float:
    """Seconds to sum `size` bytes on each of n GPUs, by the faster of ring and trees; 0 on one GPU."""
    return min(_ring(network, n, size), _trees(network, n, size))


def _ring(network: Network, n: int, size: float) -> float:
    if n == 1:
        return 0.0
    return reduce_scatter(network, n, size) + all_gather(network, n, size) - network.start


def _trees(network: Network, n: int, size: float) -> float:
    if n == 1:
        return 0.0
    machines, inside = math.ceil(n / network.node), min(n, network.node)
    steps = (inside - 1) * network.tree_intra + math.ceil(math.log2(machines)) * network.tree_inter
    return network.tree_start + 2 * steps + 2 * size / bandwidth(network, n)
