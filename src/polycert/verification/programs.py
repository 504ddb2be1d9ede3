"""Programs for solvers: a linear program for a leaf of the search, and a mixed-integer program for a clause.

At a leaf every unit is held on one side, so that the network is affine. The linear program looks for the point that
comes nearest to failing:

    min t   with   rows of the clause <= t,   units held on: z >= -t,   units held off: z <= t,   x in the region,

where each row is scaled to size 1. The program always has a solution; t > 0 means that nothing in the leaf fails. The
solver's word counts for nothing: its multipliers go into the dual bound, which is valid for any multipliers, and its
point is replayed. Tangent planes stand for the ball, and they too are only a guide.

The mixed-integer program decides what branch and bound left open. It has a binary for every unstable unit:

    min t over x in the region, h, d in {0, 1}   with   rows of the clause <= t <= 0,
    z = direct x + through h + offset,   h >= z,   h >= 0,   h <= z - lower (1 - d),   h <= upper d.

A solution is replayed. If there is none, the clause holds as far as the solver's tolerances go, which is no proof. Only
the sign of t matters: the solver stops as soon as t is clearly below 0.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import highspy
import numpy as np
import torch
from torch import Tensor

from polycert.errors import PolycertError
from polycert.sets.geometry import power_norm
from polycert.verification.beta_crown import ON, DualObjective, Multipliers, Nodes, multipliers
from polycert.verification.budget import Budget
from polycert.verification.counterexample import Counterexample, CounterexampleCheck
from polycert.verification.reduced_problem import AffineMaps, Reduced
from polycert.verification.verdicts import FALSIFIED, SOLVER, UNKNOWN, SearchResult

CUTS = 25  # tangent planes at most
TOLERANCE = 1e-9  # relative to eps for points outside of the ball; absolute for the t of a leaf
CLEARLY = -1e-3  # a row this far below 0 survives a solver's tolerances


class LeafSolution(NamedTuple):
    """The solution of a leaf's program: the solver's point, its multipliers, and its word."""

    inputs: Tensor  # [1, inputs]
    multipliers: Multipliers
    beta: Tensor  # [1, units], >= 0: the prices of the units' sides
    weight: Tensor  # [1, rows], >= 0: the prices of the rows
    safe: bool  # whether the solver says that nothing fails


def solve_leaf(problem: Reduced, node: Nodes) -> LeafSolution | None:
    """Return the solution of a single node without free units, or None if the solver fails."""
    split = node.split[0]
    rows = problem.members[int(node.clause)].nonzero().squeeze(1)
    units, outputs = _affine(problem, split)
    sign = torch.where(split == ON, -1.0, 1.0).double()
    upper = torch.cat([sign[:, None] * units.direct, outputs.direct[rows]])
    limit = -torch.cat([sign * units.offset, outputs.offset[rows]])
    size = torch.maximum(upper.norm(dim=1), limit.abs()).clamp(min=1e-12)
    if not bool(torch.isfinite(upper).all() and torch.isfinite(limit).all() and torch.isfinite(size).all()):
        return None
    found = _solve_linear(problem, (upper / size[:, None]).numpy(), (limit / size).numpy())
    if found is None:
        return None
    x, level, price = found
    prices = torch.from_numpy(price).clamp(min=0) / size
    weight = torch.zeros(1, len(outputs.offset), dtype=torch.float64)
    weight[0, rows] = prices[len(sign) :]
    beta = prices[None, : len(sign)]
    at = multipliers(problem, node.split, torch.zeros_like(beta), beta, DualObjective.of(problem, weight))
    return LeafSolution(torch.from_numpy(x)[None], at, beta, weight, level > TOLERANCE)


def _affine(problem: Reduced, split: Tensor) -> tuple[AffineMaps, AffineMaps]:
    """Return units and rows as affine functions of the input alone; `split` `[units]` holds every unit."""
    direct, offset = problem.units.direct.clone(), problem.units.offset.clone()
    on = (split == ON).double()
    for layer in problem.layers[1:]:
        before = slice(0, layer.start)
        through = problem.units.through[layer, before] * on[before]
        direct[layer] += through @ direct[before]
        offset[layer] += through @ offset[before]
    kept = problem.rows.through * on
    units = problem.units._replace(direct=direct, offset=offset)
    rows = problem.rows._replace(direct=problem.rows.direct + kept @ direct, offset=problem.rows.offset + kept @ offset)
    return units, rows


def _solve_linear(
    problem: Reduced, upper: np.ndarray, limit: np.ndarray
) -> tuple[np.ndarray, float, np.ndarray] | None:
    """Solve `min t` with `upper x - t <= limit` over the region; return x, t and the rows' multipliers, or None."""
    from scipy.optimize import linprog  # imported here, so that only those who get to a leaf wait for it

    region = problem.region
    count, inputs = upper.shape
    ends = [end.flatten().numpy() for end in region.box]
    bounds = [*zip(*ends, strict=True), (None, None)]
    cost = np.r_[np.zeros(inputs), 1.0]
    matrix, right = np.c_[upper, -np.ones(count)], limit
    for _ in range(1 if math.isinf(region.norm) else CUTS):
        found = linprog(cost, A_ub=matrix, b_ub=right, bounds=bounds, method="highs")
        if found.status != 0 or found.x is None:
            return None
        point, level = found.x[:-1], float(found.x[-1])
        cut = tangent(problem, torch.from_numpy(point))
        if cut is None:
            break
        matrix, right = np.vstack([matrix, np.r_[cut[0], 0.0]]), np.append(right, cut[1])
    return point, level, -found.ineqlin.marginals[:count]


def tangent(problem: Reduced, x: Tensor) -> tuple[np.ndarray, float] | None:
    """Return g and b of a half-space `g . z <= b` that holds the ball but not x; None if x is in the ball."""
    region = problem.region
    centre, norm, eps = region.x.flatten(), region.norm, float(region.eps)
    delta = x - centre
    size = float(power_norm(delta.abs(), norm))
    if math.isinf(norm) or size <= eps * (1 + TOLERANCE):
        return None
    # The gradient of the norm has dual norm 1.
    slope = delta.sign() if norm == 1 else delta.sign() * (delta.abs() / size) ** (norm - 1)
    return slope.numpy(), eps + float(slope @ centre)


@dataclass(frozen=True, eq=False)
class MixedIntegerProgram:
    """`min last v` with `matrix v <= limit`, `low <= v <= high`; columns are x, h, d (binary) and t."""

    matrix: np.ndarray
    limit: np.ndarray
    low: np.ndarray
    high: np.ndarray
    inputs: int
    binaries: int

    @property
    def binary(self) -> slice:
        """Return where the binary columns are."""
        return slice(len(self.low) - 1 - self.binaries, len(self.low) - 1)

    def with_row(self, slope: np.ndarray, limit: float) -> MixedIntegerProgram:
        """Return the program with one more row over x, `slope . x <= limit`."""
        row = np.zeros(self.matrix.shape[1])
        row[: self.inputs] = slope
        matrix, limits = np.vstack([self.matrix, row]), np.append(self.limit, limit)
        return MixedIntegerProgram(matrix, limits, self.low, self.high, self.inputs, self.binaries)


class SolverAnswer(NamedTuple):
    """What a solver says: a point `[inputs]` that satisfies all rows, or that there is none (`empty`), or neither."""

    point: np.ndarray | None
    empty: bool


Solver = Callable[[MixedIntegerProgram, Reduced, float], SolverAnswer]


def mixed_integer_program(problem: Reduced, clause: int) -> MixedIntegerProgram:
    """Return the mixed-integer program of one clause, as written at the top of this file."""
    direct, through, offset = (part.numpy() for part in problem.units[:3])
    rows = problem.members[clause].numpy()
    lower, upper = problem.lower.numpy(), problem.upper.numpy()
    units = problem.count
    eye, none, nothing = np.eye(units), np.zeros((units, units)), np.zeros((units, 1))
    outputs = [part.numpy()[rows] for part in problem.rows[:3]]
    matrix = np.block(
        [
            [direct, through - eye, none, nothing],
            [-direct, eye - through, np.diag(-lower), nothing],
            [np.zeros_like(direct), eye, np.diag(-upper), nothing],
            [outputs[0], outputs[1], np.zeros((len(outputs[2]), units)), -np.ones((len(outputs[2]), 1))],
        ]
    )
    limit = np.concatenate([-offset, offset - lower, np.zeros(units), -outputs[2]])
    ends = [end.flatten().numpy() for end in problem.region.box]
    low = np.concatenate([ends[0], np.zeros(2 * units), [-np.inf]])
    high = np.concatenate([ends[1], upper, np.ones(units), [0.0]])
    return MixedIntegerProgram(matrix, limit, low, high, len(ends[0]), units)


def by_highs(mip: MixedIntegerProgram, problem: Reduced, seconds: float) -> SolverAnswer:
    """Return the answer of HiGHS, which knows no balls: its point may lie outside."""
    solver = highspy.Highs()
    options = {"output_flag": False, "threads": 1, "time_limit": max(seconds, 0.01), "objective_target": CLEARLY}
    for name, value in options.items():
        solver.setOptionValue(name, value)
    solver.passModel(_highs_model(mip))
    solver.run()
    status, known = solver.getModelStatus(), highspy.HighsModelStatus
    if status == known.kInfeasible:
        return SolverAnswer(None, True)
    if solver.getInfo().primal_solution_status != 2:  # not a feasible point
        return SolverAnswer(None, False)
    return SolverAnswer(np.array(solver.getSolution().col_value[: mip.inputs]), False)


def _highs_model(mip: MixedIntegerProgram) -> Any:
    """Return the program as a model of HiGHS."""
    model = highspy.HighsLp()
    rows, columns = mip.matrix.shape
    model.num_row_, model.num_col_ = rows, columns
    model.col_cost_ = np.r_[np.zeros(columns - 1), 1.0]
    model.col_lower_, model.col_upper_ = mip.low, mip.high
    model.row_lower_, model.row_upper_ = np.full(rows, -np.inf), mip.limit
    row, column = mip.matrix.nonzero()
    model.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    model.a_matrix_.start_ = np.searchsorted(row, np.arange(rows + 1))
    model.a_matrix_.index_, model.a_matrix_.value_ = column, mip.matrix[row, column]
    kinds = [highspy.HighsVarType.kContinuous] * columns
    kinds[mip.binary] = [highspy.HighsVarType.kInteger] * mip.binaries
    model.integrality_ = kinds
    return model


def by_scip(mip: MixedIntegerProgram, problem: Reduced, seconds: float) -> SolverAnswer:
    """Return the answer of SCIP, which takes a Euclidean ball as it is."""
    try:
        scip = importlib.import_module("pyscipopt")
    except ImportError:
        raise PolycertError("solver 'scip' needs pyscipopt: pip install polycert[scip], or use 'highs'") from None
    model = scip.Model()
    model.hideOutput()
    model.setParams({"limits/time": max(seconds, 0.01), "limits/primal": CLEARLY, "parallel/maxnthreads": 1})
    kinds = ["C"] * len(mip.low)
    kinds[mip.binary] = ["B"] * mip.binaries
    columns = zip(mip.low.tolist(), mip.high.tolist(), kinds, strict=True)
    names = [model.addVar(lb=None if math.isinf(low) else low, ub=high, vtype=kind) for low, high, kind in columns]
    model.setObjective(names[-1])
    for row, limit in zip(mip.matrix, mip.limit.tolist(), strict=True):
        used = row.nonzero()[0].tolist()
        model.addCons(scip.quicksum(float(row[k]) * names[k] for k in used) <= limit)
    if problem.region.norm == 2:
        centre, eps = problem.region.x.flatten().tolist(), float(problem.region.eps)
        moved = zip(names[: mip.inputs], centre, strict=True)
        model.addCons(scip.quicksum((name - x) * (name - x) for name, x in moved) <= eps * eps)
    model.optimize()
    if model.getStatus() == "infeasible":
        return SolverAnswer(None, True)
    if model.getNSols() == 0:
        return SolverAnswer(None, False)
    return SolverAnswer(np.array([model.getVal(name) for name in names[: mip.inputs]]), False)


SOLVERS: dict[str, Solver] = {"highs": by_highs, "scip": by_scip}


def get_solver(name: str) -> Solver:
    """Return the solver of a name; an unknown name is an error."""
    if name not in SOLVERS:
        raise PolycertError(f"unknown solver {name!r}: choose one of {', '.join(SOLVERS)}")
    return SOLVERS[name]


def solve_clauses(
    problem: Reduced, clauses: Tensor, replay: CounterexampleCheck, budget: Budget, solver: Solver
) -> SearchResult:
    """Solve a program for one open clause after another, until one fails or the solver finds nothing.

    Returns:
        `falsified` with the counterexample, or `unknown`; the proof `solver` says that the solver believes all clauses.
    """
    for done, clause in enumerate(clauses.tolist()):
        share = Budget(budget.left / (len(clauses) - done))
        counterexample, empty = _solve_clause(problem, clause, replay, share, solver)
        if counterexample is not None:
            return SearchResult(FALSIFIED, "milp", counterexample)
        if not empty:
            return SearchResult(UNKNOWN, "milp")
    return SearchResult(UNKNOWN, "milp", proof=SOLVER)


def _solve_clause(
    problem: Reduced, clause: int, replay: CounterexampleCheck, budget: Budget, solver: Solver
) -> tuple[Counterexample | None, bool]:
    """Return a counterexample, or whether the solver says that there is none.

    Where the solver's point is outside of the ball, a tangent plane cuts it off and the program is solved again.
    """
    mip = mixed_integer_program(problem, clause)
    if not np.isfinite(mip.matrix).all() or not np.isfinite(mip.limit).all():
        return None, False
    doubtful: Counterexample | None = None
    for _ in range(CUTS):
        found = solver(mip, problem, budget.left)
        if found.point is None:
            return doubtful, found.empty and doubtful is None
        counterexample = replay(torch.from_numpy(found.point)[None])
        if counterexample is not None and counterexample.agreed:
            return counterexample, False
        doubtful = doubtful or counterexample
        cut = tangent(problem, torch.from_numpy(found.point))
        if cut is None or budget.over:
            break
        mip = mip.with_row(*cut)
    return doubtful, False
