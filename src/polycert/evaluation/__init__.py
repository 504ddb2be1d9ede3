"""A whole row of a table for one network: errors, attacks, proofs, radii, and their confidence intervals."""

from polycert.evaluation.evaluate import evaluate
from polycert.records.evaluation import Evaluation

__all__ = ["Evaluation", "evaluate"]
