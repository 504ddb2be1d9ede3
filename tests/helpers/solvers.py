"""Independent answers to the questions the library asks: linear programs, bisection, enumeration, exact fractions."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from fractions import Fraction

import mpmath
import numpy as np
from scipy.optimize import linprog, minimize
from torch import nn

Vector = np.ndarray | Sequence[float]


def lp_drop(weight: Vector, cap: Vector, eps: float, norm: float) -> float:
    """max weight . m over ||m|| <= eps, 0 <= m <= cap, for norm 1 or inf."""
    size = len(weight)
    top = np.minimum(cap, eps)
    limit = {} if math.isinf(norm) else {"A_ub": np.ones((1, size)), "b_ub": [eps]}
    found = linprog(-np.asarray(weight), bounds=[(0, t) for t in top], **limit)
    assert found.status == 0
    return float(-found.fun)


def lp_norm(weight: Vector, cap: Vector, drop: float, norm: float) -> float:
    """min ||m|| over weight . m >= drop, 0 <= m <= cap, for norm 1 or inf; inf if there is none."""
    weight = np.asarray(weight)
    room = [(0, None if math.isinf(c) else c) for c in cap]
    if norm == 1:
        found = linprog(np.ones(len(weight)), A_ub=[-weight], b_ub=[-drop], bounds=room)
    else:  # one more variable: the largest entry
        below = np.hstack([np.eye(len(weight)), -np.ones((len(weight), 1))])
        rows = np.vstack([below, [*-weight, 0.0]])
        cost = [*np.zeros(len(weight)), 1.0]
        found = linprog(cost, A_ub=rows, b_ub=[*np.zeros(len(weight)), -drop], bounds=[*room, (0, None)])
    return float(found.fun) if found.status == 0 else math.inf


def _along(weight: Vector, cap: Vector, norm: float) -> Callable[[float], np.ndarray]:
    """The optimum for a multiplier e^k: where weight_i = e^-k m_i^(p-1), or at the cap."""
    weight, cap = np.asarray(weight, dtype=float), np.asarray(cap, dtype=float)

    def at(k: float) -> np.ndarray:
        with np.errstate(divide="ignore", over="ignore"):
            return np.where(weight > 0, np.minimum(cap, np.exp((np.log(weight) + k) / (norm - 1))), 0.0)

    return at


def _bisect(reaches: Callable[[float], bool]) -> float:
    low, high = -2000.0, 2000.0
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (low, middle) if reaches(middle) else (middle, high)
    return low


def bisected_drop(weight: Vector, cap: Vector, eps: float, norm: float) -> float:
    """As `lp_drop`, for 1 < norm < inf, by bisection on the multiplier."""
    at = _along(weight, cap, norm)
    m = at(_bisect(lambda k: size(at(k), norm) >= eps))
    return float(np.dot(weight, m))


def bisected_norm(weight: Vector, cap: Vector, drop: float, norm: float) -> float:
    """As `lp_norm`, for 1 < norm < inf."""
    weight, cap = np.asarray(weight), np.asarray(cap)
    if drop <= 0:
        return 0.0
    if np.where(weight > 0, weight * np.where(weight > 0, cap, 0), 0).sum() < drop:
        return math.inf
    at = _along(weight, cap, norm)
    return size(at(_bisect(lambda k: float(weight @ at(k)) >= drop)), norm)


def size(values: np.ndarray, norm: float) -> float:
    """||values||, scaled so that powers do not leave the range."""
    top = float(np.max(np.abs(values), initial=0.0))
    if top == 0 or math.isinf(norm) or math.isinf(top):
        return top
    return top * float((np.abs(values / top) ** norm).sum() ** (1 / norm))


def drop_of(weight: Vector, cap: Vector, eps: float, norm: float) -> float:
    """The largest drop by whichever solver fits the norm."""
    solve = lp_drop if norm in (1, math.inf) else bisected_drop
    return solve(weight, cap, eps, norm)


def norm_of(weight: Vector, cap: Vector, drop: float, norm: float) -> float:
    """The least norm by whichever solver fits the norm."""
    if drop <= 0:
        return 0.0
    solve = lp_norm if norm in (1, math.inf) else bisected_norm
    return solve(weight, cap, drop, norm)


def slsqp_norm(weight: Vector, cap: Vector, drop: float, norm: float) -> float:
    """The least norm by a general-purpose solver that knows nothing of the structure."""
    weight = np.asarray(weight)
    start = np.minimum(cap, 10.0) * 0.9 + 1e-3
    found = minimize(
        lambda m: float((np.abs(m) ** norm).sum()),
        start,
        bounds=[(0, None if math.isinf(c) else c) for c in cap],
        constraints={"type": "ineq", "fun": lambda m: float(weight @ m) - drop},
        method="SLSQP",
        options={"ftol": 1e-14, "maxiter": 500},
    )
    return size(np.abs(found.x), norm)


def exact_drop(weight: Vector, cap: Vector, eps: float, norm: float) -> mpmath.mpf:
    """`bisected_drop` in 50 digits, rounded down by less than 1e-40: the true value of the stored numbers."""
    with mpmath.workdps(60):
        w, c = [mpmath.mpf(float(a)) for a in weight], [mpmath.mpf(float(a)) for a in cap]
        e, p = mpmath.mpf(float(eps)), mpmath.mpf(norm)

        def at(k: mpmath.mpf) -> list[mpmath.mpf]:
            free = [(a * mpmath.exp(k)) ** (1 / (p - 1)) if a > 0 else mpmath.mpf(0) for a in w]
            return [min(b, m) for b, m in zip(c, free, strict=True)]

        low, high = mpmath.mpf(-3000), mpmath.mpf(3000)
        for _ in range(170):
            middle = (low + high) / 2
            inside = sum(m**p for m in at(middle)) < e**p
            low, high = (middle, high) if inside else (low, middle)
        return mpmath.fsum(a * m for a, m in zip(w, at(low), strict=True))


def exact_values(module: nn.Sequential, x: Sequence[Fraction]) -> list[Fraction]:
    """The output of a stack of linear and ReLU layers in rational arithmetic."""
    values = list(x)
    for layer in module:
        if isinstance(layer, nn.ReLU):
            values = [max(v, Fraction(0)) for v in values]
        else:
            rows, offsets = layer.weight.tolist(), layer.bias.tolist()
            values = [
                Fraction(b) + sum(Fraction(w) * v for w, v in zip(row, values, strict=True))
                for row, b in zip(rows, offsets, strict=True)
            ]
    return values


class Piecewise:
    """A tiny ReLU net as its linear pieces, for exact margins and radii by one linear program a piece."""

    def __init__(self, module: nn.Sequential) -> None:
        layers = [layer for layer in module if isinstance(layer, nn.Linear)]
        self.layers = [(m.weight.detach().double().numpy(), m.bias.detach().double().numpy()) for m in layers]

    def pieces(self, label: int, other: int) -> list[tuple[np.ndarray, np.ndarray, np.ndarray, float]]:
        """For every pattern: rows A x <= b where it holds, and the margin c . x + d there."""
        sizes = [len(bias) for _, bias in self.layers[:-1]]
        found = []
        for pattern in itertools.product((0, 1), repeat=sum(sizes)):
            slope, offset = np.eye(self.layers[0][0].shape[1]), np.zeros(self.layers[0][0].shape[1])
            rows, limits, used = [], [], 0
            for weight, bias in self.layers[:-1]:
                slope, offset = weight @ slope, weight @ offset + bias
                on = np.array(pattern[used : used + len(bias)])
                used += len(bias)
                sign = np.where(on == 1, -1.0, 1.0)
                rows.append(sign[:, None] * slope)
                limits.append(-sign * offset)
                slope, offset = on[:, None] * slope, on * offset
            weight, bias = self.layers[-1]
            row = weight[label] - weight[other]
            margin, constant = row @ slope, float(row @ offset + bias[label] - bias[other])
            found.append((np.vstack(rows), np.concatenate(limits), margin, constant))
        return found

    def margin(self, x: np.ndarray, label: int, others: Sequence[int], norm: float, eps: float, box: tuple) -> float:
        """The least margin over the ball and the box."""
        best = math.inf
        for other in others:
            for rows, limits, cost, constant in self.pieces(label, other):
                rows_, limits_, bounds = _ball_rows(x, norm, eps, box, rows, limits)
                found = linprog([*cost, *np.zeros(rows_.shape[1] - len(x))], A_ub=rows_, b_ub=limits_, bounds=bounds)
                if found.status == 0:
                    best = min(best, float(found.fun) + constant)
        return best

    def radius(self, x: np.ndarray, label: int, others: Sequence[int], norm: float, box: tuple) -> float:
        """The least distance to a point of the box whose margin is not positive."""
        best = math.inf
        for other in others:
            for rows, limits, cost, constant in self.pieces(label, other):
                rows, limits = np.vstack([rows, cost]), np.append(limits, -constant)
                rows_, limits_, bounds = _ball_rows(x, norm, None, box, rows, limits)
                aim = np.zeros(rows_.shape[1])
                aim[len(x) :] = 1.0
                found = linprog(aim, A_ub=rows_, b_ub=limits_, bounds=bounds)
                if found.status == 0:
                    best = min(best, float(found.fun))
        return best


def _ball_rows(
    x: np.ndarray, norm: float, eps: float | None, box: tuple, rows: np.ndarray, limits: np.ndarray
) -> tuple[np.ndarray, np.ndarray, list]:
    """Rows over (x', sizes): one size for the maximum norm, one a coordinate for norm 1; |x' - x| <= sizes."""
    n, extra = len(x), 1 if math.isinf(norm) else len(x)
    spread = np.ones((n, 1)) if math.isinf(norm) else np.eye(n)
    above, below = np.hstack([np.eye(n), -spread]), np.hstack([-np.eye(n), -spread])
    all_rows = [np.hstack([rows, np.zeros((len(rows), extra))]), above, below]
    all_limits = [limits, x, -x]
    if eps is not None:
        all_rows.append(np.hstack([np.zeros((1, n)), np.ones((1, extra))]))
        all_limits.append(np.array([eps]))
    return np.vstack(all_rows), np.concatenate(all_limits), [*[box] * n, *[(0, None)] * extra]
