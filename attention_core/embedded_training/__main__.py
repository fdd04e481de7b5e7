"""python -m attention_core.embedded_training TEXTS --work WORK: make the embedded model from a folder of stories."""

import argparse
from pathlib import Path

from attention_core.embedded_training.card import write_card
from attention_core.embedded_training.evaluate import evaluate
from attention_core.embedded_training.export import export_model, export_stories, export_tokenizer
from attention_core.embedded_training.prepare import Split, prepare
from attention_core.embedded_training.revive import revive
from attention_core.embedded_training.train import best_checkpoint, load_checkpoint, train

STEPS = ("prepare", "train", "export", "evaluate")
WHERE = """
TEXTS is a folder of .txt files: one book a file, one paragraph a line, no headings, contents, notes or licence texts.
Such texts come from Project Gutenberg (https://www.gutenberg.org): stories published before 1929, in the public domain
in the USA. The shipped model was made with 24 of them, which MODEL_CARD.md beside the weights lists by number; name the
files by those numbers (55.txt and 11.txt are the test books, 708.txt is the one that checkpoints are chosen on).

Everything, one process on one core: OMP_NUM_THREADS=1 python -m attention_core.embedded_training TEXTS --work WORK
The figures of the shipped model again: --steps prepare evaluate --out attention_core/embedded
--notes attention_core/embedded_training/shipped_run.md
"""


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m attention_core.embedded_training",
        description="Prepare stories, train a small BART on them, evaluate it and write it as a model folder.",
        epilog=WHERE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("texts", type=Path, help="folder of .txt files")
    parser.add_argument("--work", type=Path, required=True, help="folder for prepared data, checkpoints and the log")
    parser.add_argument("--out", type=Path, help="model folder to write (default: WORK/model)")
    parser.add_argument("--steps", nargs="+", choices=STEPS, default=STEPS, help="what to do (default: everything)")
    parser.add_argument("--minutes", type=float, default=107, help="length of the training by the clock (default: 107)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--resume", type=Path, help="checkpoint to go on from, with its optimiser")
    parser.add_argument("--start", type=Path, help="model folder to train on from, with a fresh optimiser")
    parser.add_argument("--revive", action="store_true", help="with --resume: let its resting heads begin anew first")
    parser.add_argument("--checkpoint", type=Path, help="checkpoint to export (default: the best on the dev books)")
    parser.add_argument("--notes", type=Path, help="a text file with remarks on this run, for the card")
    parser.add_argument("--test", nargs="+", default=Split.test, metavar="BOOK", help="books held out for the figures")
    parser.add_argument("--dev", nargs="+", default=Split.dev, metavar="BOOK", help="books that choose the checkpoint")
    options = parser.parse_args(arguments)
    if options.revive and options.resume is None:
        parser.error("--revive needs --resume CHECKPOINT")

    data, run = options.work / "data", options.work / "run"
    out = options.out or options.work / "model"
    if "prepare" in options.steps:
        prepare(options.texts, data, Split(test=tuple(options.test), dev=tuple(options.dev)))
    if "train" in options.steps:
        resume = options.resume
        if options.revive:
            resume = run / "revived.pt"
            revive(options.resume, data, resume)
        train(data, run, options.minutes, seed=options.seed, resume=resume, start=options.start)
    if "export" in options.steps:
        export_model(*load_checkpoint(options.checkpoint or best_checkpoint(run)), out)
        export_tokenizer(data, out)
        export_stories(data, out)
    if "evaluate" in options.steps:
        evaluate(out, data)
        write_card(out, options.notes.read_text(encoding="utf-8") if options.notes else "")


if __name__ == "__main__":
    main()
