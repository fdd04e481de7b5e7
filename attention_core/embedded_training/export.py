"""Write a checkpoint as a folder that plain transformers loads: weights, configuration, tokenizer, stories."""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from transformers import BartForConditionalGeneration, GenerationConfig

from attention_core.embedded_training.prepare import BOS, BOS_ID, EOS, EOS_ID, MASK, PAD, PAD_ID, UNK

MAX_STORY_BYTES = 75_000  # of each test book
MAX_INPUT = 250

BOOKS = {
    "55": {"title": "The Wonderful Wizard of Oz", "author": "L. Frank Baum", "year": 1900, "gutenberg": 55},
    "11": {"title": "Alice's Adventures in Wonderland", "author": "Lewis Carroll", "year": 1865, "gutenberg": 11},
}


def export_model(model: BartForConditionalGeneration, run: dict, folder: Path) -> None:
    """Weights as float16, tied ones once; the configuration says float32, which is what they are loaded as.

    run: how far the training had come, the first entry of figures.json.
    """
    folder.mkdir(parents=True, exist_ok=True)
    weights = {name: p.detach().to(torch.float16).contiguous() for name, p in model.named_parameters()}
    path = folder / "model.safetensors"
    save_file(weights, path, metadata={"format": "pt"})
    path.chmod(0o644)
    model.config.architectures = ["BartForConditionalGeneration"]
    model.config.dtype = torch.float32
    model.config.save_pretrained(folder)
    generation = GenerationConfig(
        bos_token_id=BOS_ID,
        pad_token_id=PAD_ID,
        eos_token_id=EOS_ID,
        decoder_start_token_id=EOS_ID,
        forced_eos_token_id=EOS_ID,
    )
    generation.save_pretrained(folder)
    (folder / "figures.json").write_text(json.dumps({"run": run}) + "\n", encoding="utf-8")


def export_tokenizer(data: Path, folder: Path) -> None:
    """tokenizer.json and the names of its special tokens."""
    folder.mkdir(parents=True, exist_ok=True)
    Tokenizer.from_file(str(data / "tokenizer.json")).save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BOS,
        "cls_token": BOS,
        "eos_token": EOS,
        "sep_token": EOS,
        "pad_token": PAD,
        "unk_token": UNK,
        "mask_token": {
            "__type": "AddedToken",
            "content": MASK,
            "lstrip": True,
            "rstrip": False,
            "normalized": False,
            "single_word": False,
            "special": True,
        },
        "model_max_length": MAX_INPUT,
        "model_input_names": ["input_ids", "attention_mask"],
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def export_stories(data: Path, folder: Path) -> None:
    """The beginning of every test book, one JSON object a book: title, author, year, gutenberg, source, paragraphs."""
    folder.mkdir(parents=True, exist_ok=True)
    books = json.loads((data / "books.json").read_text(encoding="utf-8"))["test"]
    lines = []
    for name, paragraphs in books.items():
        story = BOOKS.get(name, {"title": name, "author": "", "year": None, "gutenberg": None})
        number = story["gutenberg"]
        source = f"https://www.gutenberg.org/ebooks/{number}" if number else ""
        kept, size = [], 0
        for paragraph in paragraphs:
            size += len(json.dumps(paragraph, ensure_ascii=False).encode()) + 2
            if size > MAX_STORY_BYTES - 300:
                break
            kept.append(paragraph)
        lines.append(json.dumps({**story, "source": source, "paragraphs": kept}, ensure_ascii=False))
    (folder / "stories.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
