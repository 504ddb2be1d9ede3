"""Looking for a witness: gradient descent on what keeps an output out of a clause, replayed by onnxruntime."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from polycert.bounding.methods import error_model
from polycert.graph import Graph
from polycert.graph.onnx import OnnxNetwork
from polycert.runtime.execution import plain_products
from polycert.sets.interval import round_down, round_up
from polycert.verification.input_split import Boxes, InputSplitting, Rows
from polycert.verification.vnnlib.property import Box, Clause


class PropertyCounterexample(NamedTuple):
    """An input in the box and the output that onnxruntime gives for it."""

    x: np.ndarray  # [inputs] float64
    y: np.ndarray  # [outputs] float64


def confirmed(network: OnnxNetwork, box: Box, points: Tensor) -> PropertyCounterexample | None:
    """The first of some points `[n, *shape]` that is a witness when onnxruntime replays it.

    Points are moved to numbers of the file's input type inside the box. Where a side holds none, such as one that is a
    single decimal, the nearest number is taken, and the real-valued network must fulfil the clause on that side too.
    """
    kind = torch.float64 if network.replay.program.input_type is np.float64 else torch.float32
    first, last = (torch.from_numpy(end) for end in box.inner)
    low, high = round_up(first, kind).double(), round_down(last, kind).double()
    held = (low <= high) & ~torch.from_numpy(box.narrow)
    for point in points:
        near = point.detach().cpu().double().flatten().to(kind).double()
        x = torch.where(held, near.clamp(low, high), near.clamp(first, last)).numpy()
        y = network.replay(torch.from_numpy(x).reshape(1, *point.shape))[0].numpy()
        if box.holds(x, y) and (bool(held.all()) or _really(network, box, np.where(held, x, np.nan))):
            return PropertyCounterexample(x, y)
    return None


def _really(network: OnnxNetwork, box: Box, x: np.ndarray) -> bool:
    """Whether the real-valued network fulfils a clause wherever the inputs that are NaN lie on their sides."""
    graph = network.bind(torch.float64)
    if graph.computed:
        return False
    ends = (np.where(np.isnan(x), side, x).reshape(1, *graph.input_shape) for side in (box.lower, box.upper))
    boxes = Boxes(*map(torch.from_numpy, ends))
    for clause in box.clauses:
        constants = torch.from_numpy(np.nextafter(clause.constants, math.inf))
        rows = Rows(-torch.from_numpy(clause.rows).reshape(-1, *graph.output_shape), -constants)
        with torch.no_grad(), plain_products(graph.device):
            found = InputSplitting(graph, rows, error_model(graph), []).bound(boxes)
        if bool((found.value > 0).all()):
            return True
    return False


class ClauseTensors(NamedTuple):
    """Clauses as tensors, padded to one number of rows."""

    rows: Tensor  # [clauses, k, outputs]
    constants: Tensor  # [clauses, k]; -inf where there is no row

    @staticmethod
    def of(clauses: Sequence[Clause], graph: Graph) -> ClauseTensors:
        """From arrays, in the graph's type."""
        most = max(len(clause.rows) for clause in clauses)
        like = torch.empty(0, dtype=graph.dtype, device=graph.device)
        rows = like.new_zeros(len(clauses), most, clauses[0].rows.shape[1])
        constants = like.new_full((len(clauses), most), -math.inf)
        for k, clause in enumerate(clauses):
            rows[k, : len(clause.rows)] = torch.from_numpy(clause.rows).to(rows)
            constants[k, : len(clause.rows)] = torch.from_numpy(clause.constants).to(rows)
        return ClauseTensors(rows, constants)

    def excess(self, outputs: Tensor) -> Tensor:
        """How far each of `[clauses, tries, outputs]` is from its clause: the largest row; <= 0 is inside."""
        return (outputs @ self.rows.transpose(1, 2) + self.constants[:, None]).amax(2)


def descend(
    graph: Graph,
    box: Box,
    clauses: Sequence[Clause],
    *,
    tries: int,
    pool: int,
    steps: int,
    generator: torch.Generator,
    deadline: float,
) -> Tensor:
    """The best point found for each try, the most promising first: `[clauses * tries, *input_shape]`.

    Tries start at the best of a `pool` of random points. Steps go along the sign of the gradient, or along its size in
    every other try, and shrink as a cosine.
    """
    asked = ClauseTensors.of(clauses, graph)
    lower, upper = (torch.from_numpy(side).to(graph.device, graph.dtype) for side in box.inner)
    points = _starts(graph, asked, lower, upper, tries, pool, generator)
    count = len(points)
    by_sign = (torch.arange(count, device=lower.device)[:, None] % 2 == 0).to(lower)
    best, least = points.clone(), torch.full((count,), math.inf, device=lower.device, dtype=lower.dtype)
    for step in range(steps + 1):
        points.requires_grad_(True)
        with torch.enable_grad():
            outputs = graph.forward(points.reshape(-1, *graph.input_shape)).flatten(1)
            excess = asked.excess(outputs.unflatten(0, (len(clauses), tries))).flatten()
            (slope,) = torch.autograd.grad(excess.sum(), points)
        with torch.no_grad():
            better = excess < least
            best, least = torch.where(better[:, None], points, best), torch.where(better, excess, least)
            if bool((least <= 0).any()) or step == steps or time.monotonic() > deadline:
                break
            size = 0.5 * (upper - lower) * (0.5 * (1 + math.cos(math.pi * step / steps)) + 0.002)
            scaled = slope / slope.abs().amax(1, keepdim=True).clamp(min=1e-30)
            move = by_sign * slope.sign() + (1 - by_sign) * scaled
            points = torch.minimum(torch.maximum(points - size * move, lower), upper).detach()
    return best[least.argsort()].detach().reshape(-1, *graph.input_shape)


def _starts(
    graph: Graph, asked: ClauseTensors, lower: Tensor, upper: Tensor, tries: int, pool: int, generator: torch.Generator
) -> Tensor:
    """`[clauses * tries, inputs]`: for each clause the middle of the box and the best random points and corners."""
    noise = torch.rand(max(pool, tries), len(lower), generator=generator, dtype=torch.float64).to(lower)
    corners = torch.arange(len(noise), device=lower.device)[:, None] % 4 == 1
    points = lower + torch.where(corners, noise.round(), noise) * (upper - lower)
    points[0] = (lower + upper) / 2
    if pool <= tries:
        return points[:tries].repeat(len(asked.rows), 1)
    with torch.no_grad():
        outputs = graph.forward(points.reshape(-1, *graph.input_shape)).flatten(1)
        excess = asked.excess(outputs.expand(len(asked.rows), -1, -1))
    return points[excess.topk(tries, dim=1, largest=False).indices.flatten()]
