"""Rules that read a profile: what a head does (observations, which sound heads show too), and what is wrong (failures).

    found = diagnose(profile, reference)        found.failures, the severest first; found.observations, by rule

A rule is a row of ``RULES``: when it applies, what it says, what that may mean, what would confirm it, and its thresholds, which
the caller may change. Messages are templates with values; pages translate them.

Severity, 0 to 1, is one measure for all failures: how far a number has gone from what it is in a sound model towards nothing,

    departure = 1 - value / sound value

value being the rule's own number (the share of the output over an equal share; divergence and difference of two heads; reach).
The sound value is that of the same heads in the reference profile. Without one, or where the reference has not measured it, it is
the median of the other heads (pairs, layers) beside them, of those that are not below the threshold themselves; where there are
none, the threshold. Of two numbers of which only one was not below its threshold in the sound model, that one counts; otherwise
the lesser departure does. Where the reference knows what switching its heads off does, the departure counts by half if that is
nothing, and in full for the head that matters most: severity = departure (1 + effect / largest effect) / 2. For a layer whose
heads are all dead it counts in full: what one head did says nothing about what the layer did.

Where the numbers of a failure have not departed from the reference at all, the reference has the same: that is no failure, and
is told apart (``Diagnosis.unchanged``). What could not be measured is not sound either (``Diagnosis.untested``).

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

OWN_NUMBERS = {
    "equal_share": ("share of the output over an equal share", "times an equal share"),
    "divergence": ("divergence", "nats"),
    "difference": ("difference", "share"),
}
"""Numbers of rules that are no column of a table: name -> (label, unit)."""
NOT_HELD = "the profile does not hold the numbers that this rule reads"
NO_CHOICE = "no row of the maps sees two keys or more: the texts are too short, or the keys are hidden"
NO_OUTPUT = "what the heads add to their layer's output is not known"
NOT_COMPARED = "maps or outputs of these heads could not be compared"
TOO_SHORT = "no text has {long} tokens or more, or nothing but resting places is seen"
ALL_AT_REST = "all weight lies on resting places (the first token and control tokens), or every key is hidden"
_EFFECTS = ("importance", "loss_zero")
# A departure that rounding makes.
_ROUNDING = 1e-6
CALIBRATED_ON = "the model that comes with this project and heads of it that were broken on purpose"


@dataclass(frozen=True)
class Number:
    """A number that a finding rests on.

    Attributes:
        name: of a column of COLUMNS, or of a row of OWN_NUMBERS (see ``number_label``).
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
class Untested:
    """Heads on which a rule could not be tested, so that its silence says nothing about them.

    Attributes:
        rule: the name of its row in RULES.
        kind: of attention.
        heads: (layer, head) of each.
        every: whether these are all heads of the kind.
        template, values: why, a clause with {name} places.
    """

    rule: str
    kind: str
    heads: tuple[tuple[int, int], ...]
    every: bool
    template: str
    values: Mapping[str, object]

    def __str__(self) -> str:
        where = "every head" if self.every else ", ".join(f"layer {layer} head {head}" for layer, head in self.heads)
        return f"{self.rule} could not be tested on {self.kind} attention ({where}): " + self.template.format(
            **self.values
        )


@dataclass(frozen=True)
class ReferenceOf:
    """What a reference profile is of.

    Attributes:
        name, fingerprint: of its model.
        same_model: whether the diagnosed profile is of the same weights.
        texts: how many texts it is of.
    """

    name: str
    fingerprint: str
    same_model: bool
    texts: int


@dataclass(frozen=True)
class Diagnosis:
    """Failures, the severest first; everything else in the order of rules, kinds, layers and heads.

    Attributes:
        failures, observations: what the rules found.
        unchanged: what would be failures, had the reference not just the same; severity 0.
        untested: where rules could not be tested.
        reference: what the failures are compared with; None = the heads beside them.
    """

    failures: tuple[Finding, ...]
    observations: tuple[Finding, ...]
    unchanged: tuple[Finding, ...] = ()
    untested: tuple[Untested, ...] = ()
    reference: ReferenceOf | None = None


@dataclass(frozen=True)
class Hit:
    """Where a rule applies: heads of a layer, the numbers, and how far they have departed (failures).

    Attributes:
        by_reference: whether the sound value is the reference's.
        in_full: whether the departure is the severity, whatever the heads did in the reference.
    """

    kind: str
    layer: int
    heads: tuple[int, ...]
    numbers: tuple[Number, ...]
    example: int | None
    departure: float | None = None
    by_reference: bool = False
    in_full: bool = False


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
        blind: profile -> (kind, heads it cannot be tested on as (layers, heads) booleans, why, the values of that).
    """

    name: str
    label: str
    failure: bool
    find: Callable[[Profile, Profile | None, Mapping[str, float]], Iterator[Hit]]
    thresholds: Mapping[str, float]
    template: str
    meaning: str
    confirmation: str
    blind: Callable[[Profile], Iterator[tuple[str, np.ndarray, str, Mapping[str, object]]]]


def number_label(name: str) -> tuple[str, str]:
    """What a number or a threshold of a rule is called, and its unit: English phrases that pages translate."""
    if name in OWN_NUMBERS:
        return OWN_NUMBERS[name]
    if name in BY_NAME:
        return BY_NAME[name].label, BY_NAME[name].unit
    return name, "share"


def diagnose(
    profile: Profile,
    reference: Profile | None = None,
    thresholds: Mapping[str, Mapping[str, float]] | None = None,
) -> Diagnosis:
    """Applies every rule.

    Args:
        profile: what is diagnosed; what it does not hold (importance, effects of switching off) is not asked for.
        reference: the profile of the sound model; None = failures are compared with the heads beside them. It may be of another
            model of the same shape (a fine-tuned copy against its base): ``Diagnosis.reference`` says what it is of.
        thresholds: name of a rule -> its thresholds that are not the default ones.

    Raises:
        AttentionError: a reference with other layers or heads, of an edited model, or without the numbers that failures are
            told by; a rule or threshold that there is not.
    """
    _check_rules(thresholds or {})
    if reference is not None:
        _check_reference(profile, reference)
    findings, untested = [], []
    for rule in RULES:
        chosen = _thresholds(rule, thresholds or {})
        findings += [_finding(rule, hit, chosen, reference) for hit in rule.find(profile, reference, chosen)]
        untested += _untested(rule, profile)
    failures = sorted((f for f in findings if f.failure), key=lambda f: -f.severity)
    return Diagnosis(
        tuple(f for f in failures if not _unchanged(f)),
        tuple(f for f in findings if not f.failure),
        tuple(f for f in failures if _unchanged(f)),
        tuple(untested),
        None if reference is None else _reference_of(profile, reference),
    )


def _unchanged(finding: Finding) -> bool:
    return finding.against == "reference" and finding.severity <= _ROUNDING


def _reference_of(profile: Profile, reference: Profile) -> ReferenceOf:
    name, fingerprint = reference.model["name"], reference.model["fingerprint"]
    return ReferenceOf(name, fingerprint, fingerprint == profile.model["fingerprint"], reference.texts)


def _check_reference(profile: Profile, reference: Profile) -> None:
    if reference.shapes != profile.shapes:
        raise AttentionError(
            "the reference must have the same layers and heads: it has {theirs}, not {ours}",
            theirs=reference.shapes,
            ours=profile.shapes,
        )
    if reference.edits.strip() not in ("", "[]"):
        raise AttentionError(
            "the reference must be the profile of a sound model: this one was taken under the edits {edits}",
            edits=reference.edits,
        )
    for kind in profile.kinds:
        if not reference.columns(kind):
            raise AttentionError("the reference holds no numbers of {kind} attention", kind=kind)
        if kind in profile.pairs and (kind not in reference.pairs or not reference.pairs[kind].rows):
            raise AttentionError(
                "in the reference, heads of {kind} attention are not compared with each other: take its profile again",
                kind=kind,
            )


def _untested(rule: Rule, profile: Profile) -> Iterator[Untested]:
    for kind, heads, template, values in rule.blind(profile):
        if heads.any():
            places = tuple((layer, head) for layer, head in np.argwhere(heads).tolist())
            yield Untested(rule.name, kind, places, bool(heads.all()), template, values)


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
        sound = None if reference is None else reference.mean(kind, "output_share") * heads
        dead = share < limits["equal_share"]
        for name in _EFFECTS:
            values = np.abs(profile.mean(kind, name))
            dead &= np.isnan(values) | (values < limits[name])  # what was not measured does not speak against it
        for layer, head in np.argwhere(dead).tolist():
            numbers = (
                Number("equal_share", float(share[layer, head]), limits["equal_share"]),
                *(_number(profile, kind, name, layer, head, limits[name]) for name in _EFFECTS),
            )
            known = sound is not None and bool(np.isfinite(sound[layer, head]))
            if known:
                departure = _departure(share[layer, head], sound[layer, head])
                if sound[layer, head] < limits["equal_share"]:
                    # It was as quiet; then it has died only if it did something all the same.
                    departure = max(departure, _lost_effect(profile, reference, limits, kind, layer, head))
            else:
                beside = share[layer, [h for h in range(heads) if h != head]]
                departure = _departure(share[layer, head], _usual(beside, limits["equal_share"]))
            yield Hit(
                kind, layer, (head,), numbers, profile.worst(kind, "output_share", layer, head, high=False), departure, known,
                in_full=not share[layer].any(),
            )  # fmt: skip


def _lost_effect(
    profile: Profile, reference: Profile, limits: Mapping[str, float], kind: str, layer: int, head: int
) -> float:
    """How far the head's importance, or the loss when it is off, has departed from one that spoke for it; 0 = there was none."""
    lost = 0.0
    for name in _EFFECTS:
        value, sound = (abs(float(x.mean(kind, name)[layer, head])) for x in (profile, reference))
        if sound >= limits[name] and np.isfinite(value):
            lost = max(lost, _departure(value, sound))
    return lost


def _redundant(profile: Profile, reference: Profile | None, limits: Mapping[str, float]) -> Iterator[Hit]:
    names = ("divergence", "difference")
    for kind, (layers, heads) in profile.shapes.items():
        if kind not in profile.pairs:
            continue
        apart = _layer_pairs(profile, kind)
        sound = None if reference is None else _layer_pairs(reference, kind)
        pairs = list(zip(*np.triu_indices(heads, 1)))
        told = (apart[0] < limits["divergence"]) & (apart[1] < limits["difference"])
        for layer in range(layers):
            for first, second in pairs:
                place = (layer, first, second)
                if not told[place]:
                    continue
                values = [float(x[place]) for x in apart]
                known = sound is not None and all(np.isfinite(x[place]) for x in sound)
                if known:
                    normal = [float(x[place]) for x in sound]
                else:
                    beside = [(layer, *pair) for pair in pairs if pair != (first, second)]
                    # A layer of two heads has no other pair: then those of the other layers.
                    beside = beside or [(other, *pairs[0]) for other in range(layers) if other != layer]
                    beside = [place for place in beside if not told[place]]
                    normal = [
                        _usual(np.array([x[p] for p in beside]), limits[n], every=True) for x, n in zip(apart, names)
                    ]
                departures = [_departure(value, usual) for value, usual in zip(values, normal)]
                new = [d for d, usual, name in zip(departures, normal, names) if usual >= limits[name]]
                yield Hit(
                    kind, layer, (int(first), int(second)),
                    tuple(Number(name, value, limits[name]) for name, value in zip(names, values)),
                    profile.worst(kind, "effective_tokens", layer, int(first), high=True),
                    min(new or departures), known,
                )  # fmt: skip


def _short_sighted(profile: Profile, reference: Profile | None, limits: Mapping[str, float]) -> Iterator[Hit]:
    for kind in profile.kinds:
        name = _far(kind)
        farthest = _farthest(profile, kind, name)
        sound = None if reference is None else _farthest(reference, kind, name)
        for layer in np.flatnonzero(farthest < limits["reach"]).tolist():
            known = sound is not None and bool(np.isfinite(sound[layer]))
            usual = float(sound[layer]) if known else _usual(np.delete(farthest, layer), limits["reach"])
            head = int(np.nanargmax(profile.mean(kind, name)[layer]))
            yield Hit(
                kind, layer, tuple(range(profile.shapes[kind][1])),
                (Number(name, float(farthest[layer]), limits["reach"]),),
                profile.worst(kind, name, layer, head, high=False),
                _departure(farthest[layer], usual), known,
            )  # fmt: skip


def _far(kind: str) -> str:
    return "second_half" if kind == "cross" else "reach"


def _blind_to(*columns: str, why: str) -> Callable:
    """Heads for which none of these columns was measured, of those that their kind has."""

    def blind(profile: Profile) -> Iterator[tuple]:
        for kind in profile.kinds:
            names = [name for name in columns if kind in BY_NAME[name].kinds]
            if names:
                missing = np.stack([np.isnan(profile.mean(kind, name)) for name in names]).all(0)
                held = any(name in profile.moments[kind] for name in names)
                yield kind, missing, why if held else NOT_HELD, {}

    return blind


def _blind_to_pairs(profile: Profile) -> Iterator[tuple]:
    for kind, (layers, heads) in profile.shapes.items():
        if heads < 2:
            continue
        if kind not in profile.pairs:
            yield kind, np.ones((layers, heads), dtype=bool), NOT_HELD, {}
            continue
        known = np.isfinite(_layer_pairs(profile, kind)).all(0)
        # A head that adds nothing has nothing to be compared with; that is told as dead.
        alive = ~(profile.mean(kind, "output_share") == 0)
        pairs = ~known & alive[:, :, None] & alive[:, None] & ~np.eye(heads, dtype=bool)
        yield kind, pairs.any(-1), NOT_COMPARED, {}


def _blind_to_distance(profile: Profile) -> Iterator[tuple]:
    for kind in profile.kinds:
        values = profile.mean(kind, _far(kind))
        layers = np.isnan(values).all(-1)
        missing = np.repeat(layers[:, None], values.shape[1], 1)
        if _far(kind) not in profile.moments[kind]:
            yield kind, missing, NOT_HELD, {}
        else:
            yield kind, missing, TOO_SHORT if layers.all() else ALL_AT_REST, {"long": LONG}


RULES = (
    Rule(
        "sink", "resting place", False, _sinks, {"sink": 0.3},
        "head {heads} of {kind} layer {layer} puts {sink:.2f} more of its weight on the first token and control tokens than even "
        "attention would (above {sink_limit:g})",
        "it may be resting: where nothing matches, weight goes to a token that carries little",
        "its share of the layer's output is small, and switching it off changes little",
        _blind_to("sink", why=NO_CHOICE),
    ),
    Rule(
        "positional", "by position", False, _positional, {"mass": 0.5},
        "head {heads} of {kind} layer {layer} puts {mass:.2f} of its weight at one fixed distance: {column} (above {mass_limit:g})",
        "it may hand on the neighbouring token, as many sound models' heads do",
        "its variability over texts is low",
        _blind_to("self", "previous", "next", why=NO_CHOICE),
    ),
    Rule(
        "dispersed", "scattered", False, _dispersed, {"entropy": 0.9},
        "head {heads} of {kind} layer {layer} spreads its weight almost evenly: entropy {entropy:.2f} of the largest possible "
        "(above {entropy_limit:g})",
        "it may average over the text; or it was never trained, or its scores are scaled down too far",
        "a lower temperature or a larger scale changes what the model says; its variability over texts",
        _blind_to("entropy", why=NO_CHOICE),
    ),
    Rule(
        "concentrated", "stuck on one token", False, _concentrated, {"entropy": 0.1, "one_column": 0.8},
        "head {heads} of {kind} layer {layer} looks at one key whatever the row: entropy {entropy:.3f} (below {entropy_limit:g}), "
        "{one_column:.2f} of the rows at the same key (above {one_column_limit:g})",
        "it may be resting on that token, or its softmax is saturated, so that it cannot learn any more",
        "a higher temperature changes its map; its share of the output; the norms of what it reads",
        _blind_to("entropy", why=NO_CHOICE),
    ),
    Rule(
        "dead", "dead", True, _dead, {"equal_share": 0.1, "importance": 0.05, "loss_zero": 0.002},
        "head {heads} of {kind} layer {layer} adds {equal_share:.3f} of an equal share to its layer's output "
        "(below {equal_share_limit:g})",
        "its values may be zero, or so small that the layer does not hear it",
        "switching it off, by zero and by mean, leaves the likelihood of the target as it is; its slices of the value and "
        "output projections are close to zero",
        _blind_to("output_share", why=NO_OUTPUT),
    ),
    Rule(
        "redundant", "redundant", True, _redundant, {"divergence": 0.01, "difference": 0.01},
        "heads {heads} of {kind} layer {layer} have the same maps (divergence {divergence:.4f} nats, below {divergence_limit:g}) "
        "and add the same to the output (difference {difference:.4f}, below {difference_limit:g})",
        "one may be a copy of the other, or both learned the same; the layer has a head less than it seems",
        "switching either off changes little, switching both off changes more; their weights are alike",
        _blind_to_pairs,
    ),
    Rule(
        "short_sighted", "lost long range", True, _short_sighted, {"reach": 0.1},
        "no head of {kind} layer {layer} reads far: the farthest reaches {reach:.3f} of what even attention would "
        "(below {reach_limit:g}), resting places left out, in texts of {long} tokens and more",
        "a window or a mask may be hiding distant tokens, or every head of the layer has become local",
        "the mask of the layer as recorded; the same texts with the order of distant sentences changed",
        _blind_to_distance,
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
    """1 - value / sound value, within 0 and 1; 0 where the sound value is 0, from which nothing can be lost."""
    return float(np.clip(1 - value / sound, 0, 1)) if sound > 0 else 0.0


def _usual(beside: np.ndarray, limit: float, *, every: bool = False) -> float:
    """The median of the numbers beside one that are not below a threshold (every = of all of them); of none, the threshold."""
    beside = beside[np.isfinite(beside)]
    beside = beside if every else beside[beside >= limit]
    return float(np.median(beside)) if len(beside) else limit


def _severity(hit: Hit, reference: Profile | None) -> float:
    """See the module: departure, by half for heads that did nothing in the sound model."""
    if reference is None or hit.in_full or "loss_zero" not in reference.columns():
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
        ("reference" if hit.by_reference else "neighbours") if rule.failure else None,
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
