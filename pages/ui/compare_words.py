"""What the Compare page says: what happened, in numbers, and why, by the theory."""

from math import sqrt

import torch

from attention_core.analysis.changes import Change, OutputEffect
from attention_core.analysis.compare import MapComparison
from attention_core.analysis.equality import Equality, StageDifference
from attention_core.layer.attention import AttentionSteps
from pages.ui.cells import number
from pages.ui.stages import stage_info
from pages.ui.text import _, verbatim


def verdict_names() -> dict[str, str]:
    """Verdicts on a stage."""
    return {"bit-equal": _("bit‑equal"), "equal": _("equal"), "differs": _("differs")}


def verdict(equality: Equality) -> str:
    """The verdict on one attention in a sentence."""
    if equality.bit_equal:
        return _(
            "**Equal, to the last bit.** The layer from scratch, with this attention's weights and its "
            "recorded input, gives every number that the model gave."
        )
    if equality.equal:
        worst = max(equality.stages, key=lambda stage: stage.share)
        return _(
            "**Equal.** The layer from scratch, with this attention's weights and its recorded input, gives "
            "the model's numbers at every stage. What differs is rounding: at most {share} % of what the "
            "number format allows ({stage})."
        ).format(share=number(100 * worst.share, 2), stage=stage_info()[worst.stage].title.lower())
    first = equality.first
    more = ""
    if first.stage in ("query", "key"):
        more = " " + _(
            "Some families do more between projection and attention (rotary positions turn Q and K); the layer has no "
            "such step."
        )
    return _not_equal(first) + more


def _not_equal(first: StageDifference) -> str:
    return _(
        "**Not equal: {stage} is the first stage that differs**, by up to {largest}, {share} times what "
        "rounding allows, in {outside} of {cells} cells. What comes after it differs because of it."
    ).format(
        stage=stage_info()[first.stage].title,
        largest=number(first.largest, 3),
        share=number(first.share, 3),
        outside=f"{first.outside:,}",
        cells=f"{first.cells:,}",
    )


def happened(compared: MapComparison, rows: list[str]) -> str:
    """What a change did to the weights of one head."""
    before, after = (float(x[0]) for x in (compared.mean_entropy, compared.mean_entropy_after))
    mean = float(compared.mean_divergence[0])
    if mean != mean:
        return _("No row of this map sees two keys, so there is nothing to compare.")
    if float(compared.difference.abs().max()) == 0:
        return _("Not one weight of this head moved: the difference is 0 everywhere.")
    divergence = torch.where(compared.counted, compared.divergence, -1)[0, 0]
    row = int(divergence.argmax())
    if before == before and number(before, 3) != number(after, 3):
        text = _("This head became flatter") if after > before else _("This head became sharper")
        text += _(": its mean entropy went from {before} to {after} (0 = all on one key, 1 = uniform).").format(
            before=number(before, 3), after=number(after, 3)
        )
    else:
        text = _("This head stayed as sharp as it was: mean entropy {after}.").format(after=number(after, 3))
    return (
        text
        + " "
        + _("Its rows moved by {mean} nats on average, most at row {row}, {token}: {top} of at most 0.693.").format(
            mean=number(mean, 3), row=row, token=verbatim(rows[row]), top=number(float(divergence[row]), 3)
        )
    )


def output_moved(effect: OutputEffect) -> str:
    """What a change did to the module's output."""
    if effect.relative == 0:
        return _("The module's output did not move at all.")
    return _(
        "The module's output, all heads together, moved by {relative} % of its length; the cosine between its "
        "old and its new direction is {cosine}."
    ).format(relative=number(100 * effect.relative, 3), cosine=number(effect.cosine, 3))


def why(thing: str, change: Change, before: AttentionSteps, after: AttentionSteps) -> str:
    """Why a change does what it does."""
    heads, head_dim = before.query.shape[1], before.query.shape[-1]
    if thing == "scale" and after.scale == before.scale:
        return _("This is the scale that the model uses, so nothing changes.")
    reasons = {
        "scale": _(
            "Scores are multiplied by {after} in place of {before}. Softmax looks at differences between scores, "
            "so smaller ones flatten the weights and larger ones sharpen them."
        ).format(after=number(after.scale, 3), before=number(before.scale, 3))
        + (
            " "
            + _(
                "Dividing by √d_model in place of √head_dim is a temperature of √heads = {root}: a widely "
                "copied slip, which makes maps plausible but too flat."
            ).format(root=number(sqrt(heads), 3))
            if change.scale == "d_model"
            else ""
        ),
        "temperature": _(
            "The temperature divides every score by {heat}. The order of the keys in a row stays; above 1 "
            "the largest weights give some of theirs to the others, below 1 they take more."
        ).format(heat=number(change.temperature, 3)),
        "mask": {
            "full": _(
                "Keys that were hidden take part in the softmax now. What they get is taken from the visible "
                "ones, in proportion. The model was never trained to see them."
            ),
            "causal": _(
                "No query sees a key after itself any more. What it gave to those is shared out among the "
                "others, in proportion."
            ),
            "window": _(
                "Only the keys within {width} positions on each side are left. Their weights keep their "
                "proportions and grow until they sum to 1 again; what lay further away is lost."
            ).format(width=change.width),
            "block": _(
                "Only keys of a query's own block of {width} are left. Their weights keep their proportions "
                "and grow until they sum to 1 again."
            ).format(width=change.width),
        }.get(change.mask, ""),
        "preset": _preset(change, heads, head_dim),
        "cut": _(
            "The same {width} columns of Q and K are cut into {after} heads in place of {before}. The raw "
            "product of a wider head is the sum of those of the heads it is made of; a narrower one sees "
            "only part of the sum. Training fitted each cut to its head."
        ).format(width=heads * head_dim, after=after.query.shape[1], before=heads),
        "biases": _biases(change),
        "weights": _(
            "Each matrix holds its own numbers in another order, so their sizes are the model's and what "
            "they learnt is gone. Only what the input itself holds is left."
        )
        if change.weights == "shuffled"
        else _("The layer is as it would be before any training: nothing in it knows the language."),
        "half": _(
            "Inputs and weights are rounded to {format}, which keeps {digits} binary digits; scores and "
            "softmax are computed in float32 all the same. What moves is that rounding."
        ).format(format=change.dtype, digits={"float16": 11, "bfloat16": 8, "float64": 53}.get(change.dtype, 24)),
    }
    return reasons[thing]


def _preset(change: Change, heads: int, head_dim: int) -> str:
    if change.preset in ("bert", "cabm"):
        return _(
            "This preset differs in dropout and in what a call returns. Outside training it computes the "
            "very same numbers."
        )
    return _(
        "The simplified BART layer has one {dim} × {dim} matrix for all heads, each for Q, K and V. Here it "
        "is **the mean over the {heads} heads of the real matrix's diagonal {dim} × {dim} blocks**, with "
        "**the real output projection**. No head sees the other heads' features, no head has queries of its "
        "own, there is no bias on Q, K and V, and 1 / √d_model flattens the weights {root}-fold. To see what "
        "the scale alone does, choose “Scale of the scores” and 1 / √d_model."
    ).format(dim=head_dim, heads=heads, root=number(sqrt(heads), 3))


def _biases(change: Change) -> str:
    said = {
        "query": _("Without the bias of Q, every query loses one fixed vector: scores lose what each key owed to it."),
        "key": _(
            "Without the bias of K, all scores of a row lose one number. Softmax does not see a number that "
            "is the same for all keys, so no weight moves."
        ),
        "value": _(
            "Without the bias of V, every context loses that bias, whatever the weights, since they sum to "
            "1: all positions move by one vector."
        ),
        "out": _("Without the bias of the output, every position moves by that bias."),
    }
    return " ".join(said[name] for name in change.without_bias) or _("No bias is dropped, so nothing changes.")


def trained(trained_entropy: float, fresh_entropy: float) -> str:
    """What training made of a layer, by its entropy."""
    return (
        _(
            "Trained, the heads of this layer have a mean entropy of {trained}; a new layer on the same "
            "input has {fresh}. Before training every query shares itself out over almost all keys, by "
            "chance; training taught heads where to look."
        ).format(trained=number(trained_entropy, 3), fresh=number(fresh_entropy, 3))
        if trained_entropy < fresh_entropy
        else _(
            "Trained, the heads of this layer have a mean entropy of {trained}; a new layer on the same "
            "input has {fresh}. Here training did not make the layer sharper."
        ).format(trained=number(trained_entropy, 3), fresh=number(fresh_entropy, 3))
    )
