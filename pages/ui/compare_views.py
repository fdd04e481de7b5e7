"""The Compare page's views of one attention: the proof, one thing changed, and what training made."""

import numpy as np
import streamlit as st
import torch

from attention_core.analysis import metrics
from attention_core.analysis.rows import counted_rows, full_mask, mean_of_rows, row_divergence, row_entropy
from attention_core.figures.bars import bars_figure
from attention_core.layer.attention import AttentionSteps
from pages.ui import compare_run, compare_words
from pages.ui.cells import number, show_table
from pages.ui.compare_maps import Sides, numbers_table, side_by_side
from pages.ui.compare_run import Place
from pages.ui.compare_settings import change, possible_cuts, untrained
from pages.ui.explore_pictures import narrow
from pages.ui.explore_run import Explored
from pages.ui.explore_views import Table
from pages.ui.layout import current_palette, show_figure
from pages.ui.stages import array, stage_info
from pages.ui.text import _


def show_proof(place: Place, head: int) -> Table:
    """Every stage of the layer from scratch beside the model's."""
    proof = compare_run.proof(place)
    equality, info = proof.equality, stage_info()
    icon = ":material/check_circle:" if equality.equal else ":material/error:"
    (st.success if equality.equal else st.warning)(compare_words.verdict(equality), icon=icon)
    names, first = compare_words.verdict_names(), equality.first
    left, right = (st.container(), st.container()) if narrow() else st.columns([6, 7], gap="large")
    with left:
        rows = [
            (
                f"{info[s.stage].symbol}  {info[s.stage].title}",
                s.largest,
                s.relative,
                f"{number(100 * s.share, 3)} %",
                names[s.verdict],
            )
            for s in equality.stages
        ]
        strong = None if first is None else [s.stage for s in equality.stages].index(first.stage)
        header = (_("stage"), _("largest difference"), _("relative"), _("of the allowed"), _("verdict"))
        show_table(header, rows, strong=strong)
    with right:
        st.caption(
            _(
                "All {heads} heads, all cells. Two right computations of one sum differ in float arithmetic, "
                "since they add in another order. How far they may lie apart follows from the number format, "
                "the number of terms and their sizes, cell by cell: ε · min(n, 8√n) · Σ|terms|, carried on "
                "from stage to stage. A fault of method lies thousands of times outside."
            ).format(heads=proof.ours.query.shape[1])
        )
        st.caption(
            _(
                "On the model's side Q, K and V come from its own projections, context and output from the "
                "library's fused attention. That one shows no scores and no weights; they are computed from "
                "the model's own Q and K."
            )
        )
    sides = _sides(proof.ours, proof.theirs, head, head, (_("From scratch"), _("The model")), place)
    _compared, table = side_by_side(sides, "proof", rows=False)
    _whole_model(place.explored)
    return table


def _whole_model(explored: Explored) -> None:
    st.subheader(_("The whole model"), anchor=False)
    st.toggle(
        _("Run the whole model with attention from scratch in every module"),
        key="whole_model",
        help=_("It runs three times on this text, and twice to write on."),
    )
    if not st.session_state["whole_model"]:
        return
    with st.spinner(_("The model runs with both attentions…")):
        proved = compare_run.whole_model(explored)
    same = sum(proved.top)
    text = _("**Equal.** ") if proved.equal else _("**Not equal.** ")
    text += _(
        "All {modules} attentions from scratch: no logit moves by more than {largest}. One rounding error in "
        "every attention, up or down at random, moves one by {rounding}. The five likeliest next tokens are "
        "the same, in the same order, in {same} of {rows} rows."
    ).format(
        modules=proved.modules,
        largest=number(proved.largest, 3),
        rounding=number(proved.rounding, 3),
        same=same,
        rows=len(proved.top),
    )
    icon = ":material/check_circle:" if proved.equal else ":material/error:"
    (st.success if proved.equal else st.warning)(text, icon=icon)
    reader = explored.trace.model.target_reader
    left, right = (st.container(), st.container()) if narrow() else st.columns([2, 3], gap="large")
    with left:
        st.markdown(_("**After the last row**, the likeliest next tokens"))
        ours = dict(proved.ours_top)
        rows = [
            (_label(reader, token), chance, ours[token] if token in ours else "–") for token, chance in proved.fused_top
        ]
        show_table((_("token"), _("fused"), _("from scratch")), rows)
    with right:
        if proved.fused_text is None:
            st.caption(_("This model does not write on, so there is no text to compare."))
            return
        st.markdown(_("**What the model writes**, word by word the likeliest"))
        for name, written in ((_("fused"), proved.fused_text), (_("from scratch"), proved.ours_text)):
            st.caption(name)
            st.text(written.text)


def _label(reader, token: int) -> str:
    return f"#{token}" if reader is None else reader.describe([token])[0][0].label


def change_controls(place: Place) -> None:
    """What is changed, and to what."""
    state = st.session_state
    things = {
        "scale": _("Scale of the scores"),
        "temperature": _("Temperature"),
        "mask": _("Mask"),
        "preset": _("Preset"),
        "cut": _("Cut into heads"),
        "biases": _("Biases dropped"),
        "weights": _("Weights"),
        "half": _("Number format"),
    }
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small", key="thing_row"):
        st.selectbox(_("Changed"), list(things), format_func=things.get, key="thing", width=210)
        if state["thing"] == "scale":
            rules = {
                "head_dim": "1 / √head_dim",
                "d_model": "1 / √d_model",
                "none": _("None (1)"),
                "own": _("A number"),
            }
            st.selectbox(_("Scale"), list(rules), format_func=rules.get, key="rule", width=170)
            if state["rule"] == "own":
                st.number_input(_("Scale"), 1e-6, 1e6, key="rule_by", format="%g", width=130)
        elif state["thing"] == "temperature":
            st.slider(_("Temperature"), 0.1, 10.0, step=0.1, key="heat", width=300)
        elif state["thing"] == "mask":
            seen = {"full": _("All keys"), "causal": _("Causal"), "window": _("Window"), "block": _("Blocks")}
            st.selectbox(_("Visible"), list(seen), format_func=seen.get, key="seen", width=150)
            if state["seen"] in ("window", "block"):
                name = _("Tokens each side") if state["seen"] == "window" else _("Tokens in a block")
                st.slider(name, 0, 64, key="seen_width", width=240)
        elif state["thing"] == "preset":
            presets = {"bert": "BERT", "cabm": "CABM", "bart_simplified": _("BART, simplified")}
            st.selectbox(_("Preset"), list(presets), format_func=presets.get, key="other_preset", width=170)
        elif state["thing"] == "cut":
            projections = place.trace.projections(place.kind, place.layer)
            cuts = possible_cuts(projections.query_weight.shape[0])
            if state["other_cut"] not in cuts:
                state["other_cut"] = min(cuts, key=lambda n: abs(n - state["other_cut"]))
            st.selectbox(_("Heads"), cuts, key="other_cut", width=110)
        elif state["thing"] == "biases":
            names = {"query": "b_Q", "key": "b_K", "value": "b_V", "out": "b_O"}
            st.pills(_("Without"), list(names), selection_mode="multi", format_func=names.get, key="no_bias")
        elif state["thing"] == "weights":
            names = {"shuffled": _("Shuffled"), "random": _("Random, untrained")}
            st.selectbox(_("Weights"), list(names), format_func=names.get, key="other_weights", width=180)
            st.number_input(_("Seed"), 0, 999_999, key="other_seed", width=130)
        else:
            names = ["float16", "bfloat16", "float64"]
            st.selectbox(_("Format"), names, key="other_format", width=150)


def show_change(place: Place, head: int) -> Table:
    """The real head beside the one with one thing changed."""
    change_controls(place)
    made = change()
    result = compare_run.changed(place, made)
    before, after = result.before, result.after
    # Under another cut, the head that the columns of this one are in.
    other = head * before.query.shape[-1] // after.query.shape[-1]
    sides = _sides(before, after, head, other, (_("The model"), _("Changed")), place)
    words = st.container()
    compared, table = side_by_side(sides, "change")
    words.markdown(compare_words.happened(compared, list(sides.rows)) + " " + compare_words.output_moved(result.effect))
    words.markdown(compare_words.why(st.session_state["thing"], made, before, after))
    left, right = (st.container(), st.container()) if narrow() else st.columns(2, gap="large")
    with left:
        numbers_table(compared, sides.names)
    with right:
        _every_head(before, after, head)
    return table


def _every_head(before: AttentionSteps, after: AttentionSteps, head: int) -> None:
    """How far each head of the layer moved; only where both have the same heads."""
    if before.weights.shape != after.weights.shape:
        st.caption(
            _(
                "With {after} heads in place of {before}, heads have no counterparts: head {head} is shown "
                "beside the head that holds its columns."
            ).format(after=after.weights.shape[1], before=before.weights.shape[1], head=head)
        )
        return
    masks = [full_mask(each.weights, each.mask) for each in (before, after)]
    moved = array(mean_of_rows(row_divergence(before.weights, after.weights), counted_rows(*masks)))
    st.markdown(_("**How far each head of this layer moved**, nats"))
    top = max(0.05, float(np.nanmax(moved, initial=0.0)))
    show_figure(
        bars_figure(_head_names(len(moved)), moved, palette=current_palette(), limits=(0.0, top), selected=[head]),
        "every_head",
        _("Mean divergence of each head, up to {top} nats; head {head} is chosen.").format(
            top=number(float(np.nanmax(moved, initial=0.0)), 3), head=head
        ),
        picture=st.session_state["picture"],
    )


def show_untrained(place: Place, head: int) -> Table:
    """The real head beside a new layer's on the same input."""
    result = compare_run.changed(place, untrained())
    before, after = result.after, result.before
    masks = [full_mask(each.weights, each.mask) for each in (before, after)]
    entropies = [
        array(mean_of_rows(row_entropy(each.weights, mask, normalised=True), counted_rows(mask)))
        for each, mask in zip((before, after), masks)
    ]
    words = st.container()
    st.number_input(_("Seed of the new layer"), 0, 999_999, key="other_seed", width=170)
    sides = _sides(before, after, head, head, (_("Untrained"), _("Trained")), place)
    compared, table = side_by_side(sides, "untrained")
    if np.isfinite(entropies).all():
        words.markdown(compare_words.trained(float(entropies[1].mean()), float(entropies[0].mean())))
    words.caption(
        _(
            "The new layer has the same form and reads the same recorded input; its weights are drawn at "
            "random (Xavier), its biases are 0."
        )
    )
    left, right = (st.container(), st.container()) if narrow() else st.columns(2, gap="large")
    with left:
        st.markdown(_("**Where this head looks**, mean share of a row"))
        show_table((_("pattern"), _("untrained"), _("trained")), _patterns(place, before, after, head))
        st.caption(_("Pattern shares after Clark et al. 2019, over rows that see at least two keys."))
        numbers_table(compared, sides.names)
    with right:
        st.markdown(_("**Entropy of each head.** Bar: trained. Tick: untrained."))
        show_figure(
            bars_figure(
                _head_names(len(entropies[1])),
                entropies[1],
                palette=current_palette(),
                before=entropies[0],
                selected=[head],
            ),
            "untrained_heads",
            _("Normalised entropy of each head: untrained {before} on average, trained {after}.").format(
                before=number(float(np.mean(entropies[0])), 3), after=number(float(np.mean(entropies[1])), 3)
            ),
            picture=st.session_state["picture"],
        )
    return table


def _patterns(place: Place, before: AttentionSteps, after: AttentionSteps, head: int) -> list[tuple]:
    length = before.weights.shape[-2:]
    found = [(_("first token"), metrics.first_mass)]
    if place.kind != "cross":
        found += [
            (_("previous token"), metrics.previous_mass),
            (
                _("itself"),
                lambda weights, mask: metrics.mean_mass(weights, metrics.offset_target(*length, 0), mask=mask),
            ),
        ]
    if place.kind == "encoder":
        found.append((_("next token"), metrics.next_mass))
    rows = []
    for name, mass in found:
        values = [float(mass(each.weights[:, [head]].cpu(), mask=_mask_of(each, head))[0]) for each in (before, after)]
        rows.append((name, *(_("–") if value != value else number(value, 3) for value in values)))
    return rows


def _sides(
    first: AttentionSteps, second: AttentionSteps, head: int, other: int, names: tuple[str, str], place: Place
) -> Sides:
    rows, columns = place.tokens
    return Sides(
        first.weights[:1, [head]],
        second.weights[:1, [other]].to(first.weights.dtype),
        _mask_of(first, head),
        _mask_of(second, other),
        names,
        rows,
        columns,
    )


def _mask_of(steps: AttentionSteps, head: int) -> torch.Tensor | None:
    return None if steps.mask is None else steps.full_mask()[:1, [head]].cpu()


def _head_names(count: int) -> list[str]:
    return [_("head {head}").format(head=head) for head in range(count)]
