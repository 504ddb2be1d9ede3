"""polycert: certified radii of neural networks in any l_p ball inside a box."""

from polycert import data, exact, losses, zoo
from polycert.attacks import Attack, attack
from polycert.certify import Bounds, bounds, certify, envelope
from polycert.envelope import Envelope
from polycert.errors import PolycertError
from polycert.evaluation import Evaluation, evaluate
from polycert.exact import Verdicts, verify
from polycert.graph import Graph, Network, capture
from polycert.graph.onnx.export import export
from polycert.loading import load, save
from polycert.radius import Radii, largest_radius
from polycert.records import Certificates
from polycert.sets import Ball

__version__ = "0.1.0"

__all__ = [
    "Attack",
    "Ball",
    "Bounds",
    "Certificates",
    "Envelope",
    "Evaluation",
    "Graph",
    "Network",
    "PolycertError",
    "Radii",
    "Verdicts",
    "__version__",
    "attack",
    "bounds",
    "capture",
    "certify",
    "data",
    "envelope",
    "evaluate",
    "exact",
    "export",
    "largest_radius",
    "load",
    "losses",
    "save",
    "verify",
    "zoo",
]
