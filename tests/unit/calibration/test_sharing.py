"""Profiles in folders and on a hub, here a small server on this machine."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from msgspec.structs import replace

import omnireuse
from omnireuse import Profile
from omnireuse.errors import ConfigError, StateError
from omnireuse.profiles.origin import Origin
from tests.unit.calibration.test_profile_file import PROFILE

ORIGIN = Origin(
    name="owner/model", revision="0123456789abcdef" * 2 + "01234567", weights="00112233", holding="plain tensors"
)
SHARED = replace(PROFILE, origin=ORIGIN, command="omnireuse.calibrate(pipe, prompts, steps=8)")
COMMITS = {"main": "a" * 40, "v2": "b" * 40}


class Hub(ThreadingHTTPServer):
    """As much of the hub as sharing needs.

    Attributes:
        files: by "repository@revision" and name.
        refusals: by repository, the status and the hub's word for it.
        token: what the last request was signed with.
    """

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.files: dict[str, dict[str, bytes]] = {}
        self.refusals: dict[str, tuple[int, str]] = {}
        self.token: str | None = None


class Answer(BaseHTTPRequestHandler):
    server: Hub

    def log_message(self, *_: object) -> None:
        pass

    def reply(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        asked = re.fullmatch(r"/([\w.-]+/[\w.-]+)/resolve/([^/]+)/(.+)", self.path)
        if asked is None:
            return self.reply(404)
        repository, revision, name = asked.groups()
        if repository in self.server.refusals:
            status, word = self.server.refusals[repository]
            return self.reply(status, X_Error_Code=word)
        revision = next((name for name, commit in COMMITS.items() if commit == revision), revision)
        files = self.server.files.get(f"{repository}@{revision}")
        if files is None:
            known = any(each.startswith(f"{repository}@") for each in self.server.files)
            return self.reply(404, X_Error_Code="RevisionNotFound" if known else "RepoNotFound")
        if name not in files:
            return self.reply(404, X_Error_Code="EntryNotFound", X_Repo_Commit=COMMITS[revision])
        tag = f'"{hashlib.sha256(files[name]).hexdigest()}"'
        return self.reply(200, files[name], ETag=tag, X_Repo_Commit=COMMITS[revision])

    def do_POST(self) -> None:
        self.server.token = self.headers.get("Authorization")
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        answer: dict[str, Any] = {}
        if self.path == "/api/repos/create":
            asked = json.loads(body)
            repository = f"{asked['organization']}/{asked['name']}"
            if repository in self.server.refusals:
                status, word = self.server.refusals[repository]
                return self.reply(status, X_Error_Code=word)
            self.server.files.setdefault(f"{repository}@main", {})
            answer = {"url": f"http://{self.headers['Host']}/{repository}"}
        elif match := re.fullmatch(r"/api/models/(.+/.+)/branch/(.+)", self.path):
            self.server.files.setdefault("@".join(match.groups()), {})
        elif self.path.endswith("/preupload/main") or "/preupload/" in self.path:
            files = json.loads(body)["files"]
            answer = {
                "files": [{"path": each["path"], "uploadMode": "regular", "shouldIgnore": False} for each in files]
            }
        elif match := re.fullmatch(r"/api/models/(.+/.+)/commit/(.+)", self.path):
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "file":
                    value = line["value"]
                    self.server.files["@".join(match.groups())][value["path"]] = base64.b64decode(value["content"])
            commit = COMMITS[match[2]]
            address = f"http://{self.headers['Host']}/{match[1]}/commit/{commit}"
            answer = {"commitOid": commit, "commitUrl": address, "success": True}
        return self.reply(200, json.dumps(answer).encode(), Content_Type="application/json")


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    server = Hub()
    Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    address = f"http://127.0.0.1:{server.server_address[1]}"
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", address)
    monkeypatch.setattr(
        "huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE",
        address + "/{repo_id}/resolve/{revision}/{filename}",
    )
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_TOKEN", "secret")
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()


def test_a_profile_goes_to_the_hub_and_comes_back(hub: Hub) -> None:
    assert SHARED.push_to_hub("owner/profile", token="mine").endswith(f"/commit/{COMMITS['main']}")
    assert hub.token == "Bearer mine"
    assert {"README.md", "profile.json"} <= hub.files["owner/profile@main"].keys()
    assert Profile.from_pretrained("owner/profile") == SHARED
    assert Profile.from_pretrained("owner/profile", revision=COMMITS["main"]) == SHARED
    other = replace(SHARED, seed=7)
    other.push_to_hub("owner/profile", revision="v2")
    assert Profile.from_pretrained("owner/profile@v2").seed == 7
    assert Profile.from_pretrained("owner/profile").seed == 0


@pytest.mark.parametrize(
    ("place", "prepare", "sentence"),
    [
        ("nobody/nothing", lambda hub: None, "nor such a repository on the hub, or it is private"),
        ("owner/model", lambda hub: hub.files.update({"owner/model@main": {}}), r"holds no profile\.json"),
        ("owner/model@v9", lambda hub: hub.files.update({"owner/model@main": {}}), "no such revision"),
        ("owner/gated", lambda hub: hub.refusals.update({"owner/gated": (403, "GatedRepo")}), "is gated; accept"),
        (
            "owner/broken",
            lambda hub: hub.files.update({"owner/broken@main": {"profile.json": b'{"format": 4}'}}),
            "not a whole profile",
        ),
    ],
)
def test_what_the_hub_refuses_is_said_in_one_sentence(
    hub: Hub, place: str, prepare: Callable[[Hub], None], sentence: str
) -> None:
    prepare(hub)
    with pytest.raises(ConfigError, match=sentence) as refused:
        Profile.from_pretrained(place)
    assert "\n" not in str(refused.value)


def test_offline_a_profile_comes_from_the_cache_or_not_at_all(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    SHARED.push_to_hub("owner/profile")
    assert Profile.from_pretrained("owner/profile") == SHARED
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert Profile.from_pretrained("owner/profile") == SHARED
    with pytest.raises(ConfigError, match="HF_HUB_OFFLINE forbids to download it"):
        Profile.from_pretrained("owner/other")


def test_a_push_that_is_refused_loses_nothing(hub: Hub) -> None:
    hub.refusals["owner/profile"] = (403, "Forbidden")
    with pytest.raises(StateError, match=r"push_to_hub\('owner/profile'\).*nothing is lost"):
        SHARED.push_to_hub("owner/profile")


def test_a_folder_holds_the_profile_and_its_page(tmp_path: Path) -> None:
    SHARED.save_pretrained(tmp_path / "shared")
    assert Profile.from_pretrained(tmp_path / "shared") == SHARED
    assert Profile.from_pretrained(tmp_path / "shared" / "profile.json") == SHARED
    names = {path.name for path in (tmp_path / "shared").iterdir()}
    assert names - {"curve.png"} == {"README.md", "profile.json"}, "nothing that could be run"
    page = (tmp_path / "shared" / "README.md").read_text()
    assert "base_model: owner/model" in page
    assert "| computed steps | fewer steps | mean, held out | nine of ten reach | steps |" in page
    assert "| 3 | 2.67× | 32.0 dB | 26.6 dB | 0 2 7 |" in page
    assert "- weights held as: plain tensors" in page
    assert "Nothing is promised" not in page
    assert f"revision: {ORIGIN.revision}" in page
    assert SHARED.command is not None
    assert SHARED.command in page
    if "curve.png" in names:
        assert (tmp_path / "shared" / "curve.png").read_bytes().startswith(b"\x89PNG")
    assert "](curve.png)" in page or "curve.png" not in names


def test_the_page_of_a_profile_without_conditions_says_that_it_promises_nothing(tmp_path: Path) -> None:
    replace(SHARED, dtype=None).save_pretrained(tmp_path)
    page = (tmp_path / "README.md").read_text()
    assert "Nothing is promised: the profile does not note its dtype" in page
    assert "calibrate anew" in page


@pytest.mark.parametrize("place", ["profile.json", "no/such.json", "nothing", "a/b/c", "owner/name@", ".."])
def test_what_is_neither_a_file_nor_an_id_is_not_looked_for_on_the_hub(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with pytest.raises(ConfigError, match=r"cannot be read|must hold profile\.json"):
        Profile.from_pretrained(place)


def test_a_file_has_no_revision(tmp_path: Path) -> None:
    SHARED.save(tmp_path / "p.json")
    with pytest.raises(ConfigError, match="revision must be left out"):
        Profile.from_pretrained(tmp_path / "p.json", revision="v1")


def test_enable_takes_an_id(hub: Hub) -> None:
    SHARED.push_to_hub("owner/profile")

    class Other:
        def __init__(self) -> None:
            from diffusers import FlowMatchEulerDiscreteScheduler
            from torch import nn

            self.transformer, self.scheduler = nn.Linear(2, 2), FlowMatchEulerDiscreteScheduler()

    with pytest.raises(StateError, match="made for denoiser FluxTransformer2DModel, but the pipeline has Linear"):
        omnireuse.enable(Other(), profile="owner/profile")
