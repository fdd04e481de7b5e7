"""The rules, on heads that were broken on purpose and on sound ones."""

from math import isfinite

import numpy as np
import pytest
import torch

from attention_core.analysis.diagnosis import RULES, diagnose, number_label
from attention_core.analysis.head_metrics import BY_NAME
from attention_core.analysis.importance import ablation_effects, gradient_importance
from attention_core.analysis.profile import profile_of
from attention_core.analysis.profile_sums import Profile, shipped_profile
from attention_core.analysis.sums import Corners, Pairs
from attention_core.errors import AttentionError
from attention_core.extract.interventions import Forbid, Force, SwitchOff, Window
from attention_core.extract.means import stories
from attention_core.extract.models import load_model
from tests.analysis.conftest import plant_copy, plant_dead

LAYERS, HEADS = 2, 3
OBSERVATIONS = ("sink", "positional", "dispersed", "concentrated")
FAILURES = ("dead", "redundant", "short_sighted")
# What sound heads do, as far as the rules look at it.
USUAL = {
    "sink": 0.1, "self": 0.1, "previous": 0.2, "next": 0.1, "entropy": 0.5, "one_column": 0.3, "output_share": 1 / HEADS,
    "effective_tokens": 5, "reach": 0.8, "second_half": 0.9,
}  # fmt: skip


def made(changes: dict | None = None, divergence=None, difference=None, **extra) -> Profile:
    """A profile of one text whose heads are usual, but for {(kind, column): {(layer, head): value}}."""
    profile = Profile({"name": "made", "architecture": "none", "fingerprint": "0"})
    for kind in ("encoder", "cross"):
        for name, usual in {**USUAL, **extra}.items():
            if kind not in BY_NAME[name].kinds:
                continue
            values = np.full((3, LAYERS, HEADS), float(usual))
            values += np.array([-0.01, 0, 0.01])[:, None, None] * usual  # texts 7, 8 and 9, the last the highest
            for (layer, head), value in (changes or {}).get((kind, name), {}).items():
                values[:, layer, head] = value * np.array([0.99, 1, 1.01])
            profile.add(kind, name, values, [7, 8, 9])
        apart = np.full((LAYERS * HEADS,) * 2, 0.2)
        np.fill_diagonal(apart, 0)
        products = np.tile(np.eye(HEADS), (LAYERS, 1, 1))  # outputs that have nothing in common differ by 1/2
        if kind == "encoder":
            for (layer, g, h), value in (divergence or {}).items():
                apart[layer * HEADS + g, layer * HEADS + h] = apart[layer * HEADS + h, layer * HEADS + g] = value
            for (layer, g, h), value in (difference or {}).items():
                products[layer, g, h] = products[layer, h, g] = 1 - 2 * value
        profile.add_maps(kind, Corners.empty(LAYERS, HEADS), Pairs(10, apart * 10, products * 10))
    return profile


def found(profile: Profile, **options) -> list[tuple]:
    diagnosis = diagnose(profile, **options)
    return [(f.rule, f.kind, f.layer, f.heads) for f in (*diagnosis.failures, *diagnosis.observations)]


def test_sound_heads_give_no_finding():
    assert found(made()) == []
    assert found(made(), reference=made()) == []


ONE_HEAD = {
    "sink": {("encoder", "sink"): {(1, 2): 0.4}},
    "positional": {("encoder", "previous"): {(1, 2): 0.7}},
    "dispersed": {("cross", "entropy"): {(1, 2): 0.95}},
    "concentrated": {("cross", "entropy"): {(1, 2): 0.05}, ("cross", "one_column"): {(1, 2): 0.9}},
    "dead": {("cross", "output_share"): {(1, 2): 0.01}},
}


def test_of_two_heads_the_other_layers_pairs_are_what_is_usual():
    profile = Profile({"name": "two", "architecture": "none", "fingerprint": "0"})
    apart = np.full((6, 6), 0.2)
    apart[0, 1] = apart[1, 0] = 0.002
    products = np.tile(np.eye(2), (3, 1, 1))
    products[0] = 1
    profile.add_maps("encoder", Corners.empty(3, 2), Pairs(1, apart, products))
    (failure,) = diagnose(profile).failures
    assert (failure.rule, failure.layer, failure.severity) == ("redundant", 0, pytest.approx(0.99))


@pytest.mark.parametrize("rule", ONE_HEAD)
def test_a_head_that_has_it_is_found(rule):
    changes = ONE_HEAD[rule]
    kind = next(iter(changes))[0]
    assert found(made(changes)) == [(rule, kind, 1, (2,))]
    finding = next(f for f in (*diagnose(made(changes)).failures, *diagnose(made(changes)).observations))
    assert finding.failure == (rule == "dead")
    assert finding.example == (7 if rule in ("concentrated", "dead") else 9)
    assert "head 2" in str(finding) and kind in str(finding) and "layer 1" in str(finding)
    for number in finding.numbers:
        if number.value is not None:
            assert (number.value < number.threshold) == number.below


def test_concentration_on_changing_keys_is_no_finding():
    assert found(made({("cross", "entropy"): {(1, 2): 0.05}})) == []


def test_a_head_whose_removal_matters_is_not_dead():
    small = {("cross", "output_share"): {(1, 2): 0.01}}
    assert found(made(small, importance=0.5, loss_zero=0.0)) == []
    assert found(made(small | {("cross", "importance"): {(1, 2): 0.0}}, importance=0.5, loss_zero=0.1)) == []
    dead = small | {("cross", "importance"): {(1, 2): 0.001}, ("cross", "loss_zero"): {(1, 2): -0.0001}}
    assert found(made(dead, importance=0.5, loss_zero=0.1)) == [("dead", "cross", 1, (2,))]
    numbers = {n.name: n.value for n in diagnose(made(small)).failures[0].numbers}
    assert numbers["importance"] is None and numbers["loss_zero"] is None  # not measured, and said so


def test_two_heads_alike_are_redundant_if_their_outputs_are_too():
    pair = {(0, 1, 2): 0.0}
    assert found(made(divergence=pair, difference=pair)) == [("redundant", "encoder", 0, (1, 2))]
    assert found(made(divergence=pair)) == []
    assert found(made(difference=pair)) == []
    # Both must have gone far from what they are elsewhere (0.2 nats, and 1/2): the lesser way counts.
    for values, departure in (((0.008, 0.001), 1 - 0.008 / 0.2), ((0.001, 0.009), 1 - 0.009 / 0.5)):
        profile = made(divergence={(0, 1, 2): values[0]}, difference={(0, 1, 2): values[1]})
        for reference in (None, made()):
            (failure,) = diagnose(profile, reference).failures
            assert failure.severity == pytest.approx(departure)


def test_long_range_is_lost_when_all_heads_of_a_layer_are_short_sighted():
    some = {(1, 0): 0.02, (1, 1): 0.05}
    assert found(made({("encoder", "reach"): some})) == []
    every = some | {(1, 2): 0.09}
    assert found(made({("encoder", "reach"): every})) == [("short_sighted", "encoder", 1, (0, 1, 2))]
    (failure,) = diagnose(made({("encoder", "reach"): every})).failures
    assert failure.numbers[0].value == pytest.approx(0.09)
    assert failure.severity == pytest.approx(1 - 0.09 / 0.8)
    assert found(made({("cross", "second_half"): every})) == [("short_sighted", "cross", 1, (0, 1, 2))]


def test_a_head_without_any_reach_does_not_speak_for_its_layer():
    profile = made({("encoder", "reach"): {(1, 0): np.nan, (1, 1): 0.05, (1, 2): 0.02}})
    assert found(profile) == [("short_sighted", "encoder", 1, (0, 1, 2))]
    assert found(made({("encoder", "reach"): {(1, h): np.nan for h in range(HEADS)}})) == []


def test_severity_is_the_departure_from_the_reference_weighed_by_what_was_lost():
    dead = {("cross", "output_share"): {(1, 2): 0.01}}
    usual = made()
    (failure,) = diagnose(made(dead), usual).failures
    assert (failure.against, failure.severity) == ("reference", pytest.approx(1 - 0.01 * 3))
    # A head that was as small in the sound model has not departed from it: no failure, but told apart.
    same = diagnose(made(dead), made(dead))
    assert same.failures == () and [(f.rule, f.layer, f.heads, f.severity) for f in same.unchanged] == [
        ("dead", 1, (2,), 0)
    ]
    effects = made({("encoder", "loss_zero"): {(0, 0): 0.4}, ("cross", "loss_zero"): {(1, 2): 0.1}}, loss_zero=0.0)
    (failure,) = diagnose(made(dead), effects).failures
    assert failure.severity == pytest.approx((1 - 0.03) * (1 + 0.1 / 0.4) / 2)


def test_a_sound_model_against_itself_fails_at_no_threshold():
    strict = {
        "dead": {"equal_share": 9},
        "redundant": {"divergence": 9, "difference": 9},
        "short_sighted": {"reach": 9},
    }
    found = diagnose(made(), made(), strict)
    assert found.failures == () and len(found.unchanged) == 2 * (LAYERS * HEADS + LAYERS * HEADS + LAYERS)
    # Without a reference, something that is told is told with a severity.
    assert all(f.severity > 0 for f in diagnose(made(), None, strict).failures)
    assert diagnose(made()).unchanged == ()


def test_what_was_lost_counts_where_only_that_has_departed():
    small = {("cross", "output_share"): {(1, 2): 0.01}}
    was = made(small | {("cross", "importance"): {(1, 2): 0.5}}, importance=0.5)
    now = made(small | {("cross", "importance"): {(1, 2): 0.0}}, importance=0.5)
    (failure,) = diagnose(now, was).failures
    assert (failure.rule, failure.severity) == ("dead", 1)
    pair = {(0, 1, 2): 0.001}
    (failure,) = diagnose(made(divergence=pair, difference=pair), made(divergence=pair)).failures
    assert failure.severity == pytest.approx(1 - 0.001 / 0.5)


def test_every_head_of_a_layer_that_adds_nothing_is_dead():
    silent = made({("cross", "output_share"): {(1, head): 0.0 for head in range(HEADS)}})
    effects = made({("encoder", "loss_zero"): {(0, 0): 0.4}}, loss_zero=0.0)
    for reference in (None, made(), effects):
        failures = diagnose(silent, reference).failures
        assert [(f.rule, f.kind, f.layer, f.heads) for f in failures] == [
            ("dead", "cross", 1, (h,)) for h in range(HEADS)
        ]
        assert all(f.severity == 1 for f in failures)


def test_where_the_reference_measured_nothing_the_heads_beside_serve():
    dead = {("cross", "output_share"): {(1, 2): 0.01}}
    unknown = made({("cross", "output_share"): {(1, head): np.nan for head in range(HEADS)}})
    (failure,) = diagnose(made(dead), unknown).failures
    assert (failure.against, failure.severity) == ("neighbours", pytest.approx(1 - 0.03))


def test_short_sighted_layers_without_a_sound_one_beside_them_are_no_less_told():
    every = {("encoder", "reach"): {(layer, head): 0.05 for layer in range(LAYERS) for head in range(HEADS)}}
    assert [f.severity for f in diagnose(made(every)).failures] == [pytest.approx(1 - 0.05 / 0.1)] * LAYERS


def test_what_could_not_be_measured_is_said():
    assert diagnose(made(), made()).untested == ()
    short = made({("encoder", "reach"): {place: np.nan for place in np.ndindex(LAYERS, HEADS)}})
    (told,) = diagnose(short).untested
    assert (told.rule, told.kind, told.every) == ("short_sighted", "encoder", True)
    assert str(told) == (
        "short_sighted could not be tested on encoder attention (every head): no text has 45 tokens or more, or nothing but "
        "resting places is seen"
    )
    blind = made({("cross", name): {(1, 2): np.nan} for name in ("entropy", "sink", "one_column")})
    told = diagnose(blind).untested
    assert [(u.rule, u.kind, u.heads, u.every) for u in told] == [
        (rule, "cross", ((1, 2),), False) for rule in ("sink", "dispersed", "concentrated")
    ]
    assert "layer 1 head 2" in str(told[0]) and "the keys are hidden" in str(told[0])
    one = made({("encoder", "reach"): {(1, head): np.nan for head in range(HEADS)}})
    (told,) = diagnose(one).untested
    assert told.heads == tuple((1, head) for head in range(HEADS)) and "all weight lies on resting places" in str(told)
    unknown = made({("cross", "output_share"): {place: np.nan for place in np.ndindex(LAYERS, HEADS)}})
    assert [(u.rule, u.kind) for u in diagnose(unknown).untested] == [("dead", "cross")]
    unpaired = made()
    del unpaired.pairs["cross"]
    assert [(u.rule, u.kind) for u in diagnose(unpaired).untested] == [("redundant", "cross")]


def test_every_rule_says_where_it_is_blind():
    empty = Profile({"name": "made", "architecture": "none", "fingerprint": "0"})
    empty.shape_of("cross", LAYERS, HEADS)
    empty.shape_of("encoder", LAYERS, HEADS)
    told = {(u.rule, u.kind) for u in diagnose(empty).untested if u.every}
    assert told == {(r.name, k) for r in RULES for k in ("encoder", "cross")} - {("positional", "cross")}


def test_a_reference_that_cannot_serve_is_refused():
    edited, unpaired, empty = made(), made(), made()
    edited.edits = "[SwitchOff(kind='cross')]"
    del unpaired.pairs["cross"], unpaired.corners["cross"]
    empty.moments = {kind: {} for kind in empty.kinds}
    for reference, said in (
        (edited, "this one was taken under the edits"),
        (unpaired, "heads of cross attention are not compared with each other"),
        (empty, "the reference holds no numbers of encoder attention"),
        (Profile.from_json(empty.to_json()), "the reference holds no numbers"),
    ):
        with pytest.raises(AttentionError, match=said):
            diagnose(made(), reference)


def test_a_reference_of_another_model_is_said():
    assert diagnose(made()).reference is None
    assert diagnose(made(), made()).reference.same_model
    other = made()
    other.model = {"name": "base", "architecture": "none", "fingerprint": "1"}
    of = diagnose(made(), other).reference
    assert (of.name, of.fingerprint, of.same_model) == ("base", "1", False)


def test_the_share_that_the_rule_reads_has_a_name_of_its_own():
    (failure,) = diagnose(made({("cross", "output_share"): {(1, 2): 0.01}})).failures
    names = {number.name for number in failure.numbers}
    assert "equal_share" in names and not names & {"output_share"}
    assert number_label("equal_share") == ("share of the output over an equal share", "times an equal share")
    # No number or threshold of a rule goes by the label of a column that is another number.
    for rule in RULES:
        for name in rule.thresholds:
            assert name in BY_NAME or number_label(name)[0] not in {column.label for column in BY_NAME.values()}


def test_failures_come_with_the_severest_first():
    profile = made(
        {("cross", "output_share"): {(1, 2): 0.02}, ("encoder", "reach"): {(1, h): 0.001 for h in range(HEADS)}},
        divergence={(0, 0, 1): 0.002},
        difference={(0, 0, 1): 0.001},
    )
    failures = diagnose(profile, made()).failures
    severities = [failure.severity for failure in failures]
    assert severities == sorted(severities, reverse=True)
    assert [failure.rule for failure in failures] == ["short_sighted", "redundant", "dead"]


def test_thresholds_may_be_changed():
    profile = made({("encoder", "sink"): {(0, 1): 0.25}})
    assert found(profile) == []
    assert found(profile, thresholds={"sink": {"sink": 0.2}}) == [("sink", "encoder", 0, (1,))]
    with pytest.raises(AttentionError, match="the rule sink has no threshold 'entropy': it has sink"):
        diagnose(profile, thresholds={"sink": {"entropy": 0.2}})
    with pytest.raises(AttentionError, match="there is no rule 'sleepy'"):
        diagnose(profile, thresholds={"sleepy": {}})


def test_a_reference_must_have_the_same_heads():
    other = Profile({"name": "other", "architecture": "none", "fingerprint": "1"})
    other.add("encoder", "first", np.zeros((1, 2, 5)), [0])
    with pytest.raises(AttentionError, match="the reference must have the same layers and heads"):
        diagnose(made(), other)


def test_the_table_of_rules():
    assert tuple(rule.name for rule in RULES if not rule.failure) == OBSERVATIONS
    assert tuple(rule.name for rule in RULES if rule.failure) == FAILURES
    for rule in RULES:
        assert rule.thresholds and rule.label and rule.meaning and rule.confirmation
        assert "because" not in rule.template  # it says what was measured, not why the model says what it says
        assert "may" in rule.meaning or "has a head less" in rule.meaning


def test_every_head_that_is_forbidden_to_read_far_loses_long_range(embedded, some_stories, sound):
    """By a window in self-attention, and by hiding all but the beginning of the source in cross-attention."""
    for edit, kind in (
        (Window(kind="decoder", layer=1, width=2), "decoder"),
        (Forbid(kind="cross", layer=2, after=12), "cross"),
    ):
        edited = profile_of(embedded, some_stories, edits=[edit])
        assert [(f.rule, f.kind, f.layer) for f in diagnose(edited, sound).failures] == [
            ("short_sighted", kind, edit.layer)
        ]
    one = profile_of(embedded, some_stories, edits=[Window(kind="decoder", layer=1, heads=(3,), width=2)])
    assert diagnose(one, sound).failures == ()


def test_a_head_that_is_switched_off_is_dead(embedded, some_stories, sound):
    off = profile_of(embedded, some_stories, edits=[SwitchOff(kind="encoder", layer=1, heads=(4,))])
    (failure,) = diagnose(off, sound).failures
    assert (failure.rule, failure.kind, failure.layer, failure.heads) == ("dead", "encoder", 1, (4,))
    assert failure.severity == 1


@pytest.mark.parametrize(
    "edit",
    [
        SwitchOff(kind="cross", layer=1),
        SwitchOff(kind="encoder", layer=0),
        Force(kind="cross", layer=2, keys=(500,)),
        Force(kind="cross", keys=(500,)),
    ],
    ids=repr,
)
def test_a_layer_that_is_dead_as_a_whole_is_told_head_by_head(embedded, some_stories, sound, edit):
    off = profile_of(embedded, some_stories, edits=[edit])
    layers, heads = off.shapes[edit.kind]
    dead = {(layer, head) for layer in range(layers) if edit.layer in (None, layer) for head in range(heads)}
    for reference in (sound, shipped_profile(), None):
        found = diagnose(off, reference)
        told = [f for f in found.failures if f.rule == "dead" and f.kind == edit.kind]
        assert {(f.layer, *f.heads) for f in told} == dead and all(f.severity == 1 for f in told)
        if isinstance(edit, Force):
            blind = {u.rule: set(u.heads) for u in found.untested if u.kind == "cross"}
            assert blind["concentrated"] == blind["short_sighted"] == dead


def test_three_planted_faults_are_the_first_three_failures(embedded, some_stories, sound, copied):
    """The head that matters most is killed, another is overwritten by a copy, and every head of a layer is windowed."""
    reference = shipped_profile()
    effects = {kind: reference.mean(kind, "loss_zero") for kind in reference.kinds}
    kind = max(effects, key=lambda kind: effects[kind].max())
    layer, head = (int(n) for n in np.unravel_index(effects[kind].argmax(), effects[kind].shape))
    # The other two faults in other layers, so that each can be told from the others.
    places = [(k, n) for k in ("encoder", "decoder") for n in range(reference.shapes[k][0]) if (k, n) != (kind, layer)]
    (copy_kind, copy_layer), (window_kind, window_layer) = places[1], places[-1]
    module = copied()
    plant_dead(module, kind, layer, head)
    plant_copy(module, copy_kind, copy_layer, head=6, of=1)
    broken = load_model(module, tokenizer=embedded.source_reader.tokenizer)
    edits = [Window(kind=window_kind, layer=window_layer, width=2)]
    planted = {
        ("dead", kind, layer, (head,)),
        ("redundant", copy_kind, copy_layer, (1, 6)),
        ("short_sighted", window_kind, window_layer, tuple(range(reference.shapes[window_kind][1]))),
    }
    profile = profile_of(broken, some_stories, edits=edits)
    few = some_stories[::8]
    for _ in gradient_importance(broken, few, edits=edits, into=profile):
        pass
    for _ in ablation_effects(broken, few[:2], by=["zero"], edits=edits, heads=[(kind, layer, head)], into=profile):
        pass
    for against in (reference, None):
        first = diagnose(profile, against).failures[:3]
        assert {(f.rule, f.kind, f.layer, f.heads) for f in first} == planted
        weakest = min(f.severity for f in first)
        assert all(isfinite(f.severity) for f in first)
        for healthy in (sound, reference):
            assert all(f.severity < weakest for f in diagnose(healthy, against).failures)
        for failure in first:
            assert failure.example is not None and failure.example < len(stories())


def test_a_finding_can_be_read_aloud(sound):
    for finding in diagnose(sound).observations:
        text = str(finding)
        assert "{" not in text and "None" not in text
        assert str(finding.layer) in text
    assert torch.get_num_threads() == 1
