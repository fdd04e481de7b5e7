"""Write MODEL_CARD.md of a model folder: the words of card_template.md around the figures of figures.json."""

import json
from html import escape
from pathlib import Path
from string import Template

from attention_core.embedded_training.heads import KINDS, PATTERNS, RESTING

TEMPLATE = Path(__file__).with_name("card_template.md")


def _table(header: list[str], rows: list[list[object]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |" for line in lines)


def _heads(figures: dict, kind: str) -> str:
    columns = [name for name in figures["heads"][kind][0] if name not in ("layer", "head", "label", "strong")]
    switched_off = {(row["layer"], row["head"]): row for row in figures["ablation"][kind]}
    rows = []
    for row in figures["heads"][kind]:
        off = switched_off[row["layer"], row["head"]]
        label = f"`{row['label']}`" if row["label"] else ""
        label = f"**{label}**" if row["strong"] else label
        values = [f"{row[name]:.2f}" for name in columns]
        accuracies = [f"{off[key]:.3f}" for key in ("visible_accuracy", "masked_accuracy")]
        rows.append([f"{row['layer']}.{row['head']}", label, *values, *accuracies])
    return _table(["head", "pattern", *(f"`{c}`" for c in columns), "visible without it", "masked without it"], rows)


def _strongest(figures: dict) -> str:
    rows = [
        [
            kind,
            f"`{name}`",
            f"{figures['strongest'][kind][name]:.2f}",
            f"{figures['strongest_untrained'][kind][name]:.2f}",
        ]
        for kind in KINDS
        for name in (*PATTERNS[kind], *RESTING[kind])
    ]
    return _table(["kind", "pattern", "best head, trained", "best head, untrained copy"], rows)


def _counts(figures: dict) -> str:
    rows = []
    for kind in KINDS:
        heads = figures["heads"][kind]
        named = [
            f"`{name}` {n}" for name in PATTERNS[kind] if (n := sum(r["strong"] and r["label"] == name for r in heads))
        ]
        resting = [f"`{name}` {n}" for name in RESTING[kind] if (n := sum(r["label"] == name for r in heads))]
        rows.append([kind, len(heads), ", ".join(named) or "none", ", ".join(resting) or "none"])
    return _table(["kind", "heads", "with a pattern above 0.8", "resting above 0.5"], rows)


def _runs(last: dict) -> list[dict]:
    """The runs that the weights went through, the first one first: each but that one began with the weights of the one before."""
    return [*(_runs(last["before"]) if "before" in last else []), last]


def write_card(folder: Path, notes: str = "") -> None:
    """Write folder/MODEL_CARD.md from folder/figures.json; notes: remarks on how this run went."""
    figures = json.loads((folder / "figures.json").read_text(encoding="utf-8"))
    accuracy, dev = figures["accuracy"], figures["dev_accuracy"]
    gates = [
        [name, f"{gate['measured']:.3f}", gate["needed"], "met" if gate["met"] else "**missed**"]
        for name, gate in figures["gates"].items()
    ]
    # Unescaped, <mask> is swallowed as an HTML tag.
    infill = [[escape(p[key], quote=False) for key in ("text", "hidden", "answer")] for p in figures["infill"]]
    copies = [[p["text"], "exact" if p["exact"] else escape(p["answer"], quote=False)] for p in figures["copies"]]
    runs = _runs(figures["run"])
    card = Template(TEMPLATE.read_text(encoding="utf-8")).substitute(
        steps=sum(run["step"] for run in runs),
        tokens=f"{sum(run['tokens'] for run in runs) / 1e6:.1f}",
        minutes=round(sum(run["seconds"] for run in runs) / 60),
        seed=", then ".join(str(run["seed"]) for run in runs),
        notes=notes.strip(),
        parameters=f"{figures['parameters'] / 1e6:.2f}",
        megabytes=f"{figures['bytes'] / 1e6:.1f}",
        vocab_size=figures["vocab_size"],
        masked=f"{accuracy['masked_accuracy']:.3f}",
        visible=f"{accuracy['visible_accuracy']:.3f}",
        masked_nats=f"{accuracy['masked_nats']:.2f}",
        visible_nats=f"{accuracy['visible_nats']:.2f}",
        masked_pieces=accuracy["masked_pieces"],
        visible_pieces=accuracy["visible_pieces"],
        dev_masked=f"{dev['masked_accuracy']:.3f}",
        dev_visible=f"{dev['visible_accuracy']:.3f}",
        intact_visible=f"{figures['ablation_intact']['visible_accuracy']:.3f}",
        intact_masked=f"{figures['ablation_intact']['masked_accuracy']:.3f}",
        exact_copies=sum(p["exact"] for p in figures["copies"]),
        lengths=_table(
            ["pieces in the text", "hidden", "visible"],
            [
                [length, f"{found['masked_accuracy']:.3f}", f"{found['visible_accuracy']:.3f}"]
                for length, found in figures["accuracy_by_length"].items()
            ],
        ),
        gates=_table(["asked for", "measured", "needed", ""], gates),
        counts=_counts(figures),
        strongest=_strongest(figures),
        encoder_heads=_heads(figures, "encoder"),
        decoder_heads=_heads(figures, "decoder"),
        cross_heads=_heads(figures, "cross"),
        infill=_table(["sentence", "hidden", "answer"], infill),
        copies=_table(["sentence", "copy"], copies),
    )
    (folder / "MODEL_CARD.md").write_text(card, encoding="utf-8")
