"""Networks and graphs, and how they are captured."""

from polycert.graph.capture import capture
from polycert.graph.graph import Graph, Network, Node

__all__ = ["Graph", "Network", "Node", "capture"]
