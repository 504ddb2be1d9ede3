# The public names. `__init__.py` imports each from here when it is first used.

from . import data, exact, losses, zoo
from .attacks import Attack, attack
from .certification import Bounds, bounds, certify, envelope
from .envelopes import Envelope
from .errors import PolycertError
from .evaluation import Evaluation, evaluate
from .exact import Verdicts, verify
from .graph import Graph, Network, capture
from .graph.onnx.export import export
from .loading import load, save
from .radius import Radii, largest_radius
from .records import Certificates
from .sets import Ball

__version__: str

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
