"""Measure a model folder on whole held-out books and write its figures.json.

Everything is taken on books that neither the model nor the tokenizer has seen, with fixed seeds; the same numbers come
out every time. The model card is made from these figures.
"""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, BartForConditionalGeneration

from attention_core.embedded_training.heads import KINDS, head_table, strongest, switched_off
from attention_core.embedded_training.noise import EVALUATION, Batch, Unit, collate, corrupt, count_tokens
from attention_core.embedded_training.prepare import Book, load_books
from attention_core.embedded_training.train import accuracy

PROMPTS = Path(__file__).with_name("prompts.json")
TEXT_TOKENS = 120
HEAD_SENTENCES = 100
ABLATION_TEXTS = 100


def load(folder: Path) -> tuple[BartForConditionalGeneration, AutoTokenizer]:
    """The model, with eager attention so that it returns its weights, and the tokenizer of a folder; no network."""
    model = AutoModelForSeq2SeqLM.from_pretrained(folder, attn_implementation="eager", local_files_only=True)
    return model.eval(), AutoTokenizer.from_pretrained(folder, local_files_only=True)


def random_copy(model: BartForConditionalGeneration) -> BartForConditionalGeneration:
    """The same architecture as it was before training, seeded."""
    torch.manual_seed(0)
    return BartForConditionalGeneration._from_config(model.config, attn_implementation="eager").eval()


def paragraph_texts(books: list[Book], cap: int = TEXT_TOKENS) -> list[list[list[Unit]]]:
    """Every paragraph of whole books as a text of sentences; one of more than cap pieces is cut between sentences."""
    texts = []
    for paragraph in (paragraph for book in books for paragraph in book.paragraphs):
        text: list[list[Unit]] = []
        for sentence in paragraph:
            if text and count_tokens([*text, sentence]) > cap:
                texts.append(text)
                text = []
            text.append(sentence)
        texts.append(text)
    return texts


def noisy_batches(texts: list[list[list[Unit]]], vocab_size: int, seed: int = 0) -> list[Batch]:
    """BART's noise at infilling ratio 0.25 and sentence permutation 0.25, always the same."""
    rng = np.random.default_rng(seed)
    examples = [corrupt(text, EVALUATION, rng, vocab_size) for text in texts]
    examples.sort(key=lambda e: len(e.target))
    return [collate(examples[i : i + 32]) for i in range(0, len(examples), 32)]


def accuracy_by_length(model: BartForConditionalGeneration, texts: list[list[list[Unit]]]) -> dict[str, dict]:
    """The same accuracy for texts of up to 24, 48, 96 and more pieces, 200 texts each."""
    result, low = {}, 0
    for high in (24, 48, 96, TEXT_TOKENS):
        fitting = [text for text in texts if low < count_tokens(text) <= high]
        chosen = np.random.default_rng(0).permutation(len(fitting))[:200]
        if len(chosen):
            batches = noisy_batches([fitting[i] for i in chosen], model.config.vocab_size)
            result[f"{low + 1}-{high}"] = accuracy(model, batches)
        low = high
    return result


def clean_sentences(books: list[Book], count: int, seed: int = 0) -> list[list[Unit]]:
    """Single sentences of 8 to 60 pieces drawn from all books."""
    fitting = [s for book in books for s in book.sentences if 8 <= count_tokens([s]) <= 60 and len(s) > 3]
    chosen = np.random.default_rng(seed).choice(len(fitting), min(count, len(fitting)), replace=False)
    return [fitting[i] for i in chosen]


@torch.no_grad()
def generate(model: BartForConditionalGeneration, tokenizer: AutoTokenizer, text: str) -> str:
    """The greedy answer to a text."""
    inputs = tokenizer(text, return_tensors="pt")
    ids = model.generate(
        input_ids=inputs.input_ids,
        attention_mask=inputs.attention_mask,
        num_beams=1,
        do_sample=False,
        max_new_tokens=inputs.input_ids.shape[1] + 20,
    )
    return tokenizer.decode(ids[0], skip_special_tokens=True).strip()


def ablation(model: BartForConditionalGeneration, batches: list[Batch]) -> dict[str, list[dict]]:
    """Accuracy with one head switched off at a time, for every head of each kind."""
    result: dict[str, list[dict]] = {kind: [] for kind in KINDS}
    config = model.config
    for kind in KINDS:
        layers = config.encoder_layers if kind == "encoder" else config.decoder_layers
        heads = config.encoder_attention_heads if kind == "encoder" else config.decoder_attention_heads
        for layer in range(layers):
            for head in range(heads):
                with switched_off(model, kind, layer, head):
                    found = accuracy(model, batches)
                row = {key: round(found[key], 4) for key in ("visible_accuracy", "masked_accuracy")}
                result[kind].append({"layer": layer, "head": head, **row})
    return result


def gates(figures: dict) -> dict[str, tuple[float, float]]:
    """{what is asked for: (measured, needed)}; met where measured >= needed."""
    best, heads = figures["strongest"], figures["heads"]
    aligned = sum(row["strong"] and row["label"] in ("read", "write") for row in heads["cross"])
    return {
        "encoder: mass of the best previous-token head": (best["encoder"]["previous"], 0.8),
        "encoder: mass of the best next-token head": (best["encoder"]["next"], 0.8),
        "decoder: mass of the best previous-token head": (best["decoder"]["previous"], 0.8),
        "cross: heads that hit the aligned token above 80 %": (aligned, 3),
        "accuracy at masked places": (figures["accuracy"]["masked_accuracy"], 0.28),
        "accuracy at visible places": (figures["accuracy"]["visible_accuracy"], 0.95),
        "sentences with unseen names copied exactly, of 20": (sum(c["exact"] for c in figures["copies"]), 16),
    }


def evaluate(folder: Path, data: Path, *, say: Callable[[str], None] = print) -> dict:
    """Measure the model in folder on the test books of data; rewrites folder/figures.json and returns it.

    "run" (step, tokens, seconds and seed of the training), which the export wrote there, is kept.
    """
    torch.set_num_threads(1)
    model, tokenizer = load(folder)
    books, dev_books = (load_books(data, part, tokenizer.backend_tokenizer) for part in ("test", "dev"))
    vocab_size = model.config.vocab_size
    prompts = json.loads(PROMPTS.read_text(encoding="utf-8"))
    sentences = clean_sentences(books, HEAD_SENTENCES)
    texts = paragraph_texts(books)
    table = head_table(model, sentences)
    dev = noisy_batches(paragraph_texts(dev_books), vocab_size)
    figures = {
        "run": json.loads((folder / "figures.json").read_text(encoding="utf-8"))["run"],
        "parameters": sum(p.numel() for p in model.parameters()),
        "vocab_size": vocab_size,
        "bytes": (folder / "model.safetensors").stat().st_size,
        "accuracy": accuracy(model, noisy_batches(texts, vocab_size)),
        "accuracy_by_length": accuracy_by_length(model, texts),
        "dev_accuracy": accuracy(model, dev),
        "heads": table,
        "strongest": strongest(table),
        "strongest_untrained": strongest(head_table(random_copy(model), sentences)),
        "copies": [],
        "infill": [],
    }
    for prompt in prompts["copies"]:
        answer = generate(model, tokenizer, prompt["text"])
        figures["copies"].append({**prompt, "answer": answer, "exact": answer == prompt["text"]})
    figures["infill"] = [{**p, "answer": generate(model, tokenizer, p["text"])} for p in prompts["infill"]]
    chosen = np.random.default_rng(0).choice(len(texts), ABLATION_TEXTS, replace=False)
    batches = noisy_batches([texts[i] for i in chosen], vocab_size)
    figures["ablation_intact"] = accuracy(model, batches)
    figures["ablation"] = ablation(model, batches)
    figures["gates"] = {name: {"measured": m, "needed": n, "met": m >= n} for name, (m, n) in gates(figures).items()}
    (folder / "figures.json").write_text(json.dumps(figures, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    for name, gate in figures["gates"].items():
        say(f"{'met ' if gate['met'] else 'MISS'} {gate['measured']:.3f} (needs {gate['needed']}) {name}")
    return figures
