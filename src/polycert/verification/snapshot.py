"""A network with its weights as they are at one moment; exact searches work on it, also in other processes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch

from polycert.bounding.methods import provable
from polycert.errors import PolycertError
from polycert.forms import Shape
from polycert.graph import Graph, Network
from polycert.sets.ball import Region
from polycert.sets.interval import holds
from polycert.verification.rational import RationalNetwork


@dataclass(frozen=True, eq=False)
class NetworkSnapshot(Network):
    """A network as graphs in its own type and in float64; unlike a captured module it can be sent to a process."""

    own: Graph
    double: Graph
    proof: Graph | None  # the first of the two graphs that can carry a proof; None if neither can
    input_shape: Shape
    output_shape: Shape
    had_softmax: bool

    @staticmethod
    def of(net: Network, *, unproved: bool = False) -> NetworkSnapshot:
        """Return a snapshot of a network on the CPU; weights that no proof covers are refused unless `unproved`."""
        if isinstance(net, NetworkSnapshot):
            return net
        with torch.no_grad():
            own, double = net.bind(), net.bind(torch.float64)
            if own.device.type != "cpu":
                raise PolycertError(f"the exact certifier works on the CPU, but the model is on {own.device}: move it")
            proof = None if unproved and (own.computed or double.computed) else provable(net, own)
        return NetworkSnapshot(own, double, proof, net.input_shape, net.output_shape, net.softmax)

    def bind(self, dtype: torch.dtype | None = None) -> Graph:
        """Return the graph of a type, by default of the network's own."""
        if dtype is None or dtype == self.own.dtype:
            return self.own
        if dtype != torch.float64:
            raise PolycertError(f"a snapshot holds the network in {self.own.dtype} and float64 only, not in {dtype}")
        return self.double

    @property
    def softmax(self) -> bool:
        """Whether a final softmax was dropped."""
        return self.had_softmax

    @cached_property
    def exact(self) -> RationalNetwork:
        """Return the network in exact arithmetic."""
        return RationalNetwork(self.double)

    def proving(self, region: Region) -> Graph | None:
        """Return the cheapest graph whose bounds over a region are proofs: its type must hold the inputs."""
        return self.proof if self.proof is None or holds(self.proof.dtype, region.x) else self.double
