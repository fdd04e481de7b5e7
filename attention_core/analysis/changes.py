"""The custom layer with a real attention's weights, as it is and with one thing changed.

    layer = real_layer(run.projections(kind, layer), scale)     the same attention, computed from scratch
    layer = changed_layer(projections, scale, Change(...))      the same, but for what the change says

Both are MultiHeadAttention; ``changed_steps`` also feeds it the recorded input and mask.
"""

from dataclasses import dataclass, replace
from math import isclose, sqrt

import torch
from torch import Tensor

from attention_core.errors import AttentionError
from attention_core.layer import masks
from attention_core.layer.attention import AttentionSteps
from attention_core.layer.multihead import AttentionConfig, MultiHeadAttention
from attention_core.layer.presets import PRESETS
from attention_core.layer.projections import Projections

MATRICES = ("query", "key", "value", "out")
MASKS = ("recorded", "full", "causal", "window", "block")
WEIGHTS = ("real", "shuffled", "random")


@dataclass(frozen=True)
class Change:
    """What is different from the real attention; the defaults change nothing.

    Attributes:
        scale: None = the real one; "head_dim" = 1/sqrt(head_dim), "d_model" = 1/sqrt(d_model), "none" = 1, or a number.
        temperature: divides the scale; above 1 flattens, below 1 sharpens.
        mask: "recorded"; "full" = every query sees every key that any query sees; "causal", "window" or "block" = of the
            recorded mask, what that mask shows too.
        width: keys on each side of a window; size of a block; in tokens.
        preset: a name of attention_core.presets. "standard", "bert" and "cabm" compute the same numbers; "bart_simplified"
            has one head_dim x head_dim matrix for all heads, here the mean of the real diagonal blocks, no bias on query, key
            and value, the real output projection, and the scale 1/sqrt(d_model).
        num_heads: None = the real number; another number cuts the same matrices into more or fewer heads.
        without_bias: those of MATRICES whose bias is dropped.
        weights: "real"; "shuffled" = each matrix holds its own numbers in random order; "random" = drawn as a new layer is
            (Xavier-uniform, biases 0), the real weights being left out altogether.
        matrices: those of MATRICES that ``weights`` is about.
        seed: of the shuffling and drawing.
        dtype: None = the real one; "float16", "bfloat16", "float32" or "float64".
    """

    scale: str | float | None = None
    temperature: float = 1.0
    mask: str = "recorded"
    width: int = 2
    preset: str = "standard"
    num_heads: int | None = None
    without_bias: tuple[str, ...] = ()
    weights: str = "real"
    matrices: tuple[str, ...] = MATRICES
    seed: int = 0
    dtype: str | None = None


_DTYPES = {name: getattr(torch, name) for name in ("float16", "bfloat16", "float32", "float64")}


def real_layer(projections: Projections, scale: float) -> MultiHeadAttention:
    """The from-scratch layer with a copy of a real attention's weights, in eval mode.

    Args:
        projections: of the real attention.
        scale: what it multiplies its dot products with.

    Raises:
        AttentionError: an attention whose output projection is not known.
    """
    return changed_layer(projections, scale, Change())


def changed_layer(projections: Projections, scale: float, change: Change) -> MultiHeadAttention:
    """The from-scratch layer with a real attention's weights and one thing or several changed, in eval mode.

    Args:
        projections: of the real attention (not shared between heads).
        scale: what it multiplies its dot products with.
        change: what is different; its mask and dtype are for ``changed_steps``.

    Raises:
        AttentionError: a change that cannot be made to this attention, or an output projection that is not known.
    """
    layer = _new_layer(_config(projections, scale, change), projections.query_weight)
    weights, biases = _parts(projections)
    if layer.config.projection == "shared":
        for name in MATRICES[:3]:
            weights[name], biases[name] = mean_block(weights[name], layer.config.num_heads), None
    generator = torch.Generator().manual_seed(change.seed)
    fresh = _fresh(layer.config, change.seed) if change.weights == "random" else None
    with torch.no_grad():
        for name in MATRICES:
            weight, bias = weights[name], biases[name]
            if change.weights != "real" and name in change.matrices:
                if fresh is None:
                    order = torch.randperm(weight.numel(), generator=generator).to(weight.device)
                    weight = weight.flatten()[order].view_as(weight)
                else:
                    weight, bias = getattr(fresh, f"{name}_weight"), None
            getattr(layer, f"{name}_weight").copy_(weight)
            place = getattr(layer, f"{name}_bias")
            if place is not None:
                # Not 0 * place: what stands there is memory that nothing has been written to, which may hold nan.
                place.zero_() if bias is None or name in change.without_bias else place.copy_(bias)
    return layer.eval()


def changed_steps(
    projections: Projections, scale: float, mask: Tensor | None, change: Change
) -> tuple[MultiHeadAttention, AttentionSteps]:
    """The changed layer, and what it makes of the recorded input.

    Args:
        projections, scale, change: as for ``changed_layer``.
        mask: the recorded one, boolean, True = may attend; None = all visible.

    Returns:
        the layer, and its AttentionSteps: (batch, heads, query_len, key_len) and so on, with the output.

    Raises:
        AttentionError: a change that cannot be made to this attention.
    """
    inputs = [projections.query_input, projections.key_input, projections.value_input]
    if inputs[1] is inputs[0]:
        inputs = inputs[:1] if inputs[2] is inputs[0] else inputs
    layer = changed_layer(projections, scale, change)
    shape = (inputs[0].shape[1], projections.key_input.shape[1])
    mask = changed_mask(mask, *shape, change)
    if mask is not None and mask.dim() == 4 and mask.shape[1] not in (1, layer.config.num_heads):
        raise AttentionError("this attention's mask differs between heads: another number of heads has no mask")
    if change.dtype is not None:
        dtype = _known(change.dtype, _DTYPES, "dtype")
        layer, inputs = layer.to(dtype), [x.to(dtype) for x in inputs]
    with torch.no_grad():
        return layer, layer.steps(*inputs, mask=mask)


def changed_mask(mask: Tensor | None, query_len: int, key_len: int, change: Change) -> Tensor | None:
    """The mask that a change makes of the recorded one: boolean, True = may attend; None = all visible.

    Raises:
        AttentionError: no such mask, or a width that cannot be.
    """
    rule = _known(change.mask, dict.fromkeys(MASKS), "mask", change.mask)
    if rule == "recorded":
        return mask
    if rule == "full":
        return None if mask is None else mask.any(-2, keepdim=True).expand(mask.shape)
    made = {
        "causal": lambda: masks.causal(query_len, key_len),
        "window": lambda: masks.window(query_len, key_len, width=change.width),
        "block": lambda: masks.block(query_len, key_len, size=change.width),
    }[rule]()
    return masks.combine(mask, made if mask is None else made.to(mask.device))


def mean_block(weight: Tensor, num_heads: int) -> Tensor:
    """The mean over heads of a matrix's diagonal blocks: what one shared matrix keeps of it.

    block_h = weight[h head_dim : (h + 1) head_dim, h head_dim : (h + 1) head_dim], what head h makes of its own slice of the
    input.

    Args:
        weight: (num_heads * head_dim, num_heads * head_dim).

    Returns:
        (head_dim, head_dim).

    Raises:
        AttentionError: a matrix that is not square, or not to be cut into so many heads.
    """
    rows, columns = weight.shape
    if rows != columns or rows % num_heads:
        raise AttentionError(
            "a shared matrix needs square projections that the heads divide: this one is {rows} x {columns}, for {num_heads} "
            "heads",
            rows=rows,
            columns=columns,
            num_heads=num_heads,
        )
    size = rows // num_heads
    blocks = weight.view(num_heads, size, num_heads, size).diagonal(dim1=0, dim2=2)  # (size, size, num_heads)
    return blocks.mean(-1)


@dataclass(frozen=True)
class OutputEffect:
    """What a change does to a module's output, O before and P after.

    Attributes:
        relative: ||P - O|| / ||O||, Frobenius norms over all texts and positions; 0 = nothing changed.
        cosine: mean over positions of cos(P_i, O_i), from -1 to 1.
        largest: largest absolute difference of a number.
    """

    relative: float
    cosine: float
    largest: float


def output_effect(before: Tensor, after: Tensor, rows: Tensor | None = None) -> OutputEffect:
    """How far the output moved.

    Args:
        before, after: (batch, query_len, d_model).
        rows: (batch, query_len), True at positions to count (real tokens); None = all.

    Raises:
        AttentionError: outputs of different shapes.
    """
    if before.shape != after.shape:
        raise AttentionError(
            "outputs of one shape can be compared, not {first} and {second}",
            first=tuple(before.shape),
            second=tuple(after.shape),
        )
    rows = torch.ones(before.shape[:2], dtype=torch.bool, device=before.device) if rows is None else rows
    before, after = before[rows].double(), after[rows].double()
    off, size = (after - before).norm(), before.norm()
    return OutputEffect(
        relative=float(off / size) if size else 0.0 if off == 0 else float("inf"),
        cosine=float(torch.cosine_similarity(before, after, dim=-1).mean()),
        largest=float((after - before).abs().max()) if before.numel() else 0.0,
    )


def _config(projections: Projections, scale: float, change: Change) -> AttentionConfig:
    if projections.out_weight is None:
        raise AttentionError("the output projection of this attention is not known, so no layer can be made of it")
    _known(change.preset, PRESETS, "preset")
    _known(change.weights, dict.fromkeys(WEIGHTS), "weights")
    for name in (*change.without_bias, *change.matrices):
        _known(name, dict.fromkeys(MATRICES), "matrix")
    inner, d_model = projections.query_weight.shape
    heads = projections.num_heads if change.num_heads is None else change.num_heads
    if heads < 1 or inner % heads:
        raise AttentionError(
            "{inner} columns cannot be cut into {num_heads} heads of one width: choose a divisor of {inner}",
            inner=inner,
            num_heads=heads,
        )
    fields = {
        "head_dim": inner // heads,
        "key_dim": projections.key_weight.shape[1],
        "value_dim": projections.value_weight.shape[1],
        "qkv_bias": any(getattr(projections, f"{name}_bias") is not None for name in MATRICES[:3]),
        "out_bias": projections.out_bias is not None,
        "scale": _scale(projections, scale, change),
        "temperature": change.temperature,
        "dropout": 0.0,
    }
    if change.preset == "bart_simplified":
        kept = ("out_bias", "temperature", "dropout") + (("scale",) if change.scale is not None else ())
        fields = {name: fields[name] for name in kept}
        mean_block(projections.query_weight, heads)
    return replace(PRESETS[change.preset](d_model, heads, **fields), return_weights=False)


def _scale(projections: Projections, scale: float, change: Change) -> str | float:
    if change.scale is not None:
        return change.scale
    usual = 1 / sqrt(projections.query_weight.shape[0] // projections.num_heads)
    # A scale that follows the rule goes on following it where the cut into heads changes.
    return "head_dim" if isclose(scale, usual, rel_tol=1e-12) else scale


def _parts(projections: Projections) -> tuple[dict[str, Tensor], dict[str, Tensor | None]]:
    weights = {name: getattr(projections, f"{name}_weight") for name in MATRICES}
    return weights, {name: getattr(projections, f"{name}_bias") for name in MATRICES}


def _new_layer(config: AttentionConfig, like: Tensor) -> MultiHeadAttention:
    """A layer whose numbers are yet to be filled in."""
    with torch.device("meta"):
        layer = MultiHeadAttention(config)
    return layer.to_empty(device=like.device).to(like.dtype)


def _fresh(config: AttentionConfig, seed: int) -> MultiHeadAttention:
    """A new layer, drawn with this seed; torch's global generator stays as it was."""
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.manual_seed(seed)
        return MultiHeadAttention(config)


def _known(name: object, known: dict, what: str, found: object = None) -> object:
    if name not in known:
        raise AttentionError(
            "{what} must be one of {known}, not {name!r}", what=what, known=", ".join(map(str, known)), name=name
        )
    return known[name] if found is None else found
