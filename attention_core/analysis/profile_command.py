"""The command line of ``attention_core.analysis.profile``: sums of a file of texts, kept on disk while they grow.

The file of sums holds a profile and, under "job", how far each stage is and of which texts. It is written every half minute, at
the end, and when the command is stopped (Ctrl-C, or a termination signal); the next start goes on from there.
"""

import argparse
import csv
import hashlib
import json
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ..errors import AttentionError
from ..extract.interventions import Means, edits_from_text, edits_to_text
from ..extract.means import mean_contexts
from ..extract.models import LoadedModel, load_model
from .importance import ablation_effects, gradient_importance
from .profile import profile_texts
from .profile_sums import Profile, new_profile, read_profile
from .text_files import Line, read_texts, sources_and_targets

_SAVE_EVERY = 30.0  # seconds
_MEANS_OF = 100


@dataclass(eq=False)
class Job:
    """What a file of sums was made from, and how far each stage is.

    Attributes:
        texts: 16 hexadecimal digits that tell sets of texts apart.
        ablation: over how many of them heads are switched off.
        done: name of a stage -> what its Progress or Effect called done.
    """

    texts: str
    ablation: int
    done: dict[str, int] = field(default_factory=dict)


def write_table(profile: Profile, path: Path) -> None:
    """The heads of a profile as csv: a row a head, mean and spread over texts of every column that was measured."""
    names = profile.columns()
    with open(path, "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["kind", "layer", "head", *(part for name in names for part in (name, f"{name}_spread"))])
        for kind, (layers, heads) in profile.shapes.items():
            tables = [table for name in names for table in (profile.mean(kind, name), profile.spread(kind, name))]
            for layer, head in np.ndindex(layers, heads):
                numbers = [table[layer, head] for table in tables]
                writer.writerow([kind, layer, head, *("" if np.isnan(x) else f"{x:.6g}" for x in numbers)])


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns the exit status: 0 = done, 1 = not possible, 130 = stopped."""
    parser = _parser()
    chosen = parser.parse_args(arguments)
    try:
        if chosen.merge:
            return _merge(chosen)
        if chosen.texts is None:
            parser.error("name a file of texts, or --merge")
        return _profile(chosen)
    except AttentionError as error:
        print(error, file=sys.stderr)
        return 1


def _profile(chosen: argparse.Namespace) -> int:
    lines, broken = read_texts(chosen.texts)
    for number, reason in broken:
        print(f"line {number} skipped: {reason}", file=sys.stderr)
    if not lines:
        raise AttentionError("{path} holds no text", path=str(chosen.texts))
    model, edits = load_model(chosen.model), edits_from_text(chosen.edits)
    said = edits_to_text(edits)
    digest = hashlib.sha256(repr(lines).encode()).hexdigest()[:16]
    empty = new_profile(model, said)
    profile, job = empty, Job(digest, chosen.ablation)
    if chosen.profile is not None and chosen.profile.exists() and not chosen.restart:
        profile, job = _saved(chosen.profile)
        profile.check_same(empty.model, said)
        if job is None or job.texts != digest:
            raise AttentionError(
                "{path} holds the sums of other texts: name another file, or start again with --restart, or add its sums to "
                "these with --merge",
                path=str(chosen.profile),
            )
        if "ablation" in job.done and job.ablation != chosen.ablation:
            raise AttentionError(
                "in {path} heads are switched off over {theirs} texts, not {ours}: keep that number, or start again with --restart",
                path=str(chosen.profile),
                theirs=job.ablation,
                ours=chosen.ablation,
            )
        job.ablation = chosen.ablation
    means = _means(model, lines) if chosen.ablation or "mean" in chosen.edits else None
    stages = _stages(model, lines, edits, means, profile, job, chosen)
    with _Signals() as signals:
        finished = _work(stages, profile, job, lines, chosen.profile, signals)
    if chosen.out is not None:
        write_table(profile, chosen.out)
    counted = _counted(profile)
    print(f"{counted}: done" if finished else f"{counted}: stopped; the same command goes on", file=sys.stderr)
    return 0 if finished else 130


def _means(model: LoadedModel, lines: list[Line]) -> Means:
    """Mean contexts: those that are shipped with the embedded model; of another, over 100 of the texts, evenly spaced."""
    if model.report.origin == "embedded":
        return mean_contexts(model)
    number = min(_MEANS_OF, len(lines))
    return mean_contexts(model, [lines[place * len(lines) // number].source for place in range(number)])


def _stages(
    model: LoadedModel, lines: list[Line], edits, means, profile: Profile, job: Job, chosen: argparse.Namespace
) -> Iterator[tuple[str, Iterator]]:
    """Each stage's name, and the generator that goes on with it. Texts are named by their places in the file."""

    sources, targets = sources_and_targets(lines)

    def of(places: Sequence[int]) -> dict:
        return {
            "texts": [sources[place] for place in places],
            "targets": None if targets is None else [targets[place] for place in places],
            "indices": places,
            "edits": edits,
            "means": means,
            "into": profile,
        }

    every = range(len(lines))
    yield "maps", profile_texts(model, **of(every), done=job.done.get("maps", 0))
    if not model.is_encoder_decoder:
        return
    if chosen.gradients:
        yield "gradients", gradient_importance(model, **of(every), done=job.done.get("gradients", 0))
    if chosen.ablation:
        number = min(chosen.ablation, len(lines))
        some = [place * len(lines) // number for place in range(number)]
        yield "ablation", ablation_effects(model, **of(some), done=job.done.get("ablation", 0))


def _work(
    stages: Iterator[tuple[str, Iterator]],
    profile: Profile,
    job: Job,
    lines: list[Line],
    path: Path | None,
    signals: "_Signals",
) -> bool:
    """Does the stages one after the other, saving now and then; whether all were finished."""
    saved, told = time.monotonic(), 0.0
    reported: set[int] = set()
    for name, steps in stages:
        for progress in steps:
            job.done[name] = progress.done
            for text in progress.skipped:
                if text.index not in reported:
                    reported.add(text.index)
                    print(f"line {lines[text.index].number} skipped: {text}", file=sys.stderr)
            now = time.monotonic()
            if now - told > 1 or progress.done == progress.total:
                told = now
                left = "" if progress.seconds_left is None else f", {_time(progress.seconds_left)} left"
                print(f"{name}: {progress.done} of {progress.total}{left}", file=sys.stderr, flush=True)
            if path is not None and now - saved > _SAVE_EVERY:
                _save(profile, job, path)
                saved = now
            if signals.stopped:
                break
        if signals.stopped:
            break
    if path is not None:
        _save(profile, job, path)
    return not signals.stopped


def _merge(chosen: argparse.Namespace) -> int:
    profiles = [read_profile(path) for path in chosen.merge]
    whole = profiles[0]
    for part in profiles[1:]:
        whole = whole.merge(part)
    if chosen.profile is not None:
        _write(chosen.profile, whole.to_json())
    if chosen.out is not None:
        write_table(whole, chosen.out)
    print(f"{_counted(whole)}: merged", file=sys.stderr)
    return 0


def _saved(path: Path) -> tuple[Profile, Job | None]:
    profile = read_profile(path)
    job = json.loads(path.read_text(encoding="utf-8")).get("job")
    if job is None:
        return profile, None
    try:
        return profile, Job(**job)
    except TypeError as error:
        raise AttentionError("{path} does not say how far its job is", path=str(path)) from error


def _save(profile: Profile, job: Job, path: Path) -> None:
    # Put into the profile's own JSON, so that numbers are written once, and the file is still a profile.
    _write(path, profile.to_json()[:-1] + ',"job":' + json.dumps(vars(job)) + "}")


def _write(path: Path, text: str) -> None:
    """All or nothing: a stop while writing leaves the old file."""
    beside = path.with_name(f"{path.name}.part")
    beside.write_text(text, encoding="utf-8")
    os.replace(beside, path)


class _Signals:
    """Turns the first Ctrl-C, or termination signal, into a wish to stop after the batch; a second one stops at once."""

    def __enter__(self) -> "_Signals":
        self.stopped = False
        self._before = {number: signal.signal(number, self._stop) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *_: object) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)

    def _stop(self, number: int, _frame: object) -> None:
        if self.stopped:
            raise KeyboardInterrupt
        self.stopped = True


def _counted(profile: Profile) -> str:
    numbers = ((profile.texts, "text"), (profile.tokens, "token"))
    return ", ".join(f"{number} {name if number == 1 else name + 's'}" for number, name in numbers)


def _time(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    return f"{minutes} min {seconds} s" if minutes else f"{seconds} s"


def _path(text: str) -> Path:
    return Path(text)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m attention_core.analysis.profile",
        description="What every head of a model does over the texts of a file. Ctrl-C keeps what is done; the same command "
        "goes on.",
    )
    parser.add_argument("texts", nargs="?", type=_path, help=".txt (a text a line), .csv (text, target) or .jsonl")
    parser.add_argument("--model", default="embedded", help="embedded, a hub id, or a folder")
    parser.add_argument("--profile", type=_path, metavar="SUMS.json", help="where the sums are kept")
    parser.add_argument("--out", type=_path, metavar="HEADS.csv", help="a table with a row for every head")
    parser.add_argument(
        "--edits", default="[]", help="changes of the model, as \"[Window(kind='encoder', layer=1, width=2)]\""
    )
    parser.add_argument("--gradients", action="store_true", help="importance by gradients too")
    parser.add_argument(
        "--ablation", type=int, default=0, metavar="N", help="switch every head off, over N of the texts, evenly spaced"
    )
    parser.add_argument("--restart", action="store_true", help="start again, whatever sums there are")
    parser.add_argument("--merge", nargs="+", type=_path, metavar="SUMS.json", help="add files of sums to each other")
    return parser
