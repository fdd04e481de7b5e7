"""Hub ids: from the cache without network, one clear sentence where there is none, and a download from a hub made here."""

import json
import os
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest
from huggingface_hub import constants

from attention_core import AttentionError, load_model, trace
from attention_core.extract import hub
from tests.extract import forms

ROOT = Path(__file__).parents[2]
COMMIT = "0123456789abcdef0123456789abcdef01234567"
TOKEN = "hf_thisIsASecretThatNobodyMaySee"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return forms.saved(forms.built(forms.BY_NAME["bart_unequal"]), tmp_path_factory.mktemp("model"))


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache folder, which does not exist yet."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def reach(monkeypatch, endpoint: str) -> None:
    """Makes the library ask another hub, which it otherwise reads from the environment when it is imported."""
    monkeypatch.setattr(constants, "ENDPOINT", endpoint)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", endpoint + "/{repo_id}/resolve/{revision}/{filename}")


@pytest.fixture
def server(folder, monkeypatch):
    """A hub of one public and one private model on this machine; remembers what it was asked."""
    asked: list[str] = []
    names = sorted(path.name for path in folder.iterdir())

    class Hub(BaseHTTPRequestHandler):
        def answer(self, with_body: bool) -> None:
            path = self.path.split("?")[0]
            asked.append(f"{self.command} {path}")
            private = "/secret/" in path and self.headers.get("authorization") != f"Bearer {TOKEN}"
            file = folder / path.rpartition("/")[2]
            if private or not any(name in path for name in ("/open/tiny", "/secret/tiny")):
                status, body, extra = 401, b"{}", {"X-Error-Code": "RepoNotFound"}
            elif path.startswith("/api/models/"):
                siblings = [{"rfilename": name, "size": (folder / name).stat().st_size} for name in names]
                found = {"id": "open/tiny", "sha": COMMIT, "siblings": siblings}
                status, body, extra = 200, json.dumps(found).encode(), {"Content-Type": "application/json"}
            elif file.is_file():
                status, body, extra = 200, file.read_bytes(), {"X-Repo-Commit": COMMIT, "ETag": f'"{file.name}"'}
            else:
                status, body, extra = 404, b"", {"X-Error-Code": "EntryNotFound"}
            self.send_response(status)
            for name, value in ({"Content-Length": str(len(body))} | extra).items():
                self.send_header(name, value)
            self.end_headers()
            if with_body:
                self.wfile.write(body)

        def do_GET(self) -> None:
            self.answer(True)

        def do_HEAD(self) -> None:
            self.answer(False)

        def log_message(self, *_) -> None:
            pass

    running = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=running.serve_forever, daemon=True).start()
    reach(monkeypatch, f"http://127.0.0.1:{running.server_port}")
    monkeypatch.delenv("HF_TOKEN", raising=False)
    yield asked
    running.shutdown()
    running.server_close()


def test_a_model_is_downloaded_once_with_progress_and_then_needs_no_network(cache, server):
    seen = []
    assert hub.cached_bytes("open/tiny") is None
    model = load_model("open/tiny", on_progress=lambda done, total: seen.append((done, total)))
    assert (model.report.origin, model.report.name, model.report.revision) == ("hub", "open/tiny", COMMIT)
    totals = {total for _, total in seen}
    size = hub.cached_bytes("open/tiny")
    assert (
        totals == {size} and seen[-1] == (size, size) and [done for done, _ in seen] == sorted(done for done, _ in seen)
    )
    assert trace(model, [0, 11, 2]).kinds == ("encoder", "decoder", "cross")
    server.clear()
    assert load_model("open/tiny").report == model.report
    assert load_model("open/tiny", revision=COMMIT).report.revision == COMMIT
    assert not server


def test_a_model_that_is_too_large_is_refused_before_its_weights_are_fetched(cache, server, monkeypatch):
    monkeypatch.setattr("attention_core.extract.files.available_memory", lambda: 1000)
    with pytest.raises(AttentionError, match="open/tiny needs about"):
        load_model("open/tiny")
    assert not [line for line in server if "safetensors" in line]


def test_a_disk_that_is_too_full_is_told(cache, server, monkeypatch):
    monkeypatch.setattr(hub, "shutil", SimpleNamespace(disk_usage=lambda _: SimpleNamespace(free=0)))
    with pytest.raises(AttentionError, match=f"open/tiny needs 1 MB in {cache}, where 0 MB are free"):
        load_model("open/tiny")


def test_a_private_model_needs_the_token_which_is_never_shown(cache, server, monkeypatch):
    with pytest.raises(AttentionError, match=r"no model secret/tiny that may be read from here.*HF_TOKEN"):
        load_model("secret/tiny")
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    assert TOKEN not in repr(load_model("secret/tiny").report)
    with pytest.raises(AttentionError) as refused:
        load_model("secret/other")
    assert TOKEN not in str(refused.value)
    assert hub.without_token(f"error with {TOKEN} inside") == "error with *** inside"


@pytest.mark.parametrize(
    "name",
    ["", " ", "a b", "../up", "./models/x", "models/x/y", "no such folder/x", "~/x", "C:\\models\\x",
     "a--b", "a..b", "-a", "a-", ".a",
     "a.git", "x" * 97, "ünï/x", "a/", "https://huggingface.co/a/b", "a\0b", "a/b@main", "a\nb"],
)  # fmt: skip
def test_names_that_are_no_hub_id(cache, name):
    with pytest.raises(
        AttentionError, match="is neither a folder that exists here nor a hub id: an id is written"
    ) as told:
        load_model(name)
    assert repr(name) in str(told.value)
    assert hub.cached(name) is None


@pytest.mark.parametrize("name", ["gpt2", "facebook/bart-base", "a/b_c.d-e", "x" * 96])
def test_names_that_may_be_a_hub_id(name):
    hub.check_id(name, "refs/pr/1")


@pytest.mark.parametrize("revision", ["a b", "../x", "a\0b", "-x", "x" * 256])
def test_revisions_that_cannot_be(cache, revision):
    with pytest.raises(AttentionError, match="a revision is a branch, a tag or a commit, such as main, not"):
        load_model("open/tiny", revision=revision)


def test_a_half_downloaded_model_counts_as_not_there(cache, server):
    load_model("open/tiny")
    assert hub.cached("open/tiny") is not None
    (hub.cached("open/tiny") / "model.safetensors").unlink()
    assert hub.cached("open/tiny") is None
    assert load_model("open/tiny").report.missing == ()


# Case 18: (a) offline with an empty cache, (b) with no home folder besides; and names and hubs that do not answer.

SCRIPT = """
import time
from attention_core import AttentionError, load_model
import attention_core.extract.models
start = time.perf_counter()
try:
    load_model("facebook/bart-base")
except AttentionError as error:
    print(error)
print(time.perf_counter() - start)
"""


def test_offline_with_an_empty_cache_is_one_sentence_at_once(cache, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(
        AttentionError, match=r"facebook/bart-base is not in .* connect to the network, copy the model"
    ) as told:
        load_model("facebook/bart-base")
    assert str(cache) in str(told.value) and "the embedded model needs neither" in str(told.value)


def test_offline_without_a_home_folder_in_a_process_of_its_own():
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "TRANSFORMERS_", "XDG_"))}
    environment = kept | {"HF_HUB_OFFLINE": "1", "HOME": "/nonexistent"}
    done = subprocess.run([sys.executable, "-c", SCRIPT], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    message, seconds = done.stdout.strip().splitlines()
    assert message.startswith(
        "facebook/bart-base is not in /nonexistent/.cache/huggingface/hub and cannot be downloaded"
    )
    assert float(seconds) < 5


def test_a_hub_that_cannot_be_reached_is_told_within_five_seconds(cache, monkeypatch):
    reach(monkeypatch, "http://127.0.0.1:9")  # nobody listens there
    start = time.perf_counter()
    with pytest.raises(AttentionError, match=f"facebook/bart-base is not in {cache} and cannot be downloaded"):
        load_model("facebook/bart-base")
    assert time.perf_counter() - start < 5


def test_a_hub_that_never_answers_is_told_within_five_seconds(cache, monkeypatch):
    monkeypatch.setattr("huggingface_hub.HfApi.model_info", lambda *_, **__: time.sleep(20))
    start = time.perf_counter()
    with pytest.raises(AttentionError, match=r"cannot be downloaded \(TimeoutError\)"):
        load_model("facebook/bart-base")
    assert time.perf_counter() - start < 5


@pytest.mark.parametrize("spoil", ["a file", "no permission"])
def test_a_cache_that_cannot_be_written_is_told(cache, monkeypatch, spoil):
    if spoil == "a file":
        cache.write_text("in the way")
    else:
        monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(AttentionError, match=f"the cache folder {cache} cannot be written; set HF_HOME"):
        load_model("facebook/bart-base")


def test_a_connection_that_breaks_in_the_middle_is_told(cache, server, monkeypatch):
    monkeypatch.setattr(
        hub.huggingface_hub, "hf_hub_download", lambda *_, **__: (_ for _ in ()).throw(OSError("broken"))
    )
    with pytest.raises(AttentionError, match=r"open/tiny is not in .* and cannot be downloaded \(OSError\)"):
        load_model("open/tiny")
