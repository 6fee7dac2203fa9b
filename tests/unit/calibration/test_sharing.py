"""Profiles in folders and on a hub, here a small server on this machine."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

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
    """

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.files: dict[str, dict[str, bytes]] = {}
        self.refusals: dict[str, tuple[int, str]] = {}


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


def share(hub: Hub, profile: Profile = SHARED, revision: str = "main") -> None:
    hub.files.setdefault(f"owner/profile@{revision}", {})["profile.json"] = profile.as_text().encode()


def test_a_profile_comes_from_the_hub(hub: Hub) -> None:
    share(hub)
    assert Profile.from_pretrained("owner/profile") == SHARED
    assert Profile.from_pretrained("owner/profile", revision=COMMITS["main"]) == SHARED
    share(hub, replace(SHARED, seed=7), "v2")
    assert Profile.from_pretrained("owner/profile@v2").seed == 7
    assert Profile.from_pretrained("owner/profile").seed == 0


@pytest.mark.parametrize(
    ("place", "prepare", "sentence"),
    [
        ("nobody/nothing", lambda hub: None, "log in with `hf auth login`"),
        ("owner/model", lambda hub: hub.files.update({"owner/model@main": {}}), r"profile\.json; check the name"),
        ("owner/model@v9", lambda hub: hub.files.update({"owner/model@main": {}}), "v9"),
        ("owner/gated", lambda hub: hub.refusals.update({"owner/gated": (403, "GatedRepo")}), "gated repo"),
        (
            "owner/broken",
            lambda hub: hub.files.update({"owner/broken@main": {"profile.json": b'{"format": 6}'}}),
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
    share(hub)
    assert Profile.from_pretrained("owner/profile") == SHARED
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert Profile.from_pretrained("owner/profile") == SHARED
    with pytest.raises(ConfigError, match="unset HF_HUB_OFFLINE"):
        Profile.from_pretrained("owner/other")


def test_a_folder_holds_a_profile(tmp_path: Path) -> None:
    SHARED.save(tmp_path / "profile.json")
    assert Profile.from_pretrained(tmp_path) == Profile.from_pretrained(tmp_path / "profile.json") == SHARED


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
    share(hub)

    class Other:
        def __init__(self) -> None:
            from diffusers import FlowMatchEulerDiscreteScheduler
            from torch import nn

            self.transformer, self.scheduler = nn.Linear(2, 2), FlowMatchEulerDiscreteScheduler()

    with pytest.raises(StateError, match="has denoiser Linear, the profile was measured with FluxTransformer2DModel"):
        omnireuse.enable(Other(), profile="owner/profile")
