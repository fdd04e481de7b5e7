"""The mean context of every head: what it adds on average, whatever the text.

``python -m attention_core.extract.means`` takes those of the embedded model over its stories again, and writes the shipped file.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file

from ..errors import AttentionError
from .interventions import Means
from .models import EMBEDDED, LoadedModel
from .trace import trace

SHIPPED = EMBEDDED / "mean_contexts.safetensors"


def stories() -> tuple[str, ...]:
    """The paragraphs of the stories that come with the embedded model, which it never saw in training."""
    lines = (EMBEDDED / "stories.jsonl").read_text(encoding="utf-8").splitlines()
    return tuple(paragraph for line in lines for paragraph in json.loads(line)["paragraphs"])


def mean_contexts(
    model: LoadedModel,
    texts: Sequence[str] | None = None,
    *,
    on_progress: Callable[[int, int], None] | None = None,
) -> Means:
    """The mean of each head's context over the query positions of some texts.

    mean_h = 1/N sum over texts and their positions i of context_h,i; every real position counts once, control tokens too. A
    decoder reads the text that its encoder reads, shifted right by the library.

    Args:
        model: from ``load_model``.
        texts: None = the stories that come with the embedded model; for the embedded model itself that result is shipped.
            What is longer than the model takes is cut.
        on_progress: called with the texts done and the texts in all, after each.

    Returns:
        Means.

    Raises:
        AttentionError: no texts, or a model without a tokenizer.
    """
    if texts is None and model.report.origin == "embedded" and SHIPPED.is_file():
        return load_means(SHIPPED)
    texts = stories() if texts is None else list(texts)
    if not texts:
        raise AttentionError("mean contexts need at least one text")
    means = None
    for done, found in enumerate(running_means(model, texts), 1):
        means = found
        if on_progress is not None:
            on_progress(done, len(texts))
    return means


def running_means(model: LoadedModel, texts: Sequence[str]) -> Iterator[Means]:
    """The means over the first text, the first two, and so on: for whoever shows progress or stops early."""
    sums: dict[tuple[str, int], torch.Tensor] = {}
    positions = dict.fromkeys(model.kinds, 0)
    for text in texts:
        run = trace(model, model.cut_text(text))
        for kind in run.kinds:
            # One text has no padding: every row counts.
            positions[kind] += run.side(kind, "query").ids.shape[1]
            for layer in range(run.num_layers(kind)):
                with torch.no_grad():
                    context = run.call(kind, layer).fused()  # (1, query_len, heads, head_dim)
                total = context[0].double().sum(0)
                sums[kind, layer] = sums.get((kind, layer), 0) + total
        yield Means({place: (total / positions[place[0]]).float() for place, total in sums.items()}, dict(positions))


def save_means(means: Means, file: Path) -> None:
    """Writes means as safetensors."""
    vectors = {f"{kind}.{layer}": vector.cpu().contiguous() for (kind, layer), vector in means.vectors.items()}
    save_file(vectors, file, metadata={"positions": json.dumps(dict(means.positions))})
    file.chmod(0o644)


def load_means(file: Path) -> Means:
    """Reads what ``save_means`` wrote.

    Raises:
        AttentionError: another file.
    """
    try:
        with safe_open(file, "pt") as opened:
            positions = json.loads((opened.metadata() or {})["positions"])
        vectors = {}
        for name, vector in load_file(file).items():
            kind, _, layer = name.partition(".")
            vectors[kind, int(layer)] = vector
    except (OSError, KeyError, ValueError, SafetensorError) as error:
        raise AttentionError("{file} does not hold mean contexts", file=file) from error
    return Means(vectors, positions)


if __name__ == "__main__":
    from .models import load_model

    save_means(mean_contexts(load_model("embedded"), stories()), SHIPPED)
