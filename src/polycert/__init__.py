"""polycert: certified radii of neural networks in any l_p ball inside a box."""

from polycert import data
from polycert.certify import Bounds, bounds, certify, envelope
from polycert.envelope import Envelope
from polycert.errors import PolycertError
from polycert.graph import Graph, Network, capture
from polycert.loading import load, save
from polycert.radius import Radii, largest_radius
from polycert.records import Certificates
from polycert.sets import Ball

__version__ = "0.1.0"

__all__ = [
    "Ball",
    "Bounds",
    "Certificates",
    "Envelope",
    "Graph",
    "Network",
    "PolycertError",
    "Radii",
    "__version__",
    "bounds",
    "capture",
    "certify",
    "data",
    "envelope",
    "largest_radius",
    "load",
    "save",
]
