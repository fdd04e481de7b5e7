"""Head against head: two heads, two texts, two models, all heads of a kind, and the best match of a custom layer."""

from dataclasses import replace

import numpy as np
import streamlit as st
import torch

from attention_core.analysis.compare import check_tokens, cluster_order, match_heads
from attention_core.analysis.reading import read_map
from attention_core.analysis.words import align_words, aligned_maps
from attention_core.errors import AttentionError
from pages.ui import cache, compare_run
from pages.ui.cells import number, show_table
from pages.ui.compare_maps import Sides, numbers_table, side_by_side
from pages.ui.compare_run import Place
from pages.ui.compare_settings import change, untrained
from pages.ui.explore_controls import missing_sentence
from pages.ui.explore_head import Window
from pages.ui.explore_pictures import narrow, show_panels
from pages.ui.explore_run import Explored, check_hub_id, explored, loaded, model_choices
from pages.ui.explore_settings import OWN, typed_name
from pages.ui.explore_views import Table
from pages.ui.head_controls import HeadKeys, head_selectors, settle_head
from pages.ui.layout import current_palette
from pages.ui.page_tools import say
from pages.ui.stages import panel
from pages.ui.text import _

MOST_ROWS = 12


def show_heads(place: Place, head: int) -> Table:
    """What is set against what, and the pair."""
    pairs = {
        "matrix": _("All heads"),
        "heads": _("Two heads"),
        "texts": _("Two texts"),
        "models": _("Two models"),
        "match": _("Best match"),
    }
    st.segmented_control(
        _("What is compared"),
        list(pairs),
        format_func=pairs.get,
        key="pair",
        required=True,
        label_visibility="collapsed",
    )
    shown = {
        "matrix": show_matrix,
        "heads": show_two_heads,
        "texts": show_two_texts,
        "models": show_two_models,
        "match": show_match,
    }
    return shown[st.session_state["pair"]](place, head)


def show_matrix(place: Place, head: int) -> Table:
    """Every head of the kind against every other; a click opens the pair."""
    run, kind = place.trace, place.kind
    with st.spinner(_("Comparing every head with every other…")):
        distances, step = compare_run.distances(place.explored, kind)
    if not np.isfinite(distances).all():
        raise AttentionError("no row of these maps sees two keys, so heads cannot be told apart: take a longer text")
    heads = run.num_heads(kind)
    order = cluster_order(distances)
    names = [f"{n // heads}.{n % heads}" for n in order]
    values = distances[np.ix_(order, order)]
    top = float(values.max()) or 1.0
    made = panel(
        "weights",
        values.astype(np.float32),
        current_palette(),
        row_labels=names,
        column_labels=names,
        limits=(0.0, top),
        title=_("Divergence between heads"),
    )
    made = replace(made, key="matrix", row_title=_("head"), column_title=_("head"))

    def open_pair(_key: str, row: int, column: int) -> None:
        state, first, second = st.session_state, order[row], order[column]
        state["layer_a"], state["head_a"] = divmod(first, heads)
        state["kind_b"] = kind
        state["layer_b"], state["head_b"] = divmod(second, heads)
        state["pair"] = "heads"

    chosen = order.index(place.layer * heads + head)
    left, right = (st.container(), st.container()) if narrow() else st.columns([3, 2], gap="large")
    with left:
        everything = Window((0, len(order)), (0, len(order)), True)
        marks = {"matrix": (chosen, None)}
        show_panels([[made]], "head_matrix", everything, width=640, marks=marks, chosen=open_pair)
        st.caption(
            _(
                "Layer.head on both sides, in an order that puts alike heads together (average linkage). 0 is equal, "
                "{top} is the largest here, ln 2 = 0.693 the largest there is. Click a cell to open the pair."
            ).format(top=number(top, 3))
        )
        if step > 1:
            st.caption(_("Of this long text every {step}th row is compared.").format(step=step))
    with right:
        st.markdown(_("**The most alike and the least alike**, nats"))
        pairs = [(distances[h, g], h, g) for h in range(len(distances)) for g in range(h)]
        pairs.sort(key=lambda pair: pair[0])
        few = pairs if len(pairs) <= 10 else [*pairs[:5], *pairs[-5:]]
        rows = [(_name(g, heads), _name(h, heads), float(distance)) for distance, h, g in few]
        show_table((_("head"), _("head"), _("divergence")), rows)
        st.caption(
            _(
                "Alike maps do not make two heads the same: their values may differ. Means over rows that see at "
                "least two keys (Clark et al. 2019)."
            )
        )
    return Table(_("divergence between heads"), values, names, names)


def show_two_heads(place: Place, head: int) -> Table:
    """Two heads of one run."""
    state, run, said = st.session_state, place.trace, []
    keys = HeadKeys("kind_b", "layer_b", "head_b")
    settle_head(run, keys, said)
    with st.container(horizontal=True, vertical_alignment="center", gap="small", key="which_b"):
        st.markdown(_("beside"), width="content")
        head_selectors(run, keys, second=True)
        st.toggle(_("Align by words"), key="by_words")
    say(said)
    other = Place(place.explored, state["kind_b"], state["layer_b"])
    names = _title(place.layer, head), _title(other.layer, state["head_b"])
    return _pair(place, head, other, state["head_b"], names)


def show_two_texts(place: Place, head: int) -> Table:
    """One head on two texts, position by position, or by the words that both have."""
    state, said = st.session_state, []
    model = place.trace.model
    left, right = st.columns(2)
    left.text_area(_("Second source"), key="source_b", height=90)
    if state["mode"] == "typed" and model.is_encoder_decoder:
        right.text_area(_("Second target"), key="target_b", height=90)
    count = model.count_tokens(state["source_b"]) if state["source_b"] else 0
    st.caption(
        _("{count} tokens; the first source has {first}. Maps are laid on each other position by position.").format(
            count=count, first=place.trace.source_ids.shape[1]
        )
    )
    st.toggle(_("Align by words"), key="by_words")
    second = explored(place.explored.key.model, model, state["source_b"], state["target_b"], said)
    say(said)
    other = Place(second, place.kind, place.layer)
    return _pair(place, head, other, head, (_("First text"), _("Second text")), by_position=True)


def show_two_models(place: Place, head: int) -> Table:
    """Two models on one text: how far each head moved, and the chosen pair."""
    state, said = st.session_state, []
    labels = model_choices()
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small"):
        st.selectbox(_("Second model"), list(labels), format_func=labels.get, key="model_b", width=330)
        if state["model_b"] in OWN:
            st.text_input(_("Folder") if state["model_b"] == "folder" else _("Hub id"), key="name_b")
        st.toggle(_("Align by words"), key="by_words")
    second = _second_run(place, said)
    say(said)
    other = Place(second, place.kind, min(place.layer, second.trace.num_layers(place.kind) - 1))
    head_b = min(head, second.trace.num_heads(place.kind) - 1)
    table = _pair(place, head, other, head_b, (_("First model"), _("Second model")))
    _most_changed(place, other)
    return table


def _second_run(place: Place, said: list[str]) -> Explored:
    state = st.session_state
    name = typed_name(state["model_b"], state["name_b"]) if state["model_b"] in OWN else state["model_b"]
    if not name:
        raise AttentionError("name the second model: a folder, or a hub id")
    key = cache.ModelKey(name, None, state["device"])
    if state["model_b"] not in ("embedded", "folder"):
        from attention_core.extract import hub

        check_hub_id(name)
        if hub.cached(name) is None:
            raise AttentionError(
                "{name} is not on this machine yet: open it as the first model, which asks before it downloads",
                name=name,
            )
    model = loaded(key)
    if model.report.missing:
        said.append(missing_sentence(model))
    if place.kind not in model.kinds:
        raise AttentionError(
            "the second model has no {kind} attention: it has {kinds}", kind=place.kind, kinds=", ".join(model.kinds)
        )
    return explored(key, model, state["source"], state["target"], said)


def _most_changed(place: Place, other: Place) -> None:
    """Every head of the first model beside its namesake in the second, the most changed first."""
    heads = place.trace.num_heads(place.kind)
    with st.spinner(_("Comparing every head with its namesake…")):
        moved = compare_run.moved_heads(place.explored, other.explored, place.kind)
    if moved is None:
        st.caption(_("The two models have other heads or other tokens, so heads have no counterparts one by one."))
        return
    st.markdown(_("**How far each head moved**, the most changed first, nats"))
    order = np.argsort(-np.nan_to_num(moved))
    rows = [(_name(int(n), heads), float(moved[n])) for n in order[:MOST_ROWS]]
    show_table((_("head"), _("divergence")), rows)
    if len(order) > MOST_ROWS:
        st.caption(_("The first {count} of {all}.").format(count=MOST_ROWS, all=len(order)))


def show_match(place: Place, head: int) -> Table:
    """For each head of a custom layer, the real head that fits it best."""
    state = st.session_state
    names = {"untrained": _("An untrained layer"), "change": _("The layer of “Change one thing”")}
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small"):
        st.selectbox(_("Custom layer"), list(names), format_func=names.get, key="custom", width=280)
        if state["custom"] == "untrained":
            st.number_input(_("Seed of the new layer"), 0, 999_999, key="other_seed", width=170)
    made = untrained() if state["custom"] == "untrained" else change()
    with st.spinner(_("Comparing every head with every other…")):
        distances = compare_run.custom_distances(place, made)
    found = match_heads(distances)
    heads = place.trace.num_heads(place.kind)
    own = sum(match.real == place.layer * heads + match.head for match in found)
    total = sum(match.distance for match in found)
    st.markdown(
        _(
            "Each custom head is paired with one real head of this kind, each real head used once, so that the sum of "
            "distances is the smallest there is: {total} nats. {own} of {count} heads fit best where they came from."
        ).format(total=number(total, 3), own=own, count=len(found))
    )
    rows = [(_("head {head}").format(head=match.head), _name(match.real, heads), match.distance) for match in found]
    show_table((_("custom head"), _("best real head"), _("divergence")), rows)
    return Table(
        _("distances of custom to real heads"),
        distances,
        [_("head {head}").format(head=n) for n in range(len(distances))],
        [f"{n // heads}.{n % heads}" for n in range(distances.shape[1])],
    )


def _pair(
    first: Place, head: int, second: Place, other: int, names: tuple[str, str], *, by_position: bool = False
) -> Table:
    sides = _sides(first, head, second, other, names, by_position)
    compared, table = side_by_side(sides, "pair_maps")
    numbers_table(compared, names)
    return table


def _sides(first: Place, head: int, second: Place, other: int, names: tuple[str, str], by_position: bool) -> Sides:
    steps = [place.trace.steps(place.kind, place.layer, [h]) for place, h in ((first, head), (second, other))]
    weights = [each.weights[:1].float().cpu() for each in steps]
    seen = [each.full_mask()[:1].cpu() for each in steps]
    if st.session_state["by_words"]:
        return _by_words((first, second), weights, seen, names)
    for mine, theirs in zip(first.tokens, second.tokens):
        check_tokens(mine, theirs, by_position=by_position)
    rows, columns = (
        [one if one == two else f"{one} / {two}" for one, two in zip(mine, theirs)]
        for mine, theirs in zip(first.tokens, second.tokens)
    )
    masks = [None if bool(each.all()) else each for each in seen]
    return Sides(*weights, *masks, names, rows, columns)


def _by_words(places: tuple[Place, Place], weights, seen, names: tuple[str, str]) -> Sides:
    """The two maps over the words that both have."""
    read = [
        read_map(place.trace, place.kind, each[0, 0], mask[0, 0], steps=("words",))
        for place, each, mask in zip(places, weights, seen)
    ]
    rows = align_words(read[0].row_labels, read[1].row_labels)
    columns = align_words(read[0].column_labels, read[1].column_labels)
    maps = aligned_maps(*(each.weights[None, None] for each in read), rows, columns)
    masks = aligned_maps(*(each.visible[None, None].float() for each in read), rows, columns)
    left = [
        len(set(labels)) for labels in ((read[0].row_labels), (read[1].row_labels)) if len(labels) != len(rows.words)
    ]
    if left:
        st.caption(
            _("{count} words are in both; what a row gives to other tokens stands in the last column.").format(
                count=len(rows.words)
            )
        )
    visible = [mask > 0 for mask in masks]
    shown = [None if bool(torch.all(mask)) else mask for mask in visible]
    return Sides(*maps, *shown, names, rows.words, [*columns.words, _("(others)")])


def _title(layer: int, head: int) -> str:
    return _("layer {layer}, head {head}").format(layer=layer, head=head)


def _name(number_of_head: int, heads: int) -> str:
    return _title(*divmod(number_of_head, heads))
