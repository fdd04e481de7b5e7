"""The Build page's controls. What cannot be is not offered; what had to give way is said."""

import streamlit as st

from attention_core.errors import AttentionError
from attention_core.layer.inputs import BIASES, EMBEDDINGS, INITS, MAX_TOKENS, matrix_from_csv, split_text
from attention_core.layer.presets import PRESETS
from pages.ui.playground import DTYPES, INPUTS, MASKS, MAX_D_MODEL, MAX_HEADS, SCALE_RULES, SETTINGS, preset_values
from pages.ui.state import place
from pages.ui.text import _

_IDENTITY = {"wq": "identity", "wk": "identity", "wv": "random", "wo": "random"}
_RANDOM = {"wq": "random", "wk": "random", "wv": "random", "wo": "random"}


def examples() -> dict[str, tuple[str, dict]]:
    """Ready settings to start from: key -> (name, what differs from the defaults)."""
    return {
        "same": (_("Equal words find each other"), {}),
        "random": (_("An untrained layer"), _RANDOM | {"masks": [], "wq": "random", "row": 7, "col": 0}),
        "neighbours": (
            _("Positions: neighbours attend to each other"),
            {
                "vectors": "sinusoidal",
                "masks": [],
                "heads": 2,
                "text": "one two three four five six seven eight nine ten",
            },
        ),
        "window": (
            _("A sliding window in a causal layer"),
            {
                "masks": ["causal", "window"],
                "window": 2,
                "text": "she opened the old door and looked into the dark room",
            },
        ),
        "cross": (
            _("Cross-attention between two texts"),
            {
                "cross": True,
                "masks": [],
                "text": "a tired cat sat down",
                "text2": "the cat was tired and so it sat down",
                "row": 2,
            },
        ),
        "padding": (
            _("Padding that nobody may see"),
            {"masks": ["padding"], "pads": 3, "text": "the fox ran home"},
        ),
        "shared": (
            _("The simplified BART layer"),
            {"preset": "bart_simplified", **preset_values("bart_simplified"), "masks": []},
        ),
    }


def apply_example(name: str) -> None:
    """Sets everything to an example (a callback)."""
    changes = examples()[name][1]
    for key, setting in SETTINGS.items():
        st.session_state[key] = changes.get(key, setting.default)


def apply_preset() -> None:
    """Sets what the chosen preset decides (a callback)."""
    st.session_state.update(preset_values(st.session_state.preset))


def settle() -> list[str]:
    """Brings settings that cannot stand together to the nearest that can. Returns what was changed, in words."""
    state, said = st.session_state, []
    if state.input in ("own_x", "own_qkv"):
        name = "own_x" if state.input == "own_x" else "own_v"
        try:
            d_model = matrix_from_csv(state[name], most_columns=MAX_D_MODEL).shape[1]
        except AttentionError:
            return said
        if state.input == "own_qkv" and state.free:
            state.free = False
    else:
        d_model = state.dm
    if state.preset == "bart_simplified" and state.free:
        state.free = False
    if not state.free:
        possible = head_counts(d_model)
        if state.heads not in possible:
            nearest = min(possible, key=lambda h: (abs(h - state.heads), h))
            said.append(
                _("Heads went from {old} to {new}: they must divide d_model ({d_model}).").format(
                    old=state.heads, new=nearest, d_model=d_model
                )
            )
            state.heads = nearest
    if state["head"] >= state.heads:
        said.append(_("Head {old} is gone; head {new} is shown.").format(old=state["head"], new=state.heads - 1))
        state["head"] = state.heads - 1
    if state.vectors == "one_hot" and state.input in ("text", "count") and not _one_hot_fits():
        said.append(
            _("One-hot vectors no longer fit d_model ({d_model}); random ones are used.").format(d_model=state.dm)
        )
        state.vectors = "random"
    return said


def head_counts(d_model: int) -> list[int]:
    """Numbers of heads that divide d_model."""
    return [h for h in range(1, MAX_HEADS + 1) if d_model % h == 0]


def sidebar() -> None:
    """All controls, by what they decide."""
    with st.sidebar:
        _input()
        _layer()
        _scale()
        _masks()


def _input() -> None:
    names = {
        "text": _("A text"),
        "count": _("A number of tokens"),
        "own_x": _("My own X"),
        "own_qkv": _("My own Q, K and V"),
    }
    with st.expander(_("Input"), expanded=True):
        kind = st.selectbox(_("Input"), INPUTS, format_func=names.get, key="input", label_visibility="collapsed")
        if kind == "own_qkv":
            _matrix("own_q", _("Q, one row a query"))
            _matrix("own_k", _("K, one row a key"))
            _matrix("own_v", _("V, one row a key"))
            return
        if kind == "text":
            st.text_area(_("Text"), key="text", height=80, help=_("Up to {most} tokens.").format(most=MAX_TOKENS))
        elif kind == "count":
            st.slider(_("Tokens"), 1, MAX_TOKENS, key="n")
        else:
            _matrix("own_x", _("X, one row a token"))
        st.toggle(
            _("Cross-attention"),
            key="cross",
            help=_("Keys and values come from a second input: rows look at it rather than at themselves."),
        )
        if st.session_state.cross:
            if kind == "text":
                st.text_area(_("Second text (keys and values)"), key="text2", height=80)
            elif kind == "count":
                st.slider(_("Tokens of the second input"), 1, MAX_TOKENS, key="n2")
            else:
                _matrix("own_x2", _("Second X, one row a token"))
        if kind == "text":
            units = {"words": _("Words"), "characters": _("Characters")}
            st.segmented_control(
                _("Cut into"), list(units), format_func=units.get, key="unit", required=True, width="stretch"
            )
        if kind != "own_x":
            embeddings = {
                "random": _("Random, one vector a word"),
                "one_hot": _("One-hot"),
                "sinusoidal": _("Position alone (sinusoidal)"),
                "token_position": _("Random + position"),
            }
            offered = [e for e in EMBEDDINGS if e != "one_hot" or _one_hot_fits()]
            st.selectbox(
                _("Vectors"),
                offered,
                format_func=embeddings.get,
                key="vectors",
                help=_("Equal tokens have equal vectors. One-hot is offered while the distinct tokens fit d_model."),
            )


def _layer() -> None:
    with st.expander(_("Layer"), expanded=True):
        presets = {
            "standard": _("Standard"),
            "bert": "BERT",
            "cabm": "CABM",
            "bart_simplified": _("BART, simplified"),
        }
        st.selectbox(
            _("Preset"),
            list(PRESETS),
            format_func=presets.get,
            key="preset",
            on_change=apply_preset,
            help=_(
                "Standard, BERT and CABM compute the same numbers outside training. The simplified BART layer splits the input "
                "into heads first, shares one small matrix among them, and scales by 1/√d_model."
            ),
        )
        own = st.session_state.input in ("own_x", "own_qkv")
        if own:
            st.caption(_("d_model is the number of columns of your matrix."))
        else:
            st.slider("d_model", 2, MAX_D_MODEL, step=2, key="dm", help=_("Width of each token's vector."))
        free = st.session_state.free
        counts = list(range(1, MAX_HEADS + 1)) if free else _offered_heads()
        st.selectbox(
            _("Heads"),
            counts,
            key="heads",
            help=_(
                "Each head has its own queries, keys and values. Without a free head_dim, heads must divide d_model."
            ),
        )
        if st.session_state.preset != "bart_simplified" and st.session_state.input != "own_qkv":
            st.toggle(_("Set head_dim freely"), key="free")
            if st.session_state.free:
                st.slider("head_dim", 1, 64, key="hd", help=_("Width of one head's queries, keys and values."))
        st.number_input(_("Seed"), 0, 999_999, key="seed", help=_("Of the vectors and of the weights."))
        with st.popover(_("Weights and biases"), width="stretch"):
            names = {
                "random": _("Random (Xavier)"),
                "identity": _("Identity"),
                "orthogonal": _("Orthogonal"),
                "zero": _("Zero"),
            }
            columns = st.columns(2)
            for i, (key, symbol) in enumerate((("wq", "W_Q"), ("wk", "W_K"), ("wv", "W_V"), ("wo", "W_O"))):
                columns[i % 2].selectbox(symbol, INITS, index=place(INITS, key), format_func=names.get, key=key)
            biases = {"none": _("None"), "zero": _("Zero"), "random": _("Random")}
            columns[0].selectbox(
                _("Bias of Q, K, V"), BIASES, index=place(BIASES, "bqkv"), format_func=biases.get, key="bqkv"
            )
            columns[1].selectbox(
                _("Bias of the output"), BIASES, index=place(BIASES, "bo"), format_func=biases.get, key="bo"
            )
            st.selectbox(
                _("Number format"),
                list(DTYPES),
                index=place(list(DTYPES), "dtype"),
                key="dtype",
                help=_("Of inputs and weights. Scores and softmax are always computed in float32 or wider."),
            )


def _scale() -> None:
    with st.expander(_("Scale and dropout"), expanded=False):
        rules = {"head_dim": "1 / √head_dim", "d_model": "1 / √d_model", "none": _("None (1)"), "number": _("A number")}
        st.selectbox(
            _("Scale of the scores"),
            SCALE_RULES,
            format_func=rules.get,
            key="scale",
            help=_("What the dot products are multiplied with. A smaller scale flattens the weights."),
        )
        if st.session_state.scale == "number":
            st.number_input(_("Scale"), 1e-6, 1e6, key="scale_by", format="%g")
        st.slider(
            _("Temperature"),
            0.1,
            5.0,
            step=0.1,
            key="temp",
            help=_("Divides the scale: above 1 flattens, below 1 sharpens."),
        )
        st.slider(
            _("Dropout"), 0.0, 0.9, step=0.05, key="drop", help=_("Chance that a weight is set to 0 while training.")
        )
        if st.session_state["drop"] > 0:
            st.toggle(
                _("Training mode"), key="training", help=_("Dropout acts in training only; the map after it is shown.")
            )
            if st.session_state.training:
                st.number_input(_("Seed of the dropout"), 0, 999_999, key="drop_seed")


def _masks() -> None:
    names = {
        "causal": _("Causal"),
        "prefix": _("Prefix"),
        "window": _("Window"),
        "block": _("Blocks"),
        "padding": _("Padding"),
        "edited": _("By hand"),
    }
    with st.expander(_("Mask"), expanded=True):
        chosen = st.pills(
            _("A key is visible where every chosen mask shows it"),
            MASKS,
            selection_mode="multi",
            format_func=names.get,
            key="masks",
        )
        if "causal" in chosen and (st.session_state.cross or st.session_state.input == "own_qkv"):
            aligns = {"upper_left": _("First with first"), "lower_right": _("Last with last")}
            st.selectbox(
                _("Causal diagonal for unequal lengths"),
                list(aligns),
                format_func=aligns.get,
                key="align",
                help=_("Which query and key count as the same position: the first of both, or the last of both."),
            )
        if "prefix" in chosen:
            st.slider(
                _("Prefix seen by all"),
                0,
                MAX_TOKENS,
                key="prefix",
                help=_("Tokens that every query sees; causal after."),
            )
            if "causal" in chosen:
                st.caption(
                    _(
                        "Causal hides what the prefix shows. Take it out: after the prefix, this mask is causal by itself."
                    )
                )
        if "window" in chosen:
            st.slider(_("Window, tokens each side"), 0, MAX_TOKENS, key="window")
        if "block" in chosen:
            st.slider(_("Block size"), 1, MAX_TOKENS, key="block")
        if "padding" in chosen:
            st.slider(
                _("Padding tokens"), 0, MAX_TOKENS, key="pads", help=_("Added at the end and hidden from every query.")
            )
        if "edited" in chosen:
            st.text_input(
                _("Cells turned over (row,column)"),
                key="cells",
                placeholder="0,3 2,1",
                help=_("Each cell named here is turned: hidden becomes visible, visible becomes hidden."),
            )
            clicks = {"show": _("Shows the arithmetic"), "turn": _("Turns the cell")}
            st.segmented_control(
                _("A click on a map"), list(clicks), format_func=clicks.get, key="click", required=True, width="stretch"
            )
        st.caption(_("In every mask here, a visible cell means “may attend”; hidden cells are grey."))


def _matrix(key: str, label: str) -> None:
    """A matrix to paste or upload."""
    upload = f"{key}_file"

    def take() -> None:
        file = st.session_state[upload]
        if file is not None:
            st.session_state[key] = file.getvalue().decode("utf-8", "replace")

    st.text_area(label, key=key, height=100, placeholder="1, 0, 0.5, 0\n0, 1, 0, -0.5")
    st.file_uploader(_("Or a csv file"), ["csv", "txt", "tsv"], key=upload, on_change=take)


def _one_hot_fits() -> bool:
    state = st.session_state
    if state.input == "count":
        # Tokens of the two inputs are all distinct here.
        distinct = state.n + (state.n2 if state.cross else 0)
    else:
        tokens = split_text(state.text, state.unit)[0] + (split_text(state.text2, state.unit)[0] if state.cross else [])
        distinct = len(set(tokens))
    return distinct + ("padding" in state.masks and state.pads > 0) <= state.dm


def _offered_heads() -> list[int]:
    state = st.session_state
    if state.input not in ("own_x", "own_qkv"):
        return head_counts(state.dm)
    try:
        return head_counts(
            matrix_from_csv(state["own_x" if state.input == "own_x" else "own_v"], most_columns=MAX_D_MODEL).shape[1]
        )
    except AttentionError:
        return [state.heads]
