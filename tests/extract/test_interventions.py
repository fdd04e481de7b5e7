"""Each edit against an independent way to do it, in one pass and while the model writes."""

import copy
import threading
from concurrent.futures import ThreadPoolExecutor
from math import sqrt

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AttentionInterface, EncoderDecoderCache, StaticCache

from attention_core import AttentionError, load_model, trace
from attention_core.extract import interventions
from attention_core.extract.inputs import Generation
from attention_core.extract.interventions import (
    EDITS,
    Editing,
    Forbid,
    Force,
    FromScratch,
    Identity,
    Means,
    Previous,
    Scale,
    SwitchOff,
    Temperature,
    Uniform,
    Untrained,
    Window,
    edits_from_text,
    edits_to_text,
)
from attention_core.extract.session import opened
from tests.extract import forms

SOURCE, TARGET = forms.ids(forms.SOURCE_LEN), forms.ids(forms.TARGET_LEN, seed=2)
FORM = forms.BY_NAME["bart_unequal"]  # 3 encoder layers of 4 heads of 6, 2 decoder layers of 2 heads of 12
HEAD_DIM = {"encoder": 6, "decoder": 12, "cross": 12}
HEADS = {"encoder": (1, 3), "decoder": (1,), "cross": (0,)}
LAYER = 1


def inputs(padded: bool = True) -> dict:
    found = {"input_ids": SOURCE, "decoder_input_ids": TARGET, "use_cache": False}
    return found | {"attention_mask": forms.padded_right(forms.SOURCE_LEN).long()} if padded else found


def means_of(model) -> Means:
    generator = torch.Generator().manual_seed(5)
    vectors = {
        (site.kind, site.layer): torch.randn(site.num_heads, HEAD_DIM[site.kind], generator=generator)
        for site in model.sites
    }
    return Means(vectors, {})


@pytest.fixture(scope="module")
def model():
    return load_model(forms.built(FORM))


def edited_logits(model, edits, means=None) -> torch.Tensor:
    mask = forms.padded_right(forms.SOURCE_LEN)
    return trace(model, SOURCE, attention_mask=mask, target=TARGET, edits=edits, means=means).logits()


def attention(module, kind: str):
    layer = (module.model.encoder if kind == "encoder" else module.model.decoder).layers[LAYER]
    return layer.encoder_attn if kind == "cross" else layer.self_attn


def slices(kind: str):
    size = HEAD_DIM[kind]
    return [slice(head * size, (head + 1) * size) for head in HEADS[kind]]


def turned(part, rows, matrix) -> None:
    part.weight[rows], part.bias[rows] = matrix @ part.weight[rows], matrix @ part.bias[rows]


def change_weights(module, kind: str, edit, means) -> None:
    """The same thing done to the model's weights."""
    found = attention(module, kind)
    for head, rows in zip(HEADS[kind], slices(kind)):
        size = HEAD_DIM[kind]
        if isinstance(edit, SwitchOff):
            if edit.by == "mean":
                found.out_proj.bias += found.out_proj.weight[:, rows] @ means.vectors[kind, LAYER][head]
            found.out_proj.weight[:, rows] = 0
        elif isinstance(edit, Uniform):
            turned(found.q_proj, rows, torch.zeros(size, size))
        elif isinstance(edit, Temperature):
            turned(found.q_proj, rows, torch.eye(size) / edit.value)
        elif isinstance(edit, Scale):
            factor = {"d_model": sqrt(size) / sqrt(24), "none": sqrt(size), "head_dim": 1.0}.get(edit.rule)
            turned(found.q_proj, rows, torch.eye(size) * (edit.rule * sqrt(size) if factor is None else factor))
        elif isinstance(edit, Untrained):
            for side, part in enumerate((found.q_proj, found.k_proj)):
                turned(part, rows, interventions._turn(size, (edit.seed, head, side)).float().T)


BY_WEIGHTS = [
    SwitchOff(kind="encoder"),
    SwitchOff(kind="encoder", by="mean"),
    Uniform(kind="encoder"),
    Temperature(kind="encoder", value=3.0),
    Scale(kind="encoder"),
    Scale(kind="encoder", rule="none"),
    Scale(kind="encoder", rule=0.25),
    Untrained(kind="encoder", seed=3),
]


@pytest.mark.parametrize("kind", forms.KINDS)
@pytest.mark.parametrize("edit", BY_WEIGHTS, ids=repr)
def test_an_edit_is_what_changed_weights_do(model, edit, kind):
    edit = type(edit)(**{**vars(edit), "kind": kind, "layer": LAYER, "heads": HEADS[kind]})
    means = means_of(model)
    twin = forms.built(FORM)
    twin.set_attn_implementation("eager")
    with torch.no_grad():
        plain = twin(**inputs()).logits
        change_weights(twin, kind, edit, means)
        expected = twin(**inputs()).logits
    found = edited_logits(model, [edit], means)
    assert (expected - plain).abs().max() > 1e-3
    torch.testing.assert_close(found, expected, atol=2e-5, rtol=1e-5)


def test_a_turn_is_orthogonal_and_another_for_each_head_side_and_seed():
    turns = [interventions._turn(7, seeds) for seeds in ((0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1))]
    for turn in turns:
        torch.testing.assert_close(turn @ turn.T, torch.eye(7, dtype=torch.float64))
    assert all(not torch.allclose(a, b) for i, a in enumerate(turns) for b in turns[:i])
    assert torch.equal(turns[0], interventions._turn(7, (0, 0, 0)))


# By hand: the library's eager attention, written out cell by cell, with a rule for the cells or the rows.


def by_hand(rule):
    """An attention function that asks a rule(kind, layer, head, row, weights or None) what a row may see or weigh."""

    def attend(module, query, key, value, attention_mask, scaling=None, dropout=0.0, **_):
        batch, heads, rows, size = query.shape
        kind, layer = module.by_hand
        context = torch.zeros(batch, rows, heads, size)
        for text in range(batch):
            for head in range(heads):
                for row in range(rows):
                    seen = [
                        column
                        for column in range(key.shape[2])
                        if attention_mask is None or attention_mask[text, 0, row, column] > -1
                    ]
                    shares = rule(kind, layer, head, row, seen)
                    if shares is None:
                        shares = {column: None for column in seen}
                    if not shares:
                        continue
                    columns = list(shares)
                    weights = torch.stack(
                        [query[text, head, row] @ key[text, head, c] * size**-0.5 for c in columns]
                    ).softmax(0)
                    if None not in shares.values():
                        weights = torch.tensor([shares[c] for c in columns])
                    context[text, row, head] = weights @ value[text, head, columns]
        return context, None

    return attend


def named(edit, kind, layer, head) -> bool:
    return kind == edit.kind and edit.layer in (None, layer) and (edit.heads is None or head in edit.heads)


def hides(edit, row, column) -> bool:
    if isinstance(edit, Window):
        return abs(row - column) > edit.width
    if edit.queries is not None and row not in edit.queries:
        return False
    in_keys = column in edit.keys or (edit.after is not None and column > edit.after)
    return in_keys if isinstance(edit, Forbid) else not in_keys


def rule_of(edit):
    def rule(kind, layer, head, row, seen):
        if not named(edit, kind, layer, head):
            return None
        if isinstance(edit, Previous):
            return {row - 1: 1.0} if row - 1 in seen else {row: 1.0} if row in seen else {}
        if isinstance(edit, Identity):
            return {row: 1.0} if row in seen else {}
        return {column: None for column in seen if not hides(edit, row, column)}

    return rule


BY_HAND = [
    *(Previous(kind=kind, layer=1, heads=(1,)) for kind in ("encoder", "decoder")),
    *(Identity(kind=kind, layer=1, heads=(1,)) for kind in ("encoder", "decoder")),
    *(Window(kind=kind, width=1) for kind in ("encoder", "decoder")),
    *(Forbid(kind=kind, keys=(0, 2)) for kind in forms.KINDS),
    *(Forbid(kind=kind, keys=(1,), after=3, queries=(2, 4), heads=(0,)) for kind in forms.KINDS),
    *(Force(kind=kind, keys=(1, 4), layer=0) for kind in forms.KINDS),
    Force(kind="cross", after=3, queries=(1, 3)),
]


@pytest.mark.parametrize("edit", BY_HAND, ids=repr)
def test_an_edit_is_what_an_attention_written_cell_by_cell_does(model, edit):
    twin = forms.built(FORM)
    AttentionInterface.register("by_hand", by_hand(rule_of(edit)))
    AttentionInterface.register("untouched_by_hand", by_hand(lambda *_: None))
    for site in model.sites:
        twin.get_submodule(site.name).by_hand = (site.kind, site.layer)
    logits = {}
    for name in ("eager", "untouched_by_hand", "by_hand"):
        twin.config._attn_implementation = "eager"  # the library's additive masks
        twin.set_attn_implementation("eager")
        for module in twin.modules():
            if hasattr(module, "by_hand"):
                module.config = copy.copy(module.config)
                module.config._attn_implementation = name
        with torch.no_grad():
            logits[name] = twin(**inputs()).logits
    torch.testing.assert_close(logits["untouched_by_hand"], logits["eager"], atol=2e-5, rtol=1e-5)
    found = edited_logits(model, [edit])
    assert (logits["by_hand"] - logits["eager"]).abs().max() > 1e-3
    torch.testing.assert_close(found, logits["by_hand"], atol=2e-5, rtol=1e-5)


def test_a_forbidden_word_of_the_encoder_is_what_an_edited_mask_does_to_the_eager_model(model):
    twin = forms.built(FORM)
    twin.set_attn_implementation("eager")
    mask = torch.zeros(forms.BATCH, 1, forms.SOURCE_LEN, forms.SOURCE_LEN)
    mask[..., 3] = torch.finfo(torch.float32).min
    with torch.no_grad():
        states = twin.get_encoder()(SOURCE, attention_mask=mask)
        expected = twin(encoder_outputs=states, decoder_input_ids=TARGET, use_cache=False).logits
    found = trace(model, SOURCE, target=TARGET, edits=[Forbid(kind="encoder", keys=(3,))]).logits()
    torch.testing.assert_close(found, expected, atol=2e-5, rtol=1e-5)


# All kinds of edits, while the model writes

GENERATED = {
    "SwitchOff": [
        SwitchOff(kind="decoder", layer=0, heads=(1,)),
        SwitchOff(kind="cross", layer=1, by="mean"),
        SwitchOff(kind="encoder", layer=2),
    ],
    "Uniform": [Uniform(kind=kind, layer=0) for kind in forms.KINDS],
    "Previous": [Previous(kind="decoder"), Previous(kind="encoder", heads=(2,))],
    "Identity": [Identity(kind="decoder", layer=1), Identity(kind="encoder")],
    "Temperature": [Temperature(kind=kind, value=4.0) for kind in forms.KINDS],
    "Scale": [Scale(kind=kind, rule=2.0, heads=(1,)) for kind in forms.KINDS],
    "Forbid": [
        Forbid(kind="decoder", keys=(1, 3), queries=(4, 5, 6)),
        Forbid(kind="cross", after=2, queries=(3, 4, 5, 6, 7)),
        Forbid(kind="encoder", keys=(2,)),
    ],
    "Force": [Force(kind="decoder", keys=(0, 2, 5)), Force(kind="cross", keys=(3, 4), queries=(2, 5))],
    "Window": [Window(kind="decoder", width=1), Window(kind="encoder", layer=1, width=2)],
    "FromScratch": [FromScratch(kind=kind) for kind in forms.KINDS],
    "Untrained": [Untrained(kind=kind, layer=0) for kind in forms.KINDS],
}  # fmt: skip
WRITTEN = 9


def test_every_edit_has_a_case_of_generation():
    assert set(GENERATED) == set(EDITS)
    assert all(type(edit).__name__ == name for name, edits in GENERATED.items() for edit in edits)


def written(model, edits, means, **how) -> torch.Tensor:
    mask = forms.padded_right(forms.SOURCE_LEN).long()
    # The end token would end a random model's text at once.
    settings = {"max_new_tokens": WRITTEN, "min_new_tokens": WRITTEN, "do_sample": False} | how
    with torch.no_grad(), opened(Editing(model, edits, means)):
        return model.module.generate(SOURCE, attention_mask=mask, **settings)


def recomputed(model, edits, means) -> torch.Tensor:
    """Greedy, each step from the start, without a cache: no offset is ever needed."""
    mask = forms.padded_right(forms.SOURCE_LEN).long()
    ids = torch.full((forms.BATCH, 1), model.module.config.decoder_start_token_id)
    end = model.module.config.eos_token_id
    for step in range(WRITTEN):
        with torch.no_grad(), opened(Editing(model, edits, means)):
            logits = model.module(SOURCE, attention_mask=mask, decoder_input_ids=ids, use_cache=False).logits[:, -1]
        logits[:, end] = -torch.inf
        forced = model.module.generation_config.forced_eos_token_id
        last = step == WRITTEN - 1 and forced is not None
        ids = torch.cat([ids, torch.full_like(ids[:, :1], forced) if last else logits.argmax(-1, keepdim=True)], 1)
    return ids


CASES = [pytest.param(edit, id=repr(edit)) for edits in GENERATED.values() for edit in edits]


@pytest.mark.parametrize("edit", CASES)
def test_generation_with_an_edit_equals_recomputation_without_a_cache(model, edit):
    means = means_of(model)
    expected = recomputed(model, [edit], means)
    assert torch.equal(written(model, [edit], means), expected)
    assert torch.equal(written(model, [edit], means, cache_implementation="static"), expected)
    assert torch.equal(written(model, [edit], means, use_cache=False), expected)
    beams = [
        written(model, [edit], means, num_beams=3, num_return_sequences=3, use_cache=cache, early_stopping=True)
        for cache in (True, False)
    ]
    assert torch.equal(*beams)
    # It changed something: the logits, or, for the edit that changes nothing, what computes them.
    plain, changed = (trace(model, SOURCE, target=expected, edits=some, means=means) for some in ((), [edit]))
    if isinstance(edit, FromScratch):
        torch.testing.assert_close(changed.logits(), plain.logits(), atol=2e-5, rtol=1e-5)
        assert not torch.equal(changed.logits(), plain.logits())
    else:
        assert (changed.logits() - plain.logits()).abs().max() > 1e-3


def test_the_written_target_of_a_trace_is_written_under_its_edits(model):
    edits = [Uniform(kind="encoder"), SwitchOff(kind="cross", layer=0)]
    run = trace(model, SOURCE, generate=Generation(max_new_tokens=WRITTEN), edits=edits)
    plain = trace(model, SOURCE, generate=Generation(max_new_tokens=WRITTEN))
    assert run.target_ids.tolist() != plain.target_ids.tolist()
    # Teacher-forced on what it wrote, each token is the most likely one again.
    real = run.target.real.clone()
    assert real[:, 0].all()
    likeliest = run.logits().argmax(-1)
    agreed = (likeliest[:, :-1] == run.target_ids[:, 1:]) | ~real[:, 1:]
    assert agreed.all()


# Sessions


def test_no_edits_is_the_plain_run_bit_for_bit(model):
    plain = trace(model, SOURCE, target=TARGET)
    assert torch.equal(trace(model, SOURCE, target=TARGET, edits=()).logits(), plain.logits())
    with torch.no_grad():
        expected = model.module(**inputs(padded=False)).logits
        with opened(Editing(model, ())):
            assert torch.equal(model.module(**inputs(padded=False)).logits, expected)
    assert torch.equal(plain.logits(), expected)


def test_visitors_with_different_edits_see_only_their_own(model):
    visits = [
        (),
        (SwitchOff(kind="cross", layer=1, heads=(0,)),),
        (Previous(kind="decoder"),),
        (Forbid(kind="encoder", keys=(2, 3)), Temperature(kind="cross", value=2.0)),
    ]

    def seen(edits) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        run = trace(model, SOURCE, target=TARGET, edits=edits)
        return run.logits(), run.steps("decoder", 1).weights, written(model, edits, None, num_beams=2)

    alone = [seen(edits) for edits in visits]
    start = threading.Barrier(len(visits))

    def visitor(number: int) -> int:
        start.wait()
        return sum(all(map(torch.equal, seen(visits[number]), alone[number])) for _ in range(10))

    with ThreadPoolExecutor(len(visits)) as pool:
        assert list(pool.map(visitor, range(len(visits)))) == [10] * len(visits)


def test_the_offset_of_a_generation_does_not_reach_a_later_run(model):
    edits = [Previous(kind="decoder"), Previous(kind="encoder")]
    expected = trace(model, SOURCE, target=TARGET, edits=edits).logits()
    session = Editing(model, edits)
    with torch.no_grad(), opened(session):
        model.module.generate(SOURCE, max_new_tokens=6, min_new_tokens=6, do_sample=False)
        assert session._offset > 0
        found = model.module(**inputs(padded=False)).logits
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-6)


def test_a_static_cache_that_is_longer_than_the_text_has_the_right_offset(model):
    edits = [Previous(kind="decoder"), Window(kind="decoder", width=1)]
    expected = trace(model, SOURCE, target=TARGET, edits=edits).logits()
    config = model.module.config.get_text_config(decoder=True)
    cache = EncoderDecoderCache(
        StaticCache(config, max_cache_len=11), StaticCache(config, max_cache_len=forms.SOURCE_LEN)
    )
    found = []
    with torch.no_grad(), opened(Editing(model, edits)):
        states = model.module.get_encoder()(SOURCE)
        for step in range(forms.TARGET_LEN):
            made = model.module(
                encoder_outputs=states, decoder_input_ids=TARGET[:, step : step + 1], cache=cache, use_cache=True
            )
            found.append(made.logits)
    torch.testing.assert_close(torch.cat(found, 1), expected, atol=2e-5, rtol=1e-5)


# What a trace shows


def test_the_stages_of_an_edited_run_are_what_it_computed(model):
    """The context that is shown, put through the rest of the layer by hand, is what the next module was given."""
    edit = Forbid(kind="decoder", layer=0, keys=(1,))
    run = trace(model, SOURCE, target=TARGET, edits=[edit], exact=True)
    steps = run.steps("decoder", 0)
    assert not steps.mask[..., 2:, 1].any() and (steps.weights[..., 2:, 1] == 0).all()
    layer = model.module.model.decoder.layers[0]
    with torch.no_grad():
        hidden = run.projections("decoder", 0).query_input + steps.output
        expected = layer.self_attn_layer_norm(hidden)
    torch.testing.assert_close(run.projections("cross", 0).query_input, expected, atol=1e-6, rtol=1e-6)
    one = run.steps("decoder", 0, heads=[1])
    assert torch.equal(one.weights[:, 0], steps.weights[:, 1]) and torch.equal(one.mask[:, 0], steps.mask[:, 1])
    pooled = run.overview("decoder")
    torch.testing.assert_close(torch.from_numpy(pooled.weights[0]), steps.weights[0])


def test_heads_with_different_scales_say_so(model):
    edits = [
        Temperature(kind="cross", layer=0, heads=(1,), value=4.0),
        Scale(kind="cross", layer=0, heads=(1,), rule=0.5),
    ]
    steps = trace(model, SOURCE, target=TARGET, edits=edits).steps("cross", 0)
    assert steps.scale.flatten().tolist() == pytest.approx([12**-0.5, 0.5])
    torch.testing.assert_close(steps.scores / steps.scale, steps.query @ steps.key.mT, atol=1e-5, rtol=1e-5)
    one = trace(model, SOURCE, target=TARGET, edits=edits).steps("cross", 0, heads=[1])
    assert one.scale == 0.5
    torch.testing.assert_close(one.weights[:, 0], steps.weights[:, 1])


@pytest.mark.parametrize(
    ("edits", "heads"),
    [
        ([Forbid(kind="decoder", keys=(0,))], "0.0, 0.1, 1.0, 1.1"),
        (
            [Force(kind="decoder", layer=1, heads=(1,), keys=(0,)), Forbid(kind="decoder", layer=1, keys=(0,))],
            "1.0, 1.1",
        ),
    ],
)
def test_a_query_that_is_left_nothing_to_see_is_said(model, edits, heads):
    run = trace(model, SOURCE, target=TARGET, edits=edits)
    (notice,) = run.notices
    rows = {1: forms.BATCH, 2: forms.BATCH * forms.TARGET_LEN}[len(edits)]
    assert notice.values["heads"] == heads and notice.values["count"] == rows
    steps = run.steps("decoder", 1, heads=[1])
    assert (steps.weights[:, :, 0] == 0).all() and (steps.context[:, :, 0] == 0).all()
    assert steps.weights.isfinite().all() and run.logits().isfinite().all()


def test_padded_queries_do_not_count_as_left_without_a_key(model):
    mask = forms.padded_right(forms.SOURCE_LEN)
    edits = [Force(kind="encoder", keys=(5, 6))]  # the second text has 5 real tokens
    (notice,) = trace(model, SOURCE, attention_mask=mask, target=TARGET, edits=edits).notices
    assert notice.values["count"] == 5 and notice.values["tokens"] == 12


def test_a_query_that_saw_nothing_before_is_not_counted_as_emptied(model):
    mask = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]])  # padded on the left: its first two rows see nothing
    run = trace(model, SOURCE, target=TARGET, target_mask=mask, edits=[Forbid(kind="decoder", keys=(2,))])
    (notice,) = (notice for notice in run.notices if "nothing" not in notice.template and "edit" in notice.template)
    assert notice.values["count"] == 1  # position 2 of the first text saw position 2 alone
    call = run.call("decoder", 0)
    assert call.emptied().any(1).sum(-1).tolist() == [1, 0]


@pytest.mark.parametrize("name", ["bert", "distilbert", "bert_decoder", "gpt2", "mbart", "t5", "albert"])
def test_other_families_take_edits(name):
    form = forms.BY_NAME[name]
    other = load_model(forms.built(form))
    kind = other.kinds[0]
    fed = {} if not other.is_encoder_decoder else {"target": TARGET}
    plain, same, off = (
        trace(other, SOURCE, edits=edits, **fed).logits()
        for edits in ((), [FromScratch(kind=kind)], [SwitchOff(kind=kind, heads=(1,))])
    )
    torch.testing.assert_close(plain, same, atol=5e-5, rtol=1e-4)
    assert (off - plain).abs().max() > 1e-3


# Edits as values


def test_the_python_of_an_edit_makes_it_again():
    edits = (
        SwitchOff(kind="cross", layer=2, heads=(5,)),
        Scale(kind="encoder", rule=0.5),
        Forbid(kind="decoder", keys=[3, 1]),
    )
    text = edits_to_text(edits)
    assert (
        text
        == "[SwitchOff(kind='cross', layer=2, heads=(5,)), Scale(kind='encoder', rule=0.5), Forbid(kind='decoder', keys=(1, 3))]"
    )
    assert edits_from_text(text) == edits == tuple(eval(text, dict(EDITS)))
    assert len({*edits, *edits_from_text(text)}) == 3


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_edits_survive_a_link(data):
    numbers = st.integers(0, 40)
    some = st.lists(numbers, min_size=1, max_size=4)
    edit = data.draw(st.sampled_from(list(EDITS.values())))
    extra = {
        "SwitchOff": {"by": st.sampled_from(["zero", "mean"])},
        "Temperature": {"value": st.floats(0.01, 100)},
        "Scale": {"rule": st.one_of(st.sampled_from(["d_model", "none"]), st.floats(0.01, 9))},
        "Forbid": {"keys": some, "after": st.none() | numbers, "queries": st.none() | some},
        "Force": {"keys": some, "after": st.none() | numbers, "queries": st.none() | some},
        "Window": {"width": numbers},
        "Untrained": {"seed": numbers},
    }.get(edit.__name__, {})
    made = edit(
        kind=data.draw(st.sampled_from(edit.kinds)),
        layer=data.draw(st.none() | numbers),
        heads=data.draw(st.none() | some),
        **{name: data.draw(values) for name, values in extra.items()},
    )
    assert edits_from_text(edits_to_text([made, made])) == (made, made)


@pytest.mark.parametrize(
    "text",
    [
        "", "[", "SwitchOff(kind='cross')", "[print('x')]", "[__import__('os').system('true')]", "[SwitchOff('cross')]",
        "[SwitchOff(kind=print(1))]", "[SwitchOff(kind='cross', what=1)]", "[Edit(kind='cross')]", "[SwitchOff(**{})]", "[1]",
        "[SwitchOff(kind='cross', heads=(1 for _ in '1'))]", "(" * 500,
    ],
)  # fmt: skip
def test_what_is_no_list_of_edits_is_refused_and_never_run(text):
    with pytest.raises(AttentionError, match="edits are written as a list"):
        edits_from_text(text)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Previous(kind="cross"), "Previous is defined for encoder and decoder attention, not for 'cross'"),
        (lambda: Window(kind="cross"), "not for 'cross'"),
        (lambda: Identity(kind="cross"), "not for 'cross'"),
        (lambda: SwitchOff(kind="both"), "not for 'both'"),
        (lambda: SwitchOff(kind="cross", by="one"), "by must be one of zero, mean, not 'one'"),
        (lambda: SwitchOff(kind="cross", layer=-1), "layer must be whole numbers from 0, not -1"),
        (lambda: SwitchOff(kind="cross", layer=True), "layer must be"),
        (lambda: SwitchOff(kind="cross", heads=()), "heads must name at least one number"),
        (lambda: SwitchOff(kind="cross", heads=3), "heads must be a list of whole numbers, not 3"),
        (lambda: Temperature(kind="cross", value=0), "the temperature must be a number from 1e-06 to 1e+06, not 0"),
        (lambda: Scale(kind="cross", rule="head"), "the rule of the scale must be one of"),
        (lambda: Scale(kind="cross", rule=float("inf")), "the scale must be a number from 1e-06 to 1e+06, not inf"),
        (lambda: Forbid(kind="cross"), "keys must name at least one number"),
        (lambda: Forbid(kind="cross", keys=(1,), queries=()), "queries must name at least one number"),
        (lambda: Window(kind="encoder", width=-1), "width must be whole numbers from 0, not -1"),
        (lambda: Window(kind="encoder", width=10**25), "width must be whole numbers up to 2147483647, not 1000000"),
        (lambda: Forbid(kind="cross", after=2**31), "after must be whole numbers up to 2147483647, not 2147483648"),
        (lambda: Forbid(kind="cross", keys=(10**25,)), "keys must be whole numbers up to 2147483647"),
        (lambda: Force(kind="cross", keys=(1,), queries=(10**25,)), "queries must be whole numbers up to 2147483647"),
        (lambda: Untrained(kind="cross", seed=10**25), "seed must be whole numbers up to 2147483647"),
        (lambda: SwitchOff(kind="cross", layer=10**25), "layer must be whole numbers up to 2147483647"),
        (lambda: SwitchOff(kind="cross", heads=(10**9999,)), "2147483647, not a number of thousands of digits"),
        (lambda: Temperature(kind="cross", value=10**400), "the temperature must be a number from 1e-06 to 1e"),
        (lambda: Temperature(kind="cross", value=9e-7), "the temperature must be a number from 1e-06"),
        (lambda: Temperature(kind="cross", value=float("nan")), "the temperature must be a number from 1e-06"),
        (lambda: Scale(kind="cross", rule=1e308), "the scale must be a number from 1e-06"),
        (lambda: Scale(kind="cross", rule=1.1e6), "the scale must be a number from 1e-06"),
        (lambda: SwitchOff(kind="x" * 10**6), "not for 'xxxxxxxxxx"),
    ],
)
def test_an_edit_that_cannot_be_is_said(make, said):
    with pytest.raises(AttentionError) as error:
        make()
    assert said in str(error.value)


def test_an_edit_of_what_the_model_does_not_have_is_said(model):
    for edit, said in (
        (SwitchOff(kind="cross", layer=2), "names a layer beyond the last one, 1"),
        (SwitchOff(kind="decoder", heads=(2,)), "names a head beyond the last one, 1"),
        ("off", "edits must be of SwitchOff, "),
    ):
        with pytest.raises(AttentionError, match=said):
            trace(model, SOURCE, target=TARGET, edits=[edit])
    with pytest.raises(AttentionError, match="names cross attention, and this model has encoder"):
        trace(load_model(forms.built(forms.BY_NAME["bert"])), SOURCE, edits=[SwitchOff(kind="cross")])
    with pytest.raises(AttentionError, match="needs the mean contexts"):
        trace(model, SOURCE, target=TARGET, edits=[SwitchOff(kind="cross", by="mean")])


def test_an_edit_leaves_the_model_as_it_was(model):
    before = {name: value.clone() for name, value in model.module.state_dict().items()}
    plain = trace(model, SOURCE, target=TARGET).logits()
    trace(model, SOURCE, target=TARGET, edits=[SwitchOff(kind="encoder"), Scale(kind="cross")])
    assert torch.equal(trace(model, SOURCE, target=TARGET).logits(), plain)
    assert all(torch.equal(value, before[name]) for name, value in model.module.state_dict().items())


@pytest.mark.parametrize("end", [1e-6, 1e6])
@pytest.mark.parametrize("kind", HEADS)
def test_the_ends_of_temperature_and_scale_keep_every_number_finite(model, kind, end):
    for edit in (Temperature(kind=kind, value=end), Scale(kind=kind, rule=end)):
        assert edits_from_text(edits_to_text([edit])) == (edit,)
        assert edited_logits(model, [edit]).isfinite().all()


@pytest.mark.parametrize("value", [1e-6, 1e6])
def test_temperatures_that_add_up_to_an_infinite_score_are_refused(model, value):
    edits = [Temperature(kind="cross", heads=(1,), value=value)]
    assert edited_logits(model, edits * 2).isfinite().all()
    with pytest.raises(AttentionError, match="the edits of head 1 multiply its dot products with"):
        edited_logits(model, edits * 60)


@pytest.mark.parametrize(
    "argument", ["width={}", "after={}", "keys=({},)", "value={}", "rule={}", "seed={}", "layer={}", "heads=({},)"]
)
@pytest.mark.parametrize("number", ["1" + "0" * 25, "1" + "0" * 400, "0x1" + "0" * 9000, "1e999", "-1e999", "1j"])
def test_a_number_that_no_edit_can_hold_is_refused_in_one_short_sentence(argument, number):
    name = argument.split("=")[0]
    edit = {"width": "Window", "after": "Forbid", "keys": "Force", "value": "Temperature", "rule": "Scale"}
    with pytest.raises(AttentionError) as error:
        edits_from_text(f"[{edit.get(name, 'Untrained')}(kind='encoder', {argument.format(number)})]")
    assert len(str(error.value)) < 250
