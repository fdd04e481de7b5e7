"""Profiles: the numbers of many texts taken in flight, against the same numbers taken the long way; sums that merge and resume."""

import copy
import json
from itertools import islice

import numpy as np
import pytest
import torch

from attention_core.analysis.head_maps import HeadMaps, length_factors
from attention_core.analysis.head_metrics import COLUMNS
from attention_core.analysis.layouts import layouts_of
from attention_core.analysis.norms import head_norms
from attention_core.analysis.profile import profile_of, profile_texts
from attention_core.analysis.profile_sums import Profile, fingerprint, new_profile, shipped_profile
from attention_core.analysis.rows import row_divergence
from attention_core.errors import AttentionError
from attention_core.extract.batches import Example, batched, read_batch
from attention_core.extract.interventions import SwitchOff, Window
from attention_core.extract.means import stories
from attention_core.extract.models import load_model
from attention_core.extract.trace import trace
from tests.analysis.conftest import TEXTS
from tests.extract import forms

FROM_MAPS = [column for column in COLUMNS if column.measure is not None]


def same(first: Profile, second: Profile, tolerance: float = 1e-5) -> None:
    """Both hold the same numbers, to the rounding of differently padded runs."""
    assert (first.texts, first.tokens, first.shapes) == (second.texts, second.tokens, second.shapes)
    for kind in first.kinds:
        assert first.columns(kind) == second.columns(kind)
        for name in first.columns(kind):
            for one, two in ((first.mean, second.mean), (first.spread, second.spread)):
                np.testing.assert_allclose(one(kind, name), two(kind, name), rtol=1e-4, atol=tolerance, err_msg=name)
        for name, sums in first.moments[kind].items():
            assert np.array_equal(sums.count, second.moments[kind][name].count), name
        np.testing.assert_allclose(first.distances(kind), second.distances(kind), atol=tolerance)
        np.testing.assert_allclose(first.differences(kind), second.differences(kind), rtol=1e-3, atol=tolerance)


def test_every_column_is_there_finite_and_not_the_same_for_all_heads(sound):
    for column in COLUMNS:
        if column.source in ("maps", "variability"):
            for kind in column.kinds:
                values = sound.mean(kind, column.name)
                assert values.shape == sound.shapes[kind], column.name
                assert np.isfinite(values).all(), column.name
                assert np.ptp(values) > 1e-6, column.name
                if column.source == "maps":
                    # A head that rests on one token in every text has no spread; the heads of a kind are not all such.
                    spread = sound.spread(kind, column.name)
                    assert (spread >= 0).all() and np.ptp(spread) > 0, column.name


@pytest.mark.parametrize("name", [column.name for column in COLUMNS])
def test_the_shipped_profile_holds_every_column(name):
    shipped = shipped_profile()
    for kind in next(column.kinds for column in COLUMNS if column.name == name):
        values = shipped.mean(kind, name)
        assert np.isfinite(values).all()
        assert np.ptp(values) > 0


def test_the_shipped_profile_is_that_of_the_shipped_model(embedded):
    shipped = shipped_profile()
    assert shipped.model == {
        "name": "embedded",
        "architecture": embedded.report.architecture,
        "fingerprint": fingerprint(embedded),
    }
    assert shipped.edits == "[]"
    # A few paragraphs are longer than the model takes.
    assert 0.98 * len(stories()) <= shipped.texts <= len(stories())
    assert len(shipped.to_json()) < 300_000


def test_numbers_are_those_of_the_maps_taken_one_text_at_a_time(text_model):
    """The long way: a recorded run of each text, replayed layer by layer."""
    profile = profile_of(text_model, TEXTS)
    sums: dict[tuple[str, str], list] = {}
    for text in TEXTS:
        run = trace(text_model, text, exact=True)
        places = layouts_of(text_model, read_batch(text_model, [Example(0, text)]))
        for kind in run.kinds:
            for column in FROM_MAPS:
                if kind not in column.kinds:
                    continue
                found = []
                for layer in range(run.num_layers(kind)):
                    steps, projections = run.steps(kind, layer), run.projections(kind, layer)
                    factors = length_factors(projections.out_weight, projections.num_heads)
                    found.append(
                        column.measure(HeadMaps(places[kind], steps.weights, steps.full_mask(), steps.context, factors))
                    )
                sums.setdefault((kind, column.name), []).append(torch.cat(found).double().numpy())
    for (kind, name), values in sums.items():
        values = np.stack(values)
        mean, spread = profile.mean(kind, name), profile.spread(kind, name)
        known = np.isfinite(values).sum(0)
        assert np.array_equal(profile.moments[kind].get(name).count, known), name
        if known.all():
            np.testing.assert_allclose(mean, np.nanmean(values, 0), rtol=1e-4, atol=1e-5, err_msg=name)
        if (known > 1).all():
            np.testing.assert_allclose(spread, np.nanstd(values, 0, ddof=1), rtol=2e-3, atol=1e-5, err_msg=name)


def test_the_share_of_the_output_is_that_of_the_projected_values(text_model):
    """Norm of the sum of weighted projected values, from the vectors themselves."""
    text = TEXTS[2]
    run = trace(text_model, text, exact=True)
    profile = profile_of(text_model, [text])
    for kind in run.kinds:
        for layer in range(run.num_layers(kind)):
            steps, projections = run.steps(kind, layer), run.projections(kind, layer)
            heads = torch.stack([projections.head(h).out_weight for h in range(projections.num_heads)])
            lengths = (steps.context[0] @ heads.transpose(1, 2)).norm(dim=-1).mean(-1)
            np.testing.assert_allclose(profile.mean(kind, "output_share")[layer], lengths / lengths.sum(), rtol=1e-4)
            # A sum is at most as long as its parts together.
            assert (lengths <= head_norms(steps, projections)[0].sum(-1).mean(-1) + 1e-5).all()


def test_distances_and_differences_between_heads_are_those_of_a_loop(text_model):
    text = "Hello cat"  # at most 8 rows a text are compared: of a short one, all that have a choice
    run = trace(text_model, text, exact=True)
    assert run.source_ids.shape[1] <= 8
    profile = profile_of(text_model, [text])
    for kind in run.kinds:
        layers = [run.steps(kind, layer) for layer in range(run.num_layers(kind))]
        rows = slice(1, None) if kind == "decoder" else slice(None)
        maps = torch.cat([steps.weights[0, :, rows] for steps in layers])
        for g in range(len(maps)):
            expected = [row_divergence(maps[g], maps[h]).mean().item() for h in range(len(maps))]
            np.testing.assert_allclose(profile.distances(kind)[g], expected, atol=1e-5)
        for layer, steps in enumerate(layers):
            projections = run.projections(kind, layer)
            heads = torch.stack([projections.head(h).out_weight for h in range(projections.num_heads)])
            added = (steps.context[0, :, rows] @ heads.transpose(1, 2)).flatten(1)
            apart = torch.cdist(added[None], added[None])[0] ** 2
            both = (added**2).sum(1)[:, None] + (added**2).sum(1)
            np.testing.assert_allclose(profile.differences(kind)[layer], apart / both / 2, rtol=1e-3, atol=1e-5)


def test_variability_by_hand(text_model):
    texts = [TEXTS[0], TEXTS[2], TEXTS[5]]
    profile = profile_of(text_model, texts)
    corners = {kind: [] for kind in profile.kinds}
    for text in texts:
        run = trace(text_model, text, exact=True)
        for kind in run.kinds:
            rows = slice(1, 8) if kind == "decoder" else slice(8)
            corners[kind].append(
                torch.stack([run.steps(kind, n).weights[0, :, rows, :8] for n in range(run.num_layers(kind))])
            )
    for kind, found in corners.items():
        maps = torch.stack(found).double()
        apart = ((maps - maps.mean(0)) ** 2).sum((0, -2, -1)) / (maps**2).sum((0, -2, -1))
        np.testing.assert_allclose(profile.mean(kind, "variability"), apart.sqrt(), rtol=1e-4)


def test_a_head_that_goes_by_position_alone_has_no_variability(text_model):
    profile = profile_of(text_model, TEXTS, edits=[Window(kind="decoder", layer=0, width=0)])
    assert (profile.mean("decoder", "variability")[0] < 1e-6).all()
    assert (profile.mean("decoder", "variability")[1] > 1e-3).all()
    assert (profile.mean("decoder", "self")[0] > 0.5).sum() == 0  # such rows have no choice, and are not counted


@pytest.mark.parametrize("cut", [1, 3, 6])
def test_parts_merged_are_the_whole(text_model, cut):
    whole = profile_of(text_model, TEXTS)
    first = profile_of(text_model, TEXTS[:cut])
    second = profile_of(text_model, TEXTS[cut:], indices=range(cut, len(TEXTS)))
    merged = first.merge(second)
    same(merged, whole)
    same(second.merge(first), whole)
    for kind in whole.kinds:
        for layer, head in np.ndindex(*whole.shapes[kind]):
            assert merged.worst(kind, "first", layer, head, high=True) == whole.worst(
                kind, "first", layer, head, high=True
            )


def test_json_gives_back_the_same_numbers_bit_for_bit(text_model):
    profile = profile_of(text_model, TEXTS[:3])
    text = profile.to_json()
    read = Profile.from_json(text)
    assert read.to_json() == text
    same(read, profile, tolerance=0)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 1}', '{"format": 99}'])
def test_another_text_is_no_profile(text):
    with pytest.raises(AttentionError, match="profile"):
        Profile.from_json(text)


def _spoilt(change):
    return lambda whole: change(whole, next(iter(whole["kinds"].values())))


@pytest.mark.parametrize(
    "spoil",
    [
        _spoilt(lambda whole, part: part.pop("pairs")),
        _spoilt(lambda whole, part: part.pop("corners")),
        _spoilt(lambda whole, part: part["pairs"].__setitem__(1, [0.5])),
        _spoilt(lambda whole, part: part["pairs"].__setitem__(1, "x")),
        _spoilt(lambda whole, part: part["corners"].__setitem__(1, 0)),
        _spoilt(lambda whole, part: part["corners"].__setitem__(0, 1e999)),
        _spoilt(lambda whole, part: part["moments"]["entropy"].__setitem__("total", [[1.0]])),
        _spoilt(lambda whole, part: part.__setitem__("shape", [10**9, 10**9])),
        _spoilt(lambda whole, part: whole.__setitem__("model", "a")),
        _spoilt(lambda whole, part: whole["model"].pop("fingerprint")),
        _spoilt(lambda whole, part: whole["kinds"].__setitem__("sideways", part)),
    ],
)
def test_a_profile_that_lacks_a_part_is_none(text_model, spoil):
    whole = json.loads(profile_of(text_model, TEXTS[:3]).to_json())
    spoil(whole)
    with pytest.raises(AttentionError):
        Profile.from_json(json.dumps(whole))


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, '{"format": ' + "[" * 100_000])
def test_deeply_nested_json_is_no_profile(text):
    with pytest.raises(AttentionError, match="this is not a profile"):
        Profile.from_json(text)


def test_a_stopped_job_goes_on_where_it_stopped(text_model):
    texts = [*TEXTS, *(f"{text} {number}" for number in range(20) for text in TEXTS)]
    steps = list(profile_texts(text_model, texts))
    assert len(steps) > 2
    assert [step.total for step in steps] == [len(texts)] * len(steps)
    assert steps[-1].done == len(texts)
    assert steps[0].seconds_left > steps[-1].seconds_left == 0
    begun = next(profile_texts(text_model, texts))
    saved = Profile.from_json(begun.profile.to_json())
    assert 0 < saved.texts == begun.done < len(texts)
    *_, end = profile_texts(text_model, texts, into=saved, done=begun.done)
    same(end.profile, steps[-1].profile, tolerance=0)


def test_memory_does_not_grow_with_the_texts(text_model):
    few, many = (profile_of(text_model, TEXTS * times) for times in (1, 9))
    assert len(many.to_json()) < 1.3 * len(few.to_json())

    def endless():
        while True:
            yield from TEXTS

    steps = islice(profile_texts(text_model, endless()), 2)
    assert [step.total for step in steps] == [None, None]


def test_batches_hold_texts_of_about_one_length():
    examples = [Example(n, "x" * length) for n, length in enumerate([4, 400, 8, 404, 4, 2000, 12])]
    lengths = [[len(example.source) for example in batch] for batch in batched(examples)]
    assert sorted(length for batch in lengths for length in batch) == [4, 4, 8, 12, 400, 404, 2000]
    assert lengths[0] == [4, 4, 8, 12, 400, 404]


def test_a_text_that_cannot_be_read_is_skipped_and_said_to_be(text_model):
    long = "x" * 10_000
    *_, end = profile_texts(text_model, [TEXTS[0], long, TEXTS[1]])
    same(end.profile, profile_of(text_model, [TEXTS[0], TEXTS[1]]))
    assert [(text.index, str(text).split(",")[0]) for text in end.skipped] == [
        (1, f"the source has {text_model.count_tokens(long)} tokens")
    ]
    with pytest.raises(AttentionError, match="a profile needs at least one text that can be read: the source has"):
        profile_of(text_model, [long])
    with pytest.raises(AttentionError, match="there is none"):
        profile_of(text_model, [])


def test_targets_are_what_the_decoder_reads(text_model):
    targets = [TEXTS[1], TEXTS[0]]
    profile = profile_of(text_model, [TEXTS[0], TEXTS[2]], targets=targets)
    expected = 0
    for source, target in zip((TEXTS[0], TEXTS[2]), targets):
        run = trace(text_model, source, target=target, exact=True)
        expected += run.source_ids.numel() + run.target_ids.numel()
    assert profile.tokens == expected


def test_sums_of_another_model_or_of_other_edits_are_refused(text_model):
    edits = [SwitchOff(kind="cross", layer=0, heads=(0,))]
    profile = profile_of(text_model, TEXTS[:2])
    other = profile_of(load_model(forms.fix_b()), [[0, 5, 7, 2]])
    with pytest.raises(AttentionError, match="these sums are of another model"):
        next(profile_texts(text_model, TEXTS, into=other))
    with pytest.raises(AttentionError, match=r"under the edits \[\], not \[SwitchOff"):
        next(profile_texts(text_model, TEXTS, edits=edits, into=profile))
    with pytest.raises(AttentionError, match="another model"):
        profile.merge(other)
    with pytest.raises(AttentionError, match="there is no column 'nothing'"):
        profile.mean("encoder", "nothing")
    with pytest.raises(AttentionError, match=r"cannot take in \(9, 9\)"):
        profile.add("encoder", "first", np.zeros((1, 9, 9)), [0])


def test_edits_show_in_the_profile_and_leave_the_model_alone(text_model):
    before = profile_of(text_model, TEXTS)
    edits = [SwitchOff(kind="encoder", layer=0, heads=(1,)), Window(kind="decoder", layer=1, width=1)]
    edited = profile_of(text_model, TEXTS, edits=edits)
    assert edited.mean("encoder", "output_share")[0, 1] == 0
    assert (edited.mean("decoder", "distance")[1] < before.mean("decoder", "distance")[1]).all()
    same(profile_of(text_model, TEXTS), before, tolerance=0)


@pytest.mark.parametrize("name", ["bert", "albert", "distilbert", "t5", "gpt2", "bart_bare"])
def test_other_families(name):
    model = load_model(forms.built(forms.BY_NAME[name]))
    profile = profile_of(model, [[0, 7, 9, 11, 2], [0, 5, 2]])
    assert profile.kinds == model.kinds
    for kind in profile.kinds:
        assert np.isfinite(profile.mean(kind, "entropy")).all()
        assert np.isfinite(profile.mean(kind, "first")).all()
        assert np.isnan(profile.mean(kind, "punctuation")).all()  # ids alone do not say what punctuation is
        assert not {"loss_zero", "importance"} & set(profile.columns(kind))


def test_the_language_head_does_not_run(text_model):
    ran = []
    handle = text_model.module.lm_head.register_forward_hook(lambda *_: ran.append(True))
    try:
        profile_of(text_model, TEXTS[:2])
    finally:
        handle.remove()
    assert not ran


def test_a_fingerprint_tells_weights_apart(text_model):
    one = load_model(copy.deepcopy(text_model.module))
    assert fingerprint(one) == fingerprint(text_model)
    with torch.no_grad():
        one.module.model.encoder.layers[0].self_attn.v_proj.bias[3] += 1e-6
    assert fingerprint(one) != fingerprint(text_model)
    assert new_profile(one).model["fingerprint"] == fingerprint(one)
