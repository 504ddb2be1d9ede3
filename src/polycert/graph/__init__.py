"""Networks and graphs, and how they are captured."""

from polycert.graph.capture import capture
from polycert.graph.graph import Graph, Node
from polycert.graph.network import Network

__all__ = ["Graph", "Network", "Node", "capture"]
