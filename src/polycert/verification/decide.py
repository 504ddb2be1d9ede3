"""One input decided: bounds, slopes, branch and bound, and at last a mixed-integer program."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from polycert.errors import PolycertError
from polycert.forms import Dense
from polycert.graph import Network
from polycert.sets.ball import Region
from polycert.verification.branch_and_bound import BranchAndBound
from polycert.verification.budget import Budget
from polycert.verification.counterexample import CounterexampleCheck
from polycert.verification.milp import get_solver, solve
from polycert.verification.pre_activation import KINDS, Intervals, relax, tighter
from polycert.verification.reduced_problem import piecewise_linear, reduce
from polycert.verification.snapshot import NetworkSnapshot
from polycert.verification.specification import Specification
from polycert.verification.tightening import refine
from polycert.verification.verdicts import FALSIFIED, RIGOROUS, ROBUST, UNKNOWN, SearchResult, Verdict

BRANCHING = 0.7  # share of the time; the rest is for a mixed-integer program
FIRST_NODES = 32  # after so many, deeper units are worth tighter bounds


def decide(
    net: Network,
    region: Region,
    spec: Specification,
    *,
    timeout: float,
    memory: int = 2**30,
    solver: str = "highs",
    trust_solver: bool = False,
) -> Verdict:
    """Decide whether every point of a set keeps a linear specification of the output.

    Args:
        net: any network the library takes; weights as they are now.
        region: the set around one sample: `Ball(...).at(x)` with x `[1, *shape]`, best in float64. A box with sides of
            its own for every feature is `Ball(inf, eps, low, high)` with arrays `low` and `high` and a large eps.
        spec: for every clause, at least one of its rows must be positive everywhere; `Specification.never` makes one
            from unsafe sets, `Specification.margins` from a label.
        timeout: seconds.
        memory: bytes that open nodes of the search may take.
        solver: of the mixed-integer program at the end: `highs` or `scip`.
        trust_solver: call robust what only a solver believes, up to its tolerances; `proof` then says `solver`.

    Returns:
        A decision: `robust` means that the specification holds at every point (a proof), `falsified` that the witness
        breaks it, checked by forward passes. What a solver alone believes is `unknown` with the proof `solver`.
        Networks with other than piecewise linear activations get what the bounds give, else `unknown`.

    Examples:
        >>> net = polycert.capture(torch.nn.Linear(2, 2), (2,))
        >>> region = polycert.Ball(eps=0.1).at(torch.zeros(1, 2, dtype=torch.float64))
        >>> decide(net, region, Specification.margins(0, 2), timeout=10).status in ("robust", "falsified")
        True
    """
    frozen, budget = NetworkSnapshot.of(net), Budget(timeout, memory)
    get_solver(solver)
    if len(region.x) != 1:
        raise PolycertError(f"decide takes the set around one sample, got {len(region.x)}: call it for each")
    if tuple(spec.rows.shape[1:]) != frozen.output_shape:
        raise PolycertError(
            f"the specification has rows of shape {tuple(spec.rows.shape[1:])}, "
            f"the network's output has {frozen.output_shape}"
        )
    region = region.to(torch.float64)
    net.check_inside(region)
    replay = CounterexampleCheck(frozen, region, spec)
    found = replay(region.x)
    if found is not None:
        return close(SearchResult(FALSIFIED, "clean", found), budget)
    intervals, settled = _relaxed(frozen, region, spec, budget)
    if bool(settled.all()):
        return close(SearchResult(ROBUST, "bounds", proof=RIGOROUS), budget)
    decision = decide_unproved(replay, intervals, spec.keep(~settled), budget, solver)
    return decision.trusting() if trust_solver else decision


def decide_unproved(
    replay: CounterexampleCheck, intervals: Intervals, spec: Specification, budget: Budget, solver: str = "highs"
) -> Verdict:
    """Search where bounds are not enough: `spec` holds the open clauses, `intervals` bound the hidden units."""
    if not piecewise_linear(replay.net.double):
        return close(SearchResult(UNKNOWN, "bounds"), budget)
    with torch.no_grad():
        problem = reduce(replay.net.double, replay.region, intervals, spec)
        search = BranchAndBound(problem, replay, budget, BRANCHING * budget.seconds)
        result = search.run(FIRST_NODES if len(problem.layers) > 1 else math.inf)
        if result.status == UNKNOWN and result.proof is None and len(problem.layers) > 1 and not budget.over:
            problem = refine(replace(problem, members=problem.members[search.open_clauses]), budget)
            search = BranchAndBound(problem, replay, budget, BRANCHING * budget.seconds)
            result = search.run()
        if result.status == UNKNOWN and result.proof is None and not budget.over:
            result = solve(problem, search.open_clauses, replay, budget, get_solver(solver))
        return close(result, budget)


def close(result: SearchResult, budget: Budget) -> Verdict:
    """With what was spent."""
    return Verdict(
        result.status,
        result.stage,
        result.witness,
        result.proof,
        budget.evaluations,
        budget.nodes,
        budget.spent,
    )


def _relaxed(net: NetworkSnapshot, region: Region, spec: Specification, budget: Budget) -> tuple[Intervals, Tensor]:
    """Bounds of the hidden units by all cheap methods together, and which clauses they prove: `[clauses]`."""
    graph = net.proving(region)
    own = region.to(graph.dtype)
    # Rows that the graph's type cannot hold are left to float64.
    rows = spec.rows.to(graph.dtype)
    exact = bool((rows.double() == spec.rows).all())
    form = Dense(rows.unsqueeze(0))
    intervals: Intervals | None = None
    settled = torch.zeros(spec.clauses, dtype=torch.bool)
    for method, relaxation in KINDS:
        found = relax(graph, own, form, method, relaxation)
        budget.evaluations += 1
        intervals = found.intervals if intervals is None else tighter(intervals, found.intervals)
        if exact:
            settled |= ((found.rows[0].double() > -spec.constants) & spec.members).any(1)
        if bool(settled.all()):
            break
    assert intervals is not None
    return intervals, settled
