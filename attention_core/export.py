"""Taking a view away: tensors as npz, a table as csv, and the Python that gives the same numbers."""

import csv
import io
import json
from collections.abc import Mapping, Sequence
from pprint import pformat

import numpy as np
from torch import Tensor

from .layer.attention import AttentionSteps

STAGES = ("query", "key", "value", "scores", "weights", "context", "output")
# What a spreadsheet reads as the start of a formula.
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")


def steps_npz(
    steps: AttentionSteps,
    *,
    heads: Sequence[int],
    query_tokens: Sequence[str],
    key_tokens: Sequence[str],
    settings: Mapping[str, object],
) -> bytes:
    """Every stage of an attention as one compressed npz; ``numpy.load`` reads it without unpickling anything.

    Args:
        steps: of one text or a batch.
        heads: which heads of the layer the steps hold.
        query_tokens, key_tokens: labels of rows and columns, saved as texts.
        settings: what the view was made from (model, texts, kind, layer, ...), saved as JSON under "settings".

    Returns:
        the file: query, key, value, scores (scaled, before the mask), mask (True = may attend), weights, context, output
        (where all heads were asked for), scale, heads, query_tokens, key_tokens, settings. float64 stays; everything narrower
        is float32.
    """
    arrays = {name: _array(getattr(steps, name)) for name in STAGES if getattr(steps, name) is not None}
    file = io.BytesIO()
    np.savez_compressed(
        file,
        **arrays,
        mask=steps.full_mask().cpu().numpy(),
        scale=np.float64(steps.scale),
        heads=np.array(heads, dtype=np.int64),
        query_tokens=_texts(query_tokens),
        key_tokens=_texts(key_tokens),
        settings=np.array(json.dumps(dict(settings), ensure_ascii=False, indent=1)),
    )
    return file.getvalue()


def table_csv(values: np.ndarray, row_labels: Sequence[str], column_labels: Sequence[str]) -> str:
    """A table as csv: position and token of each row, then its numbers to the last digit.

    Labels that a spreadsheet would run as a formula ("=1+1", "@sum") get an apostrophe before them, which makes them text.

    Args:
        values: (rows, columns); what is not finite is left empty.
        row_labels, column_labels: one each.
    """
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(["position", "token", *(f"{place} {label}" for place, label in enumerate(column_labels))])
    for place, (label, row) in enumerate(zip(row_labels, np.asarray(values))):
        writer.writerow([place, safe_cell(label), *("" if not np.isfinite(cell) else str(cell) for cell in row)])
    return file.getvalue()


def safe_cell(text: str) -> str:
    """A text as a cell that no spreadsheet runs."""
    return f"'{text}" if text.lstrip(" \u00a0").startswith(_FORMULA) else text


def python_lines(
    *,
    model: str,
    revision: str | None,
    device: str,
    dtype: str,
    source: str,
    target: str | None,
    beams: int | None,
    kind: str,
    layer: int,
    head: int,
    reading: Sequence[str] = (),
) -> str:
    """The Python that gives the numbers of one head.

    Args:
        model, revision, device, dtype: as ``load_model`` takes them.
        source: the text.
        target: the typed target; None where there is none.
        beams: of the search, where the model writes the target (1 = greedy); None where it does not.
        kind, layer, head: as shown.
        reading: steps of ``attention_core.analysis.reading``, where some are on.
    """
    lines = ["from attention_core import load_model, trace"]
    if reading:
        lines.append("from attention_core.analysis.reading import read_map")
    if beams is not None and beams > 1:
        lines.append("from attention_core.extract.inputs import Generation")
    named = "" if revision is None else f", revision={revision!r}"
    named += f", device={device!r}" + ("" if dtype == "float32" else f", dtype={dtype!r}")
    lines += ["", f"model = load_model({model!r}{named})", f"source = {_text(source, 'source = ')}"]
    arguments = ["model", "source"]
    if target is not None:
        lines.append(f"target = {_text(target, 'target = ')}")
        arguments.append("target=target")
    if beams is not None:
        arguments.append("generate=True" if beams == 1 else f"generate=Generation(num_beams={beams})")
    lines.append(f"run = trace({', '.join(arguments)})")
    lines.append(f"head = run.steps({kind!r}, layer={layer}, heads=[{head}])")
    if reading:
        lines.append(
            f"read = read_map(run, {kind!r}, head.weights[0, 0], head.full_mask()[0, 0], steps={tuple(reading)!r})"
        )
        lines += ["print(read.row_labels, read.column_labels)", "print(read.weights)"]
    else:
        lines += [f"print(run.query_tokens({kind!r}), run.key_tokens({kind!r}))", "print(head.weights[0, 0])"]
    return "\n".join(lines) + "\n"


def _text(text: str, lead: str) -> str:
    """A text as a Python literal, over several lines where it is long."""
    literal = pformat(text, width=100 - len(lead))
    return literal if literal.startswith("(") or "\n" not in literal else f"({literal})"


def _array(x: Tensor) -> np.ndarray:
    x = x.detach().cpu()
    return x.numpy() if x.dtype.itemsize > 2 else x.float().numpy()


def _texts(labels: Sequence[str]) -> np.ndarray:
    return np.array([str(label) for label in labels], dtype=np.str_)
