"""The Build page's settings, and what attention_core makes of them."""

import base64
import re
import zlib
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from attention_core import AttentionConfig, AttentionSteps, MultiHeadAttention, Projections, attention_steps, masks
from attention_core.errors import AttentionError
from attention_core.layer.inputs import (
    BIASES,
    EMBEDDINGS,
    INITS,
    MAX_TOKENS,
    embed,
    initialise_,
    matrix_from_csv,
    split_text,
)
from attention_core.layer.presets import PRESETS
from attention_core.layer.projections import merge_heads, split_heads
from pages.ui.layout import COLOUR_SCALE
from pages.ui.state import Setting, choice, choices, flag, real, text, whole

INPUTS = ("text", "count", "own_x", "own_qkv")
MASKS = ("causal", "prefix", "window", "block", "padding", "edited")
DTYPES = {"float32": torch.float32, "float64": torch.float64, "float16": torch.float16, "bfloat16": torch.bfloat16}
SCALE_RULES = ("head_dim", "d_model", "none", "number")
MAX_D_MODEL = 128
MAX_HEADS = 16
PAD = "<pad>"


def preset_values(preset: str) -> dict:
    """What a preset decides, as settings; everything else stays as the person has it."""
    config = PRESETS[preset](8, 2)
    values = {
        "scale": config.scale,
        "drop": config.dropout,
        "bqkv": "zero" if config.qkv_bias else "none",
        "bo": "zero" if config.out_bias else "none",
    }
    return values if config.projection == "full" else values | {"free": False}


def pack_cells(cells: str) -> str:
    """Edited cells ("row,column row,column") as a short text for the URL: a 64 x 64 bitmap, compressed."""
    bits = bytearray(MAX_TOKENS * MAX_TOKENS // 8)
    for row, column in parse_cells(cells):
        place = row * MAX_TOKENS + column
        bits[place // 8] ^= 1 << place % 8
    return base64.urlsafe_b64encode(zlib.compress(bytes(bits), 9)).decode().rstrip("=")


def unpack_cells(packed: str) -> str:
    """The reverse of pack_cells; ValueError for anything else."""
    try:
        reader = zlib.decompressobj()
        bits = reader.decompress(
            base64.urlsafe_b64decode(packed + "=" * (-len(packed) % 4)), MAX_TOKENS * MAX_TOKENS // 8
        )
    except zlib.error as error:
        raise ValueError(packed) from error
    if len(bits) != MAX_TOKENS * MAX_TOKENS // 8:
        raise ValueError(packed)
    places = [place for place in range(MAX_TOKENS * MAX_TOKENS) if bits[place // 8] >> place % 8 & 1]
    return " ".join(f"{place // MAX_TOKENS},{place % MAX_TOKENS}" for place in places)


def parse_cells(cells: str) -> list[tuple[int, int]]:
    """(row, column) of each edited cell; AttentionError names what is no cell."""
    pairs = []
    for part in cells.split():
        match = re.fullmatch(r"(\d{1,2}),(\d{1,2})", part)
        if not match or max(int(match[1]), int(match[2])) >= MAX_TOKENS:
            raise AttentionError(
                "edited cells are written as row,column with a space between cells, such as 0,3 2,1; not {part!r}",
                part=part[:20],
            )
        pairs.append((int(match[1]), int(match[2])))
    return pairs


def toggle_cell(cells: str, row: int, column: int) -> str:
    """The edited cells with one more turned, or turned back."""
    pairs = parse_cells(cells)
    pairs = [p for p in pairs if p != (row, column)] if (row, column) in pairs else [*pairs, (row, column)]
    return " ".join(f"{r},{c}" for r, c in sorted(pairs))


DEFAULT_TEXT = "the cat sat on the mat because the cat was tired"

SETTINGS: dict[str, Setting] = {
    s.key: s
    for s in (
        choice("preset", "standard", PRESETS),
        choice("input", "text", INPUTS),
        text("text", DEFAULT_TEXT),
        choice("unit", "words", ("words", "characters")),
        whole("n", 8, 1, MAX_TOKENS),
        flag("cross"),
        text("text2", "a tired cat sits"),
        whole("n2", 5, 1, MAX_TOKENS),
        choice("vectors", "random", EMBEDDINGS),
        text("own_x", travels=False),
        text("own_x2", travels=False),
        text("own_q", travels=False),
        text("own_k", travels=False),
        text("own_v", travels=False),
        whole("dm", 32, 2, MAX_D_MODEL),
        whole("heads", 4, 1, MAX_HEADS),
        flag("free"),
        whole("hd", 8, 1, 64),
        whole("seed", 0, 0, 999_999),
        choice("dtype", "float32", DTYPES),
        choice("wq", "identity", INITS),
        choice("wk", "identity", INITS),
        choice("wv", "random", INITS),
        choice("wo", "random", INITS),
        choice("bqkv", "zero", BIASES),
        choice("bo", "zero", BIASES),
        choice("scale", "head_dim", SCALE_RULES),
        real("scale_by", 1.0, 1e-6, 1e6),
        real("temp", 1.0, 0.1, 5.0),
        real("drop", 0.0, 0.0, 0.9),
        flag("training"),
        whole("drop_seed", 0, 0, 999_999),
        choices("masks", ["causal"], MASKS),
        choice("align", "upper_left", ("upper_left", "lower_right")),
        whole("window", 2, 0, MAX_TOKENS),
        whole("block", 4, 1, MAX_TOKENS),
        whole("prefix", 3, 0, MAX_TOKENS),
        whole("pads", 2, 0, MAX_TOKENS),
        Setting("cells", "", unpack_cells, pack_cells),
        choice("view", "one", ("one", "all", "layer")),
        whole("head", 0, 0, MAX_HEADS - 1),
        choice("tiles", "weights", ("query", "key", "value", "scores", "weights", "context")),
        flag("raw"),
        flag("table"),
        choice("stage", "weights", ("input", "key_input", "query", "key", "value", "scores", "masked_scores", "weights",
                                    "dropped_weights", "context", "query_weight", "key_weight", "value_weight", "out_weight",
                                    "concatenation", "output")),
        whole("row", 7, 0, 255),
        whole("col", 0, 0, 255),
        choice("click", "show", ("show", "turn")),
        choice("shape", "auto", ("auto", "wide", "narrow")),
        COLOUR_SCALE,
    )
}  # fmt: skip


@dataclass(frozen=True)
class Playground:
    """One computed state of the Build page.

    Attributes:
        config: the layer's.
        layer: the layer itself.
        query_tokens, key_tokens: labels of rows and columns.
        x, x_key: (1, query_len, d_model) and (1, key_len, d_model); None where Q, K and V were given.
        mask: (query_len, key_len) boolean, True = may attend; None = all visible.
        padded_queries: how many rows at the end are padding.
        steps, projections: of the layer on this input; projections None where Q, K and V were given.
        notices: what was cut or left out, as (template, values) for translation.
    """

    config: AttentionConfig
    layer: MultiHeadAttention
    query_tokens: list[str]
    key_tokens: list[str]
    x: Tensor | None
    x_key: Tensor | None
    mask: Tensor | None
    padded_queries: int
    steps: AttentionSteps
    projections: Projections | None
    notices: list[AttentionError] = field(default_factory=list)


def tokens_of(values: dict, which: str) -> tuple[list[str], AttentionError | None]:
    """Tokens of the first ("") or second ("2") text, padding included, and what must be said about them."""
    if values["input"] == "count":
        tokens, cut = [f"t{i}" for i in range(values["n" + which])], 0
        if which:
            tokens = [f"s{i}" for i in range(len(tokens))]
    else:
        tokens, cut = split_text(values["text" + which], values["unit"])
    notice = None
    if cut:
        notice = AttentionError(
            "The text has {count} tokens; the first {limit} are used.", count=len(tokens) + cut, limit=MAX_TOKENS
        )
    return tokens, notice


def padded(values: dict) -> int:
    """How many padding tokens stand at the end of the keys."""
    return values["pads"] if "padding" in values["masks"] else 0


def compute(values: dict) -> Playground:
    """Everything that the Build page shows, from its settings.

    Raises:
        AttentionError: what the settings ask for cannot be.
    """
    if values["input"] == "own_qkv":
        return _from_own_qkv(values)
    notices: list[AttentionError] = []
    pads = padded(values)
    if values["input"] == "own_x":
        x = matrix_from_csv(values["own_x"], "X", most_columns=MAX_D_MODEL)[None]
        x_key = (
            matrix_from_csv(values["own_x2"], "the second X", most_columns=MAX_D_MODEL)[None] if values["cross"] else x
        )
        if x_key.shape[-1] != x.shape[-1]:
            raise AttentionError(
                "both X must have the same number of columns: {first} and {second}",
                first=x.shape[-1],
                second=x_key.shape[-1],
            )
        query_tokens = [f"x{i}" for i in range(x.shape[1])]
        key_tokens = [f"y{i}" for i in range(x_key.shape[1])] if values["cross"] else query_tokens
        # One's own rows are not added to: the last ones count as padding.
        pads = min(pads, len(key_tokens))
        d_model = x.shape[-1]
    else:
        d_model = values["dm"]
        query_tokens, notice = tokens_of(values, "")
        notices += [notice] if notice else []
        key_tokens = query_tokens
        if values["cross"]:
            key_tokens, notice = tokens_of(values, "2")
            notices += [notice] if notice else []
        if not query_tokens or not key_tokens:
            raise AttentionError("there must be at least one token: type a word")
        room = MAX_TOKENS - len(key_tokens)
        pads = min(pads, room)
        key_tokens = key_tokens + [PAD] * pads
        query_tokens = query_tokens if values["cross"] else key_tokens
        x = embed(query_tokens, d_model, values["vectors"], seed=values["seed"])
        x_key = embed(key_tokens, d_model, values["vectors"], seed=values["seed"], vocabulary=query_tokens)
    dtype = DTYPES[values["dtype"]]
    config = _config(values, d_model)
    layer = _layer(values, config, dtype)
    x = x.to(dtype)
    x_key = x if not values["cross"] else x_key.to(dtype)
    mask, said = _mask(values, len(query_tokens), len(key_tokens), pads)
    notices += said
    generator = torch.Generator().manual_seed(values["drop_seed"])
    with torch.no_grad():
        steps = layer.steps(x, x_key, mask=mask, generator=generator)
        projections = layer.projections(x, x_key)
    return Playground(
        config,
        layer,
        query_tokens,
        key_tokens,
        x,
        x_key,
        mask,
        0 if values["cross"] else pads,
        steps,
        projections,
        notices,
    )


def _from_own_qkv(values: dict) -> Playground:
    """Attention on typed Q, K and V; the output projection still applies."""
    query, key, value = (matrix_from_csv(values[f"own_{n}"], n.upper(), most_columns=MAX_D_MODEL) for n in "qkv")
    if not query.shape[1] == key.shape[1] == value.shape[1]:
        raise AttentionError(
            "Q, K and V must have the same number of columns: {q}, {k} and {v}",
            q=query.shape[1],
            k=key.shape[1],
            v=value.shape[1],
        )
    if key.shape[0] != value.shape[0]:
        raise AttentionError(
            "K and V must have the same number of rows, one for each key: {k} and {v}", k=key.shape[0], v=value.shape[0]
        )
    dtype = DTYPES[values["dtype"]]
    config = _config(values | {"free": False}, query.shape[1])
    layer = _layer(values, config, dtype)
    pads = min(padded(values), len(key))
    mask, notices = _mask(values, len(query), len(key), pads)
    generator = torch.Generator().manual_seed(values["drop_seed"])
    with torch.no_grad():
        steps = attention_steps(
            *(split_heads(m[None].to(dtype), config.num_heads) for m in (query, key, value)),
            mask,
            config.effective_scale,
            dropout=config.dropout if layer.training else 0.0,
            generator=generator,
        )
        steps = steps.with_output(layer.out_proj(merge_heads(steps.context)))
    query_tokens, key_tokens = [f"q{i}" for i in range(len(query))], [f"k{i}" for i in range(len(key))]
    return Playground(config, layer, query_tokens, key_tokens, None, None, mask, 0, steps, None, notices)


def _config(values: dict, d_model: int) -> AttentionConfig:
    config = PRESETS[values["preset"]](
        d_model,
        values["heads"],
        qkv_bias=values["bqkv"] != "none",
        out_bias=values["bo"] != "none",
        dropout=values["drop"],
        scale=values["scale_by"] if values["scale"] == "number" else values["scale"],
        temperature=values["temp"],
        **({"head_dim": values["hd"]} if values["free"] else {}),
    )
    return replace(config, return_weights=False)


def _layer(values: dict, config: AttentionConfig, dtype: torch.dtype) -> MultiHeadAttention:
    with torch.device("meta"):
        layer = MultiHeadAttention(config)
    layer = layer.to_empty(device="cpu").to(dtype)
    inits = {"query": values["wq"], "key": values["wk"], "value": values["wv"], "out": values["wo"]}
    initialise_(layer, inits, {"qkv": values["bqkv"], "out": values["bo"]}, seed=values["seed"])
    return layer.train(values["training"] and values["drop"] > 0)


def _mask(values: dict, query_len: int, key_len: int, pads: int) -> tuple[Tensor | None, list[AttentionError]]:
    chosen = values["masks"]
    parts = {
        "causal": lambda: masks.causal(query_len, key_len, align=values["align"]),
        "prefix": lambda: masks.prefix(query_len, key_len, length=values["prefix"]),
        "window": lambda: masks.window(query_len, key_len, width=values["window"]),
        "block": lambda: masks.block(query_len, key_len, size=values["block"]),
        "padding": lambda: masks.padding([key_len - pads], key_len)[0, 0],
    }
    mask = masks.combine(*(make() for name, make in parts.items() if name in chosen))
    if "edited" not in chosen:
        return (None if mask is None else mask.expand(query_len, key_len)), []
    base = masks.full(query_len, key_len) if mask is None else mask.expand(query_len, key_len)
    cells = parse_cells(values["cells"])
    inside = [(row, column) for row, column in cells if row < query_len and column < key_len]
    notices = []
    if len(inside) < len(cells):
        notices.append(
            AttentionError(
                "Edited cells outside this map of {query_len} × {key_len}: {count}. They wait until it is larger.",
                count=len(cells) - len(inside),
                query_len=query_len,
                key_len=key_len,
            )
        )
    return masks.edited(base, inside), notices
