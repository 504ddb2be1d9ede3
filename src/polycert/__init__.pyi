# The public names. `__init__.py` imports each from here when it is first used.

from . import data, exact, losses, zoo
from .attacks.pgd import Attack, attack
from .certification.bounds import bounds
from .certification.certify import certify, envelope
from .certification.envelope import Envelope
from .certification.radius import largest_radius
from .errors import PolycertError
from .evaluation import Evaluation
from .evaluation.evaluate import evaluate
from .exact import Verdicts, verify
from .graph import Graph, Network
from .graph.capture import capture
from .graph.onnx.export import export
from .models.model_files import load, save
from .records.certificates import Bounds, Certificates, Radii
from .sets.ball import Ball

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
