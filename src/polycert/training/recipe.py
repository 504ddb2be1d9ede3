"""Recipes, which hold everything that determines a training run, and the training methods by name."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from torch import nn

from polycert import data
from polycert.errors import PolycertError
from polycert.losses import AT, IBP, KW, L1, MMR, MTLIBP, MTLKW, PER, CrownIBP, Plain, Stability, Sum
from polycert.models.architectures import ARCHITECTURES
from polycert.rules.registry import ACTIVATION_FAMILIES, layers
from polycert.sets.ball import Ball, Minimum, norm_text
from polycert.training.schedules import AnySchedule, Constant, Number, Schedule

Positive = Annotated[int, Field(ge=1)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
PIECEWISE_LINEAR = tuple(layers("piecewise linear"))
ACTIVATIONS = tuple(layers(*ACTIVATION_FAMILIES))


Values = Mapping[str, Any]


class TrainingMethod(NamedTuple):
    """A training method: the keys that it needs, those that it may take, and the loss for their values."""

    needs: tuple[str, ...]
    takes: tuple[str, ...]
    make: Callable[[Values], nn.Module]
    piecewise_linear: bool = False


def _loss(kind: type[nn.Module], **fixed: Any) -> Callable[[Values], nn.Module]:
    """Return a function that makes a loss from the values of a recipe's keys."""
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
    """Return the loss of a method for the values of its keys, plus the terms `l1` and `stability` of `extras`."""
    method = METHODS[name]
    known = {key: values[key] for key in method.needs + method.takes if values.get(key) is not None}
    loss = method.make(known)
    added: list[nn.Module] = []
    if extras.get("l1"):
        added.append(L1(extras["l1"]))
    if extras.get("stability"):
        added.append(Stability(extras["stability"], subsample=known.get("subsample")))
    return Sum(loss, *added) if added else loss


def _one_of(names: tuple[str, ...]) -> BeforeValidator:
    """Return a validator that accepts only these names."""

    def check(value: Any) -> Any:
        if value not in names:
            raise ValueError(f"must be one of {', '.join(names)}, got {value!r}")
        return value

    return BeforeValidator(check)


def _norm(value: Any) -> Any:
    """Return a norm as recipes write it; raises `ValueError` unless it is a number from 1, or infinity."""
    try:
        found = float(value)
    except (TypeError, ValueError):
        found = 0.0
    if not found >= 1:
        raise ValueError(f'must be "inf" or a number from 1, got {value!r}')
    return norm_text(found)


class Recipe(BaseModel):
    """A training run. Numbers marked "over time" may be schedules; times are in epochs.

    Attributes:
        dataset, architecture, activation: the samples and the network.
        method: a training method of `METHODS`; warm_up_method is used for the first `warm_up` epochs.
        norm, target: the ball that counts in validation; `eps`, over time, is the radius in training.
        minimum: how hidden layers are bounded for norms below inf, as in `Ball`.
        epochs, batch, seed: length, samples per step, and the seed of everything random.
        validation: samples of the training set held out; certified: how many of them are certified each epoch.
        lr: learning rate of Adam over time; lr_warm_up: epochs of a linear start.
        clip: largest norm of the whole gradient; weight_decay: weight decay of Adam.
        average: decay of an exponential average of the weights, from epoch `average_from` on; the average is saved.
        augment: "flip-crop" for random flips and shifts by up to 4 pixels, "flip-shift" for flips and shifts by up
            to 1, "shift" for those shifts alone; shift: another largest number of pixels of a shift.
        start: a model of the zoo, or a file, whose weights the run begins with; without one, the seed draws them.
        revive: if given, idle units of the start become copies of living ones; the number says how unevenly the two
            share the weights that lead out of them.
        select: save the last epoch's model, or the one with the best certified error in validation since eps
            reached the target.
        l1, stability: weights of terms added to the loss.
        alpha, gamma, kappa, beta, mix, boundary_share, subsample: over time; with terms, weight, gamma_boundary,
            gamma_decision, decisions, attack_steps, attack_step: see the losses.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    about: str = ""
    dataset: Annotated[str, _one_of(data.NAMES)]
    architecture: Annotated[str, _one_of(tuple(ARCHITECTURES))]
    activation: Annotated[str, _one_of(ACTIVATIONS)] = "relu"
    method: Annotated[str, _one_of(tuple(METHODS))]
    norm: Annotated[str, BeforeValidator(_norm)] = "inf"
    minimum: Minimum = "open"
    target: Annotated[Number, Field(ge=0)]
    eps: AnySchedule
    epochs: Positive
    batch: Positive = 100
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    validation: Annotated[int, Field(ge=0)] = 5000
    certified: Annotated[int, Field(ge=0)] = 500
    warm_up: Annotated[int, Field(ge=0)] = 0
    warm_up_method: Annotated[str, _one_of(("plain", "at"))] = "at"
    lr: AnySchedule = Constant(value=1e-3)
    lr_warm_up: NotNegative = 0.0
    weight_decay: NotNegative = 0.0
    clip: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    average: Annotated[float, Field(gt=0, lt=1)] | None = None
    average_from: NotNegative = 0.0
    augment: Literal["none", "flip-crop", "flip-shift", "shift"] = "none"
    shift: Annotated[int, Field(ge=1, le=16)] | None = None
    start: Annotated[str, Field(min_length=1)] | None = None
    revive: NotNegative | None = None
    select: Literal["last", "best"] = "last"
    l1: NotNegative = 0.0
    stability: NotNegative = 0.0
    alpha: AnySchedule | None = None
    gamma: AnySchedule | None = None
    kappa: AnySchedule | None = None
    beta: AnySchedule | None = None
    mix: AnySchedule | None = None
    boundary_share: AnySchedule | None = None
    subsample: AnySchedule | None = None
    terms: Positive | None = None
    weight: NotNegative | None = None
    gamma_boundary: Annotated[Number, Field(gt=0)] | None = None
    gamma_decision: Annotated[Number, Field(gt=0)] | None = None
    decisions: Positive | None = None
    attack_steps: Positive | None = None
    attack_step: Annotated[Number, Field(gt=0)] | None = None

    @model_validator(mode="after")
    def _fits_together(self) -> Recipe:
        """Check the rules between keys."""
        method = METHODS[self.method]
        for key in method.needs:
            if getattr(self, key) is None:
                raise ValueError(f"{key}: method {self.method!r} needs it, give a value")
        warm_up = METHODS[self.warm_up_method].takes if self.warm_up else ()
        for key in OWN_KEYS:
            if getattr(self, key) is not None and key not in method.needs + method.takes + warm_up:
                users = [name for name, one in METHODS.items() if key in one.needs + one.takes]
                raise ValueError(f"{key}: method {self.method!r} does not use it, only {', '.join(users)} do")
        if method.piecewise_linear and self.activation not in PIECEWISE_LINEAR:
            raise ValueError(
                f"activation: must be one of {', '.join(PIECEWISE_LINEAR)} for method {self.method!r}, "
                f"got {self.activation!r}"
            )
        if self.warm_up >= self.epochs:
            raise ValueError(f"warm_up: must be below epochs ({self.epochs}), got {self.warm_up}")
        if self.shift is not None and self.augment == "none":
            raise ValueError(f"shift: goes with an augment other than 'none', got {self.shift}")
        if self.revive is not None and self.start is None:
            raise ValueError(f"revive: goes with start, whose idle units it puts to use, got {self.revive:g}")
        if self.revive is not None and self.activation != "relu":
            raise ValueError(f"revive: copies units of ReLU networks only, got activation {self.activation!r}")
        if self.select == "best" and not (self.validation and self.certified):
            raise ValueError("select: 'best' needs validation and certified to be above 0")
        self._check_ranges()
        highest = self.eps.value_range(self.epochs)[1]
        if self.select == "best" and highest < self.target:
            raise ValueError(f"select: 'best' needs an eps that reaches the target {self.target:g}, got {highest:g}")
        return self

    def _check_ranges(self) -> None:
        """Check that every schedule stays in its allowed range all through training."""
        limits: dict[str, tuple[float, float, bool]] = {
            "eps": (0, float("inf"), True),
            "lr": (0, float("inf"), True),
            "alpha": (0, float("inf"), False),
            "gamma": (0, float("inf"), True),
            "kappa": (0, 1, True),
            "beta": (0, 1, True),
            "mix": (0, 1, True),
            "boundary_share": (0, 1, False),
            "subsample": (1, self.batch, True),
        }
        for key, (least, most, closed) in limits.items():
            schedule = getattr(self, key)
            if schedule is None:
                continue
            low, high = schedule.value_range(self.epochs)
            too_high = high > most or not math.isfinite(high)
            if too_high or low < least or (low == least and not closed):
                top = " (the batch)" if key == "subsample" else ""
                rule = f"{'at least' if closed else 'above'} {least:g}"
                rule += "" if most == float("inf") else f" and at most {most:g}{top}"
                raise ValueError(f"{key}: must be {rule} all through training, got {high if too_high else low:g}")

    def ball(self, time: float | None = None) -> Ball:
        """Return the ball at a time in training, or without a time the ball that counts in validation."""
        eps = self.target if time is None else self.eps.at(time)
        return Ball(float(self.norm), eps, low=0.0, high=1.0, minimum=self.minimum)

    def loss(self, time: float) -> nn.Module:
        """Return the loss at a time in training."""
        if time < self.warm_up:
            attack = {"attack_steps": self.attack_steps, "attack_step": self.attack_step}
            return make_loss(self.warm_up_method, attack, {})
        values: dict[str, Any] = {}
        for key in OWN_KEYS:
            value = getattr(self, key)
            values[key] = value.at(time) if isinstance(value, Schedule) else value
        if values["subsample"] is not None:
            values["subsample"] = round(values["subsample"])
        return make_loss(self.method, values, {"l1": self.l1, "stability": self.stability})

    def learning_rate(self, time: float) -> float:
        """Return the learning rate of Adam at a time in training, with its linear start."""
        # The time is a thousandth of an epoch ahead, so that the rate of the first step is not 0.
        start = 1.0 if self.lr_warm_up == 0 else min(1.0, (time + 1e-3) / self.lr_warm_up)
        return self.lr.at(time) * start

    def shortened(self, epochs: int) -> Recipe:
        """Return the recipe with another number of epochs; all times are scaled with it."""
        factor = epochs / self.epochs
        changes: dict[str, Any] = {"epochs": epochs, "warm_up": min(round(self.warm_up * factor), epochs - 1)}
        changes |= {key: getattr(self, key) * factor for key in ("lr_warm_up", "average_from")}
        for key, value in self:
            if isinstance(value, Schedule):
                changes[key] = value.stretched(factor)
        if not changes["warm_up"]:  # only a warm-up by attacks used these keys
            changes |= {key: None for key in ATTACK_KEYS if key not in METHODS[self.method].takes}
        return self.model_copy(update=changes)

    def plain(self) -> dict[str, Any]:
        """Return the values as a file holds them, without those that are unset or empty."""
        return {key: value for key, value in self.model_dump().items() if value not in (None, "")}


def make_recipe(values: dict[str, Any]) -> Recipe:
    """Return a recipe from plain values; raises `PolycertError`, which names the key and what it may be."""
    try:
        return Recipe.model_validate(values)
    except ValidationError as error:
        raise PolycertError(_explain(error)) from None
    except OverflowError:
        raise PolycertError(
            "recipe: a schedule leaves the range of numbers: give smaller epochs, times or factors"
        ) from None


def _explain(error: ValidationError) -> str:
    """Return the first error as a sentence: the key, what is allowed, and what was got."""
    first = error.errors()[0]
    key = ".".join(str(part) for part in first["loc"] if part not in ("constant",))
    if first["type"] == "extra_forbidden":
        known = sorted(Recipe.model_fields)
        close = difflib.get_close_matches(str(first["loc"][-1]), known, 1)
        hint = f"did you mean {close[0]!r}? " if close else ""
        return f"recipe: unknown key {key!r}: {hint}known are {', '.join(known)}"
    if first["type"] == "missing":
        return f"recipe: key {key!r} is missing: give it a value"
    message = str(first["msg"]).removeprefix("Value error, ")
    if first["type"] == "value_error" and not key:  # the sentence of a rule between keys begins with the key to change
        key, _, message = message.partition(": ")
        return f"recipe: key {key!r}: {message}"
    got = "" if "got" in message else f", got {first['input']!r}"
    return f"recipe: key {key!r}: {message}{got}"
