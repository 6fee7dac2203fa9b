"""An engine's own HTTP server in processes of its own, as its users start it, and clients."""

from __future__ import annotations

import base64
import io
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
from PIL import Image

from tests import TOP

STARTS_IN = 600
"""Seconds; 30 where nothing else runs."""
ANSWERS_IN = 300


@dataclass(frozen=True)
class Server:
    """A server that answers, and the file with all that its processes have written to the terminal."""

    url: str
    log: Path

    def said(self) -> str:
        return self.log.read_text("utf-8", errors="replace")

    def get(self, path: str) -> str:
        with urllib.request.urlopen(self.url + path, timeout=ANSWERS_IN) as response:
            return str(response.read().decode())

    def post(self, path: str, body: Mapping[str, Any]) -> tuple[int, Any]:
        """The status and the decoded answer."""
        try:
            with urllib.request.urlopen(self._request(path, body), timeout=ANSWERS_IN) as response:
                return response.status, json.load(response)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    def leave(self, path: str, body: Mapping[str, Any], *, after: float) -> None:
        """Send a request and hang up after so many seconds."""
        address = urlsplit(self.url)
        data = json.dumps(body).encode()
        head = (
            f"POST {path} HTTP/1.1\r\nHost: {address.netloc}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(data)}\r\n\r\n"
        )
        with socket.create_connection((str(address.hostname), int(address.port or 0))) as connection:
            connection.sendall(head.encode() + data)
            time.sleep(after)

    def samples(self, prefix: str = "") -> dict[str, float]:
        """The server's own Prometheus metrics, by name with labels."""
        lines = re.findall(rf"^({prefix}\S*(?:\{{.*\}})?) (\S+)$", self.get("/metrics"), re.MULTILINE)
        return {name: float(value) for name, value in lines}

    def _request(self, path: str, body: Mapping[str, Any]) -> urllib.request.Request:
        headers = {"Content-Type": "application/json"}
        return urllib.request.Request(self.url + path, json.dumps(body).encode(), headers)


@contextmanager
def running_server(
    command: list[str], environment: Mapping[str, str], log: Path, health: str = "/health"
) -> Iterator[Server]:
    """Start a server and end it with all of its processes.

    Args:
        command: arguments of this Python; ``{port}`` in them is replaced.
        environment: in addition to this process's.
        log: file for the output.
        health: a path that the server answers once it is ready.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    arguments = [sys.executable, "-W", "ignore", *(each.format(port=port) for each in command)]
    with log.open("wb") as output:
        process = subprocess.Popen(
            arguments, cwd=TOP, env=os.environ | environment, stdout=output, stderr=output, start_new_session=True
        )
        server = Server(f"http://127.0.0.1:{port}", log)
        try:
            _wait(server, process, health)
            yield server
        finally:
            _end(process)


def _wait(server: Server, process: subprocess.Popen[bytes], health: str) -> None:
    end = time.monotonic() + STARTS_IN
    while time.monotonic() < end:
        if process.poll() is not None:
            raise RuntimeError(f"the server has ended with {process.returncode}: {server.said()[-6000:]}")
        try:
            server.get(health)
            return
        except OSError:
            time.sleep(1)
    raise TimeoutError(f"the server does not answer: {server.said()[-6000:]}")


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(60)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def keeps_no_more(kept: Callable[[], dict[str, float]], before: dict[str, float]) -> bool:
    """Whether a server comes back to keeping no more than before, within a minute; of bytes, no more than the latents
    of one small picture."""
    most = {name: each + 4096 * ("bytes" in name) for name, each in before.items()}
    end = time.monotonic() + 60
    while not (is_so := all(kept().get(name, 0) <= each for name, each in most.items())) and time.monotonic() < end:
        time.sleep(1)
    return is_so


def serve_clients(
    server: Server,
    path: str,
    count: int,
    *,
    good: Callable[[random.Random], None],
    wrong: Callable[[random.Random], tuple[dict[str, Any], str]],
    left: dict[str, Any],
) -> None:
    """Send requests of six clients at once: of ten, eight that must be served, one that is refused, and one whose
    client hangs up.

    Args:
        good: sends a request, and asserts what comes of it.
        wrong: makes the body of a request, and a part of the sentence that refuses it.
        left: body of a request whose client hangs up.
    """

    def one(number: int) -> None:
        chance = random.Random(number)
        if number % 10 == 3:
            server.leave(path, left, after=chance.random())
        elif number % 10 == 7:
            body, message = wrong(chance)
            status, answer = server.post(path, body)
            assert (status, message in str(answer).replace("\\", "")) == (400, True), answer
        else:
            good(chance)

    with ThreadPoolExecutor(6) as clients:
        list(clients.map(one, range(count)))


def grown(server: Server, before: dict[str, float]) -> dict[str, float]:
    """By how much omnireuse's counters have grown, those that have."""
    after = server.samples("omnireuse_")
    each = {name: value - before.get(name, 0) for name, value in after.items() if "_created" not in name}
    return {name: value for name, value in each.items() if value}


def picture(encoded: str) -> np.ndarray[Any, Any]:
    """A picture in base64, also as a data URL, as numbers in 0…255, shape (height, width, 3)."""
    data = base64.b64decode(encoded.partition("base64,")[2] or encoded)
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB")).astype(int)


def documented(engine: str) -> list[tuple[str, dict[str, Any]]]:
    """The requests on a page of docs/engines: each block that begins with ``POST``, with its path and body."""
    text = (TOP / "docs" / "engines" / f"{engine}.md").read_text("utf-8")
    blocks = re.findall(r"```http\nPOST (\S+)\n\n(.*?)```", text, re.DOTALL)
    return [(path, json.loads(body)) for path, body in blocks]
