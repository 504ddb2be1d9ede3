"""Branch and bound on the sides of unstable units, many nodes at a time.

The unit to branch on is chosen in two steps (a filtered BaBSR). First, the candidates of every layer are the units that
take most from the bound at the node's worst input. These gaps add up to the difference between the bound and the
network's true value there. They are means over the steps of the ascent, because the worst input jumps between corners.
Second, both halves are bounded for each candidate, and the search takes the candidate whose lower half gains most.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from polycert.verification.beta_crown import (
    OFF,
    ON,
    Ascent,
    DualObjective,
    Multipliers,
    Nodes,
    ascend,
    multipliers,
    proved_bound,
    value,
)
from polycert.verification.budget import Budget
from polycert.verification.counterexample import Counterexample, CounterexampleCheck
from polycert.verification.programs import LeafSolution, solve_leaf
from polycert.verification.rational import Undecided
from polycert.verification.rational_leaf import ExactLeaf
from polycert.verification.reduced_problem import Reduced
from polycert.verification.specification import worst_clause
from polycert.verification.verdicts import FALSIFIED, RIGOROUS, ROBUST, SOLVER, UNKNOWN, SearchResult

ROOT_STEPS = 24  # of the ascent at the roots
STEPS = 8  # of the ascent at each half; deeper networks take twice as many
BATCH = 64  # nodes that are split together
CANDIDATES = 8  # units of each layer that are tried
# A point below this margin in the search's type is worth a forward pass.
NEAR_FAILURE = 1e-4


@dataclass(eq=False)
class BranchAndBound:
    """The search of one reduced problem, and what it has found so far."""

    problem: Reduced
    replay: CounterexampleCheck
    budget: Budget
    seconds: float  # the part of the budget's time that this search may take
    counterexample: Counterexample | None = None
    doubtful: Counterexample | None = None  # a counterexample in float64, but not in the network's own type
    # Clauses with a leaf that is too close for a proof. For `believed` the solver says that nothing fails in the leaf;
    # for `stuck` it cannot tell, or the time was up.
    believed: set[int] = field(default_factory=set)
    stuck: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.fast = self.problem.to(torch.float32)
        self.open_clauses = torch.arange(len(self.problem.members))

    def run(self, nodes: float = math.inf) -> SearchResult:
        """Optimise slopes at the roots, then branch until no node is open, or until the time or `nodes` are spent."""
        opening = self.bound(Nodes.roots(self.fast), 1)
        open_ = self.bound(opening.nodes, ROOT_STEPS) if len(opening.nodes) else opening
        if self.counterexample is not None or not len(open_.nodes):
            self.open_clauses = self.open_clauses[:0]
            return self._result("slopes")
        most = self.budget.nodes + nodes
        while len(open_.nodes) and self.counterexample is None and self.budget.nodes < most and self._in_time:
            open_ = self._branch(open_)
        open_clauses = self.believed.union(self.stuck, open_.nodes.clause.tolist())
        self.open_clauses = torch.tensor(sorted(open_clauses), dtype=torch.long)
        return self._result("branch")

    @property
    def _in_time(self) -> bool:
        """Whether this search still has time."""
        return self.budget.spent < self.seconds

    def _result(self, stage: str) -> SearchResult:
        """Return how the search ended: `robust` only if no clause is open."""
        left = set(self.open_clauses.tolist())
        found = self.counterexample or (self.doubtful if left else None)
        if found is not None:
            return SearchResult(FALSIFIED, stage, found)
        if not left:
            return SearchResult(ROBUST, stage, proof=RIGOROUS)
        return SearchResult(UNKNOWN, stage, proof=SOLVER if left <= self.believed - self.stuck else None)

    def bound(self, nodes: Nodes, steps: int) -> Ascent:
        """Bound nodes, replay their worst inputs, and return the nodes that are not proved."""
        found = ascend(self.fast, nodes, steps=steps, goal=0.0)
        self.budget.evaluations += steps * len(nodes)
        self._try(found.inputs)
        left = ~self._proved(found.nodes)
        return Ascent(found.nodes[left], found.inputs[left], found.gaps[left])

    def _proved(self, nodes: Nodes) -> Tensor:
        """Return which nodes are proved, `[nodes]`: candidates by the fast bound, confirmed with rounding covered."""
        likely = nodes.bound > 0
        some = nodes[likely]
        if len(some):
            alpha, beta, weight = some.alpha.double(), some.beta.double(), some.weight.double()
            at = multipliers(self.problem, some.split, alpha, beta, DualObjective.of(self.problem, weight))
            likely[likely.clone()] = self._closed(some.split, at, weight)
        return likely

    def _closed(self, split: Tensor, at: Multipliers, weight: Tensor) -> Tensor:
        """Return which nodes the proved bound with these multipliers closes, `[nodes]`."""
        self.budget.evaluations += len(split)
        return proved_bound(self.problem, split, at.nu, weight) > 0

    def _try(self, inputs: Tensor) -> None:
        """Replay the worst of some inputs `[n, inputs]`, if its margin is small enough in the search's type."""
        margins = worst_clause(self.fast.values(inputs)[1], self.problem.members)
        k = int(margins.argmin())
        if float(margins[k]) <= NEAR_FAILURE:
            self._keep(self.replay(inputs[k : k + 1]))

    def _keep(self, found: Counterexample | None) -> None:
        """Keep a counterexample, apart if only float64 shows it."""
        if found is not None and found.agreed:
            self.counterexample = found
        elif found is not None:
            self.doubtful = found

    def _branch(self, open_: Ascent) -> Ascent:
        """Split the nodes with the lowest bounds, bound their halves, and return all nodes that are still open."""
        order = open_.nodes.bound.argsort(descending=self._crowded(open_.nodes))
        taken, rest = order[:BATCH], order[BATCH:]
        nodes, gaps = open_.nodes[taken], open_.gaps[taken]
        kept = Ascent(open_.nodes[rest], open_.inputs[rest], open_.gaps[rest])
        free = nodes.split == 0
        for k in (~free.any(1)).nonzero().flatten().tolist():
            self._leaf(nodes[k : k + 1])
        inner = free.any(1)
        if self.counterexample is not None or not bool(inner.any()):
            return kept
        self.budget.nodes += 2 * int(inner.sum())
        halves = self.bound(self._halves(nodes[inner], gaps[inner]), STEPS * min(len(self.fast.layers), 2))
        joined = [torch.cat(pair) for pair in zip(kept[1:], halves[1:], strict=True)]
        return Ascent(Nodes.join([kept.nodes, halves.nodes]), joined[0], joined[1])

    def _halves(self, nodes: Nodes, gaps: Tensor) -> Nodes:
        """Return both halves of each node by the best of its candidates, with the multipliers of the node."""
        score = torch.where(nodes.split == 0, gaps, -torch.inf)
        places = [
            layer.start + score[:, layer].topk(min(CANDIDATES, layer.stop - layer.start), 1).indices
            for layer in self.fast.layers
        ]
        unit = torch.cat(places, 1)
        count, trials = unit.shape
        tried = score_candidates(self.fast, nodes, unit)
        self.budget.evaluations += len(tried)
        # The bound of a half that is proved counts as 0: what it gains beyond that is worth nothing.
        gain = (tried.bound.reshape(2, count, trials) - nodes.bound[:, None]).clamp(min=0)
        low, high = gain.minimum(-nodes.bound[:, None]).sort(0).values
        worth = low + 0.1 * high + 1e-6 * score.gather(1, unit)
        taken = torch.arange(count) * trials + worth.argmax(1)
        return tried[torch.cat([taken, taken + count * trials])]

    def _crowded(self, nodes: Nodes) -> bool:
        """Whether memory is short: then the nodes that are nearest to a proof go first."""
        size = 4 * (2 * nodes.alpha.shape[1] + nodes.weight.shape[1]) + nodes.split.shape[1]
        return len(nodes) * (size + 4 * self.fast.units.direct.shape[1]) > self.budget.memory

    def _leaf(self, node: Nodes) -> None:
        """Decide a node without free units by a linear program; its clause stays open if the time is up."""
        if self.counterexample is not None or not self._in_time:
            self.stuck.add(int(node.clause))
            return
        leaf = solve_leaf(self.problem, node)
        self.budget.evaluations += 1
        if leaf is None:
            self.stuck.add(int(node.clause))
            return
        if bool(self._closed(node.split, leaf.multipliers, leaf.weight)):
            return
        self._keep(self.replay(leaf.inputs))
        if self.counterexample is None and not self._closed_exactly(node, leaf) and self.counterexample is None:
            # The leaf is too close to call: the solver's word is noted, but it proves nothing.
            (self.believed if leaf.safe else self.stuck).add(int(node.clause))

    def _closed_exactly(self, node: Nodes, leaf: LeafSolution) -> bool:
        """Whether exact arithmetic proves a leaf; a point of it that fails is a counterexample."""
        try:
            exact = ExactLeaf(self.problem, self.replay.net.exact, node, leaf)
            if exact.proved():
                return True
            vertex = exact.vertex()
        except Undecided:
            return False
        if vertex is not None:
            self._keep(self.replay.exactly(vertex))
        return False


BLOCK = 256  # halves that are bounded together: so few stay in the processor's cache


def score_candidates(problem: Reduced, nodes: Nodes, unit: Tensor) -> Nodes:
    """Return both halves of each node by each of its candidates `[nodes, trials]`, bounded: all upper ones first."""
    count, trials = unit.shape
    parent = torch.arange(count).repeat_interleave(trials).repeat(2)
    halves = halve(nodes[parent[: count * trials]], unit.flatten())
    objective = DualObjective.of(problem, nodes.weight)
    whole = multipliers(problem, nodes.split, nodes.alpha, nodes.beta, objective)
    slope = problem.direct.back(whole.nu) + objective.direct
    place = unit.flatten().repeat(2)
    first = place < problem.layers[0].stop
    bound = torch.empty_like(halves.bound)
    for part in _blocks(first):
        some, origin = halves[part], parent[part]
        own = DualObjective(*(one[origin] for one in objective))
        at = multipliers(problem, some.split, some.alpha, some.beta, own)
        if bool(first[part[0]]):
            found = _corrected(problem, slope[origin], whole.nu[origin], at, place[part])
        else:
            found = problem.direct.back(at.nu).add_(own.direct)
        bound[part] = value(problem, some.split, at, own, found)
    return replace(halves, bound=bound)


def _blocks(first: Tensor) -> list[Tensor]:
    """Return the positions of halves in blocks of one kind: split on a unit of the first layer, or on a later one."""
    kinds = (first.nonzero().flatten(), (~first).nonzero().flatten())
    return [block for kind in kinds if len(kind) for block in kind.split(BLOCK)]


def _corrected(problem: Reduced, slope: Tensor, before: Tensor, at: Multipliers, unit: Tensor) -> Tensor:
    """Return the slopes `[halves, inputs]` of halves whose multipliers differ from their node's at one unit each."""
    place = unit[:, None]
    moved = at.nu.gather(1, place) - before.gather(1, place)
    return slope.addcmul_(moved, problem.units.direct[unit])


def halve(nodes: Nodes, unit: Tensor) -> Nodes:
    """Return both halves of each node by one unit `[nodes]`: all upper ones first."""
    place = unit[:, None]
    sides = [nodes.split.scatter(1, place, side) for side in (ON, OFF)]
    return Nodes.join([replace(nodes, split=split) for split in sides])
