"""Models by hub id: from the local cache without any network where they are there, else downloaded once.

Everything that can be refused is refused before the weights are fetched. Errors come within five seconds and name the model,
the cache folder and what to do.
"""

import os
import re
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import huggingface_hub
from huggingface_hub import constants, errors
from huggingface_hub.utils import tqdm

from ..errors import AttentionError
from . import files

# The library retries for 23 seconds where there is no network. One question with a short timeout, asked in a thread of its
# own (a name server that never answers knows no timeout), tells us first.
_TIMEOUT = 3.0
_DEADLINE = 4.5
# The hub's own rules for names.
_ID = r"(\w([\w.-]*\w)?/)?\w([\w.-]*\w)?"
_LONGEST_ID = 96
_REVISION = r"\w[\w./+-]{0,254}"
_SMALL = (
    "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
    "vocab.json", "merges.txt", "vocab.txt", "added_tokens.json", "README.md",
)  # fmt: skip


def cache_folder() -> Path:
    """Where downloaded models are kept: the library's cache, set by HF_HUB_CACHE or HF_HOME."""
    return Path(constants.HF_HUB_CACHE).expanduser()


def cached_bytes(name: str, revision: str | None = None) -> int | None:
    """Size of a model's weights in the local cache, in bytes; None if it is not there in full. Asks no network."""
    folder = cached(name, revision)
    return None if folder is None else files.weights_in(folder).bytes


def cached(name: str, revision: str | None = None) -> Path | None:
    """The folder of a hub model in the local cache; None if it is not there in full. Asks no network."""
    try:
        check_id(name, revision)
        config = huggingface_hub.try_to_load_from_cache(name, "config.json", revision=revision)
    except (AttentionError, OSError):
        return None
    if not isinstance(config, str):
        return None
    folder = Path(config).parent
    try:
        files.check_folder(folder)
        files.weights_in(folder)
    except AttentionError:
        return None
    return folder


def check_id(name: str, revision: str | None = None) -> None:
    """Whether a name and a revision can be ones of the hub; asks nobody whether they are.

    Raises:
        AttentionError: a path, a web address, or characters that no hub id or revision has.
    """
    rules = re.fullmatch(_ID, name, re.ASCII) and len(name) <= _LONGEST_ID and not name.endswith((".git", ".ipynb"))
    if not rules or "--" in name or ".." in name:
        raise AttentionError(
            "{name!r} is neither a folder that exists here nor a hub id: an id is written owner/name, such as facebook/bart-base, "
            "with letters, digits and single - _ . between them; a folder is given by its full path",
            name=name,
        )
    if revision is not None and (not re.fullmatch(_REVISION, revision, re.ASCII) or ".." in revision):
        raise AttentionError(
            "a revision is a branch, a tag or a commit, such as main, not {revision!r}: correct it, or leave it empty",
            revision=revision,
        )


def folder_of(
    name: str,
    revision: str | None,
    check: Callable[[Path, files.Weights], None],
    on_progress: Callable[[int, int], None] | None,
) -> Path:
    """The folder that holds a hub model, downloaded first if it is not in the cache; its name is the commit.

    Args:
        name: hub id.
        revision: branch, tag or commit; None = main.
        check: called with the folder of small files and an estimate of the weights, before the weights are fetched.
        on_progress: called with bytes so far and bytes in all.

    Raises:
        AttentionError: not a hub id, not there, not reachable, not readable here, or no room.
    """
    check_id(name, revision)
    folder = cached(name, revision)
    if folder is not None:
        return folder
    if constants.is_offline_mode():
        raise _unreachable(name, "this process is set to work offline (HF_HUB_OFFLINE)")
    _check_writable(name)
    info = _asked(name, revision)
    sizes = {found.rfilename: found.size or 0 for found in info.siblings}
    small = [file for file in _SMALL if file in sizes] + [file for file in sizes if file.endswith(".index.json")]

    def fetched(file: str, report: Callable[[int], None] | None = None) -> Path:
        try:
            path = huggingface_hub.hf_hub_download(
                name, file, revision=revision, etag_timeout=_TIMEOUT, tqdm_class=_bar(report or (lambda count: None))
            )
        except Exception as error:  # whatever the network or the disk does in the middle of a download
            raise _unreachable(name, type(error).__name__) from None
        return Path(path)

    for missing in {"config.json", "tokenizer.json"} - set(small):
        raise AttentionError("{name} cannot be read here: its repository has no {file}", name=name, file=missing)
    for file in small:
        folder = fetched(file).parent
    settings = files.check_folder(folder)
    form, names = files.chosen_weights(set(sizes), lambda file: files.read_json(folder / file), name)
    total = sum(sizes[file] for file in names)
    half = str(settings.get("dtype") or settings.get("torch_dtype")).endswith("float16")
    check(folder, files.Weights(form, (), total // (2 if half else 4), total))
    free = shutil.disk_usage(cache_folder()).free
    if total > free:
        raise AttentionError(
            "{name} needs {needed} MB in {folder}, where {free} MB are free",
            name=name,
            needed=-(-total // 2**20),
            folder=cache_folder(),
            free=free // 2**20,
        )
    done = 0
    for file in names:
        before = done

        def report(count: int, before: int = before) -> None:
            if on_progress is not None:
                on_progress(min(before + count, total), total)

        fetched(file, report)
        done += sizes[file]
        report(sizes[file])
    return folder


def without_token(text: str) -> str:
    """The text with the access token, should it occur, blotted out."""
    token = huggingface_hub.get_token()
    return text.replace(token, "***") if token else text


def _asked(name: str, revision: str | None):
    """What the hub knows of a model, or why it does not say, within the deadline."""
    answer: list = []

    def ask() -> None:
        try:
            answer.append(
                huggingface_hub.HfApi().model_info(name, revision=revision, timeout=_TIMEOUT, files_metadata=True)
            )
        except Exception as error:
            answer.append(error)

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(_DEADLINE)
    found = answer[0] if answer else TimeoutError()
    if isinstance(found, errors.RevisionNotFoundError):
        raise AttentionError("{name} has no revision {revision}", name=name, revision=revision)
    if isinstance(found, errors.RepositoryNotFoundError):  # also what a gated one says
        raise AttentionError(
            "the hub has no model {name} that may be read from here: check its name, or set HF_TOKEN if it is private or gated",
            name=name,
        )
    if isinstance(found, Exception):
        raise _unreachable(name, type(found).__name__)
    return found


def _unreachable(name: str, reason: str) -> AttentionError:
    return AttentionError(
        "{name} is not in {folder} and cannot be downloaded ({reason}), and no folder here has that name: connect to the network, "
        "copy the model into that folder, or give the path of one that holds it; the embedded model needs neither",
        name=name,
        folder=cache_folder(),
        reason=reason,
    )


def _check_writable(name: str) -> None:
    folder = cache_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        writable = os.access(folder, os.W_OK | os.X_OK)
    except OSError:
        writable = False
    if not writable:
        raise AttentionError(
            "{name} cannot be downloaded: the cache folder {folder} cannot be written; set HF_HOME to a folder that can",
            name=name,
            folder=folder,
        )


def _bar(report: Callable[[int], None]) -> type:
    """A progress bar that draws nothing and reports how many bytes have come."""

    class Bar(tqdm):
        def __init__(self, *args, **kwargs) -> None:
            self.came = kwargs.get("initial") or 0
            kwargs.pop("name", None)
            super().__init__(*args, **(kwargs | {"disable": True}))

        def update(self, count: float | None = 1) -> None:
            self.came += int(count or 0)
            report(self.came)

    return Bar
