"""The training methods of the paper's tables by name: which keys of a recipe each one takes, and its loss."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from torch import nn

from polycert.losses import AT, IBP, KW, L1, MMR, MTLIBP, MTLKW, PER, CrownIBP, Plain, Stability, Sum

Values = Mapping[str, Any]


class TrainingMethod(NamedTuple):
    """The keys that a method needs, those it may take, and the loss for their values."""

    needs: tuple[str, ...]
    takes: tuple[str, ...]
    make: Callable[[Values], nn.Module]
    piecewise_linear: bool = False


def _loss(kind: type[nn.Module], **fixed: Any) -> Callable[[Values], nn.Module]:
    return lambda values: kind(**values, **fixed)


_PER = ("alpha", "gamma"), ("terms", "subsample")
_MMR = (
    ("weight", "gamma_boundary", "gamma_decision", "boundary_share"),
    ("decisions", "subsample"),
)
ATTACK_KEYS = ("attack_steps", "attack_step")

METHODS: dict[str, TrainingMethod] = {
    "plain": TrainingMethod((), (), _loss(Plain)),
    "at": TrainingMethod((), ATTACK_KEYS, _loss(AT)),
    "kw": TrainingMethod((), ("subsample",), _loss(KW)),
    "ibp": TrainingMethod(("kappa",), ("subsample",), _loss(IBP)),
    "c-ibp": TrainingMethod(("kappa", "beta"), ("subsample",), _loss(CrownIBP)),
    "mmr": TrainingMethod(_MMR[0], _MMR[1], _loss(MMR), piecewise_linear=True),
    "mmr+at": TrainingMethod(_MMR[0], _MMR[1] + ATTACK_KEYS, _loss(MMR, at=True), piecewise_linear=True),
    "c-per": TrainingMethod(_PER[0], _PER[1], _loss(PER)),
    "c-per+at": TrainingMethod(_PER[0], _PER[1] + ATTACK_KEYS, _loss(PER, at=True)),
    "i-per": TrainingMethod(_PER[0], _PER[1], _loss(PER, method="forward")),
    "i-per+at": TrainingMethod(_PER[0], _PER[1] + ATTACK_KEYS, _loss(PER, method="forward", at=True)),
    "mtl-ibp": TrainingMethod(("mix",), ("subsample", *ATTACK_KEYS), _loss(MTLIBP)),
    "mtl-kw": TrainingMethod(("mix",), ("subsample", *ATTACK_KEYS), _loss(MTLKW)),
}
OWN_KEYS = sorted({key for method in METHODS.values() for key in method.needs + method.takes})


def make_loss(name: str, values: Values, extras: Values) -> nn.Module:
    """The loss of a method for the values of its keys, with what is added to it."""
    method = METHODS[name]
    known = {key: values[key] for key in method.needs + method.takes if values.get(key) is not None}
    loss = method.make(known)
    added: list[nn.Module] = []
    if extras.get("l1"):
        added.append(L1(extras["l1"]))
    if extras.get("stability"):
        added.append(Stability(extras["stability"], subsample=known.get("subsample")))
    return Sum(loss, *added) if added else loss
