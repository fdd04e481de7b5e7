"""Rules that read a profile: what a head does (observations, which sound heads show too), and what is wrong (failures).

    found = diagnose(profile, reference)        found.failures, the severest first; found.observations, by rule

A rule is a row of ``RULES``: when it applies, what it says, what that may mean, what would confirm it, and its thresholds, which
the caller may change. Messages are templates with values; pages translate them.

Severity, 0 to 1, is one measure for all failures: how far a number has gone from what it is in a sound model towards nothing,

    departure = 1 - value / sound value

value being the rule's own number (share of the output; divergence and difference of two heads; reach). The sound value is that of
the same heads in the reference profile; without one, of the other heads (pairs, layers) beside them. Where the reference knows
what switching its heads off does, the departure counts by half if that is nothing, and in full for the head that matters most:
severity = departure (1 + effect / largest effect) / 2.

None of this explains what a model does: weights are not explanations (Jain and Wallace 2019). The rules are this project's,
calibrated on its embedded model; they point to heads that are worth a look, and say what would settle the matter.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from ..errors import AttentionError
from .head_maps import LONG
from .head_metrics import BY_NAME
from .profile_sums import Profile

CALIBRATED_ON = "the model that comes with this project and heads of it that were broken on purpose"


@dataclass(frozen=True)
class Number:
    """A number that a finding rests on.

    Attributes:
        name: of a column of COLUMNS, or "divergence" (nats) and "difference" (share) of two heads.
        value: None = not measured, so that the finding does not rest on it.
        threshold: what it was compared with; None = it is shown only.
        below: whether it had to lie below the threshold (else above).
    """

    name: str
    value: float | None
    threshold: float | None
    below: bool = True


@dataclass(frozen=True)
class Finding:
    """What a rule found.

    Attributes:
        rule: the name of its row in RULES.
        failure: whether it is a failure, not an observation.
        kind, layer, heads: where.
        numbers: what it rests on, with thresholds.
        example: the index of the text where it shows most; None where that is not known.
        template, values: what is said, a sentence with {name} places.
        meaning, confirmation: what it may mean, and what would confirm it.
        severity: from 0 to 1 for failures (see the module); None for observations.
        against: "reference" or "neighbours": what the severity compares with; None for observations.
    """

    rule: str
    failure: bool
    kind: str
    layer: int
    heads: tuple[int, ...]
    numbers: tuple[Number, ...]
    example: int | None
    template: str
    values: Mapping[str, object]
    meaning: str
    confirmation: str
    severity: float | None = None
    against: str | None = None

    def __str__(self) -> str:
        return self.template.format(**self.values)


@dataclass(frozen=True)
class Diagnosis:
    """Failures, the severest first, and observations, in the order of rules, kinds, layers and heads."""

    failures: tuple[Finding, ...]
    observations: tuple[Finding, ...]


@dataclass(frozen=True)
class Hit:
    """Where a rule applies: heads of a layer, the numbers, and how far they have departed (failures)."""

    kind: str
    layer: int
    heads: tuple[int, ...]
    numbers: tuple[Number, ...]
    example: int | None
    departure: float | None = None


@dataclass(frozen=True)
class Rule:
    """One row of RULES.

    Attributes:
        name, label: in code, and for a person (pages translate it).
        failure: whether it is a failure.
        find: (profile, reference or None, thresholds) -> hits.
        thresholds: name -> default; the caller may change them.
        template: what is said; its places are kind, layer, heads, the names of the numbers, and the thresholds.
        meaning, confirmation: what it may mean; what would confirm it.
    """

    name: str
    label: str
    failure: bool
    find: Callable[[Profile, Profile | None, Mapping[str, float]], Iterator[Hit]]
    thresholds: Mapping[str, float]
    template: str
    meaning: str
    confirmation: str


def diagnose(
    profile: Profile,
    reference: Profile | None = None,
    thresholds: Mapping[str, Mapping[str, float]] | None = None,
) -> Diagnosis:
    """Applies every rule.

    Args:
        profile: what is diagnosed; what it does not hold (importance, effects of switching off) is not asked for.
        reference: the profile of the sound model; None = failures are compared with the heads beside them.
        thresholds: name of a rule -> its thresholds that are not the default ones.

    Raises:
        AttentionError: a reference with other layers or heads; a rule or threshold that there is not.
    """
    if reference is not None and reference.shapes != profile.shapes:
        raise AttentionError(
            "the reference must have the same layers and heads: it has {theirs}, not {ours}",
            theirs=reference.shapes,
            ours=profile.shapes,
        )
    findings = []
    for rule in RULES:
        chosen = _thresholds(rule, thresholds or {})
        findings += [_finding(rule, hit, chosen, reference) for hit in rule.find(profile, reference, chosen)]
    _check_rules(thresholds or {})
    failures = sorted((f for f in findings if f.failure), key=lambda f: -f.severity)
    return Diagnosis(tuple(failures), tuple(f for f in findings if not f.failure))


def _sinks(profile: Profile, reference: Profile | None, limits: Mapping[str, float]) -> Iterator[Hit]:
    yield from _above(profile, "sink", limits["sink"])


def _positional(profile: Profile, reference: Profile | None, limits: Mapping[str, float]) -> Iterator[Hit]:
    for kind in profile.kinds:
        names = [name for name in ("self", "previous", "next") if kind in BY_NAME[name].kinds]
        if not names:
            continue
        masses = np.stack([np.nan_to_num(profile.mean(kind, name)) for name in names])
        for layer, head in np.argwhere(masses.max(0) > limits["mass"]).tolist():
            name = names[int(masses[:, layer, head].argmax())]
            yield Hit(
                kind, layer, (head,), (_number(profile, kind, name, layer, head, limits["mass"], below=False),),
                profile.worst(kind, name, layer, head, high=True),
            )  # fmt: skip


def _dispersed(profile: Profile, reference: Profile | None, limits: Mapping[str, float]) -> Iterator[Hit]:
    yield from _above(profile, "entropy", limits["entropy"])


def _concentrated(profile: Profile, reference: Profile | None, limits: Mapping[str, float]) -> Iterator[Hit]:
    for kind in profile.kinds:
        entropy, column = profile.mean(kind, "entropy"), profile.mean(kind, "one_column")
        for layer, head in np.argwhere((entropy < limits["entropy"]) & (column > limits["one_column"])).tolist():
            numbers = (
                _number(profile, kind, "entropy", layer, head, limits["entropy"]),
                _number(profile, kind, "one_column", layer, head, limits["one_column"], below=False),
            )
            yield Hit(kind, layer, (head,), numbers, profile.worst(kind, "entropy", layer, head, high=False))


def _dead(profile: Profile, reference: Profile | None, limits: Mapping[str, float]) -> Iterator[Hit]:
    for kind, (_, heads) in profile.shapes.items():
        share = profile.mean(kind, "output_share") * heads
        dead = share < limits["output_share"]
        for name in ("importance", "loss_zero"):
            values = np.abs(profile.mean(kind, name))
            dead &= np.isnan(values) | (values < limits[name])  # what was not measured does not speak against it
        for layer, head in np.argwhere(dead).tolist():
            numbers = (
                Number("output_share", float(share[layer, head]), limits["output_share"]),
                _number(profile, kind, "importance", layer, head, limits["importance"]),
                _number(profile, kind, "loss_zero", layer, head, limits["loss_zero"]),
            )
            sound = float(reference.mean(kind, "output_share")[layer, head] * heads) if reference is not None else (
                _median(share[layer, [h for h in range(heads) if h != head]])
            )  # fmt: skip
            yield Hit(
                kind, layer, (head,), numbers, profile.worst(kind, "output_share", layer, head, high=False),
                _departure(share[layer, head], sound),
            )  # fmt: skip


def _redundant(profile: Profile, reference: Profile | None, limits: Mapping[str, float]) -> Iterator[Hit]:
    for kind, (layers, heads) in profile.shapes.items():
        if kind not in profile.pairs:
            continue
        apart = [_layer_pairs(profile, kind), None if reference is None else _layer_pairs(reference, kind)]
        for layer in range(layers):
            (divergence, difference), sound = apart[0], apart[1]
            pairs = list(zip(*np.triu_indices(heads, 1)))
            for first, second in pairs:
                values = divergence[layer, first, second], difference[layer, first, second]
                if not (values[0] < limits["divergence"] and values[1] < limits["difference"]):
                    continue
                if sound is None:
                    beside = [(layer, *pair) for pair in pairs if pair != (first, second)]
                    # A layer of two heads has no other pair: then those of the other layers.
                    beside = beside or [(other, *pairs[0]) for other in range(layers) if other != layer]
                    normal = [_median(np.array([x[place] for place in beside])) for x in apart[0]]
                else:
                    normal = [x[layer, first, second] for x in sound]
                numbers = tuple(
                    Number(name, float(value), limits[name])
                    for name, value in zip(("divergence", "difference"), values)
                )
                departures = [_departure(value, usual) for value, usual in zip(values, normal)]
                yield Hit(
                    kind, layer, (int(first), int(second)), numbers,
                    profile.worst(kind, "effective_tokens", layer, int(first), high=True),
                    min(departures),
                )  # fmt: skip


def _short_sighted(profile: Profile, reference: Profile | None, limits: Mapping[str, float]) -> Iterator[Hit]:
    for kind in profile.kinds:
        name = "second_half" if kind == "cross" else "reach"
        farthest = _farthest(profile, kind, name)
        for layer in np.flatnonzero(farthest < limits["reach"]).tolist():
            if reference is not None:
                sound = float(_farthest(reference, kind, name)[layer])
            else:
                sound = _median(np.delete(farthest, layer))
            head = int(np.nanargmax(profile.mean(kind, name)[layer]))
            yield Hit(
                kind, layer, tuple(range(profile.shapes[kind][1])),
                (Number(name, float(farthest[layer]), limits["reach"]),),
                profile.worst(kind, name, layer, head, high=False),
                _departure(farthest[layer], sound),
            )  # fmt: skip


RULES = (
    Rule(
        "sink", "resting place", False, _sinks, {"sink": 0.3},
        "head {heads} of {kind} layer {layer} puts {sink:.2f} more of its weight on the first token and control tokens than even "
        "attention would (above {sink_limit:g})",
        "it may be resting: where nothing matches, weight goes to a token that carries little",
        "its share of the layer's output is small, and switching it off changes little",
    ),
    Rule(
        "positional", "by position", False, _positional, {"mass": 0.5},
        "head {heads} of {kind} layer {layer} puts {mass:.2f} of its weight at one fixed distance: {column} (above {mass_limit:g})",
        "it may hand on the neighbouring token, as many sound models' heads do",
        "its variability over texts is low",
    ),
    Rule(
        "dispersed", "scattered", False, _dispersed, {"entropy": 0.9},
        "head {heads} of {kind} layer {layer} spreads its weight almost evenly: entropy {entropy:.2f} of the largest possible "
        "(above {entropy_limit:g})",
        "it may average over the text; or it was never trained, or its scores are scaled down too far",
        "a lower temperature or a larger scale changes what the model says; its variability over texts",
    ),
    Rule(
        "concentrated", "stuck on one token", False, _concentrated, {"entropy": 0.1, "one_column": 0.8},
        "head {heads} of {kind} layer {layer} looks at one key whatever the row: entropy {entropy:.3f} (below {entropy_limit:g}), "
        "{one_column:.2f} of the rows at the same key (above {one_column_limit:g})",
        "it may be resting on that token, or its softmax is saturated, so that it cannot learn any more",
        "a higher temperature changes its map; its share of the output; the norms of what it reads",
    ),
    Rule(
        "dead", "dead", True, _dead, {"output_share": 0.1, "importance": 0.05, "loss_zero": 0.002},
        "head {heads} of {kind} layer {layer} adds {output_share:.3f} of an equal share to its layer's output "
        "(below {output_share_limit:g})",
        "its values may be zero, or so small that the layer does not hear it",
        "switching it off, by zero and by mean, leaves the likelihood of the target as it is; its slices of the value and "
        "output projections are close to zero",
    ),
    Rule(
        "redundant", "redundant", True, _redundant, {"divergence": 0.01, "difference": 0.01},
        "heads {heads} of {kind} layer {layer} have the same maps (divergence {divergence:.4f} nats, below {divergence_limit:g}) "
        "and add the same to the output (difference {difference:.4f}, below {difference_limit:g})",
        "one may be a copy of the other, or both learned the same; the layer has a head less than it seems",
        "switching either off changes little, switching both off changes more; their weights are alike",
    ),
    Rule(
        "short_sighted", "lost long range", True, _short_sighted, {"reach": 0.1},
        "no head of {kind} layer {layer} reads far: the farthest reaches {reach:.3f} of what even attention would "
        "(below {reach_limit:g}), resting places left out, in texts of {long} tokens and more",
        "a window or a mask may be hiding distant tokens, or every head of the layer has become local",
        "the mask of the layer as recorded; the same texts with the order of distant sentences changed",
    ),
)  # fmt: skip


def _above(profile: Profile, column: str, limit: float) -> Iterator[Hit]:
    for kind in profile.kinds:
        for layer, head in np.argwhere(profile.mean(kind, column) > limit).tolist():
            number = _number(profile, kind, column, layer, head, limit, below=False)
            yield Hit(kind, layer, (head,), (number,), profile.worst(kind, column, layer, head, high=True))


def _number(
    profile: Profile, kind: str, column: str, layer: int, head: int, limit: float, *, below: bool = True
) -> Number:
    value = float(profile.mean(kind, column)[layer, head])
    return Number(column, None if np.isnan(value) else value, limit, below)


def _layer_pairs(profile: Profile, kind: str) -> tuple[np.ndarray, np.ndarray]:
    """Divergence and difference of the heads of each layer: (layers, heads, heads) each."""
    layers, heads = profile.shapes[kind]
    every = profile.distances(kind).reshape(layers, heads, layers, heads)
    return every[np.arange(layers), :, np.arange(layers)], profile.differences(kind)


def _farthest(profile: Profile, kind: str, column: str) -> np.ndarray:
    """(layers,): the largest value over the heads of each layer; NaN where no head has any."""
    values = profile.mean(kind, column)
    return np.where(np.isnan(values).all(-1), np.nan, np.nan_to_num(values, nan=-np.inf).max(-1))


def _departure(value: float, sound: float) -> float:
    """1 - value / sound value, within 0 and 1; 1 where there is no sound value to compare with and nothing is left."""
    if not np.isfinite(sound) or sound <= 0:
        return float(value == 0)
    return float(np.clip(1 - value / sound, 0, 1))


def _median(values: np.ndarray) -> float:
    values = values[np.isfinite(values)]
    return float(np.median(values)) if len(values) else float("nan")


def _severity(hit: Hit, reference: Profile | None) -> float:
    """See the module: departure, by half for heads that did nothing in the sound model."""
    if reference is None or "loss_zero" not in reference.columns():
        return hit.departure
    effects = {kind: np.maximum(np.nan_to_num(reference.mean(kind, "loss_zero")), 0) for kind in reference.kinds}
    largest = max(float(effect.max()) for effect in effects.values())
    stake = float(effects[hit.kind][hit.layer, list(hit.heads)].max()) / largest if largest else 0.0
    return hit.departure * (1 + stake) / 2


def _finding(rule: Rule, hit: Hit, limits: Mapping[str, float], reference: Profile | None) -> Finding:
    values: dict[str, object] = {f"{name}_limit": limit for name, limit in limits.items()}
    values |= {"kind": hit.kind, "layer": hit.layer, "heads": ", ".join(map(str, hit.heads)), "long": LONG}
    values |= {number.name: number.value for number in hit.numbers}
    first = hit.numbers[0]
    if rule.name == "positional":
        values |= {"mass": first.value, "column": BY_NAME[first.name].label}
    if rule.name == "short_sighted":
        values["reach"] = first.value
    return Finding(
        rule.name, rule.failure, hit.kind, hit.layer, hit.heads, hit.numbers, hit.example, rule.template, values, rule.meaning,
        rule.confirmation, _severity(hit, reference) if rule.failure else None,
        ("neighbours" if reference is None else "reference") if rule.failure else None,
    )  # fmt: skip


def _thresholds(rule: Rule, given: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    changed = given.get(rule.name, {})
    unknown = set(changed) - set(rule.thresholds)
    if unknown:
        raise AttentionError(
            "the rule {rule} has no threshold {name!r}: it has {known}",
            rule=rule.name,
            name=sorted(unknown)[0],
            known=", ".join(rule.thresholds),
        )
    return {**rule.thresholds, **changed}


def _check_rules(given: Mapping[str, object]) -> None:
    known = [rule.name for rule in RULES]
    for name in given:
        if name not in known:
            raise AttentionError("there is no rule {name!r}: there are {known}", name=name, known=", ".join(known))
