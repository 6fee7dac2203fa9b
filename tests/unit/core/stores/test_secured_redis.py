"""A Redis with a user, a password and TLS, as docs/serving.md sets it up."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from omnireuse.stores.redis import RedisTier
from tests import TOP


@pytest.fixture
def secured(tmp_path: Path) -> Iterator[str]:
    """Host, port and database."""
    server, openssl = shutil.which("redis-server") or shutil.which("valkey-server"), shutil.which("openssl")
    if server is None or openssl is None:
        pytest.skip("needs redis-server or valkey-server, and openssl")
    pytest.importorskip("redis", reason="the redis package (omnireuse[redis]) is not installed")
    request = "req -x509 -newkey rsa:2048 -nodes -keyout server.key -out server.crt -days 2 -subj /CN=localhost"
    subject = ["-addext", "subjectAltName=DNS:localhost"]
    subprocess.run([openssl, *request.split(), *subject], cwd=tmp_path, check=True, capture_output=True)
    users = re.search(
        r"`(user default off)`\s+and\s+`(user omni on .*?)`", (TOP / "docs" / "serving.md").read_text("utf-8")
    )
    assert users is not None
    (tmp_path / "users.acl").write_text("\n".join(users.groups()).replace("PASSWORD", "secret") + "\n", "utf-8")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = (
        f"--port 0 --tls-port {port} --tls-cert-file server.crt --tls-key-file server.key --tls-ca-cert-file server.crt"
    )
    options += " --tls-auth-clients no --aclfile users.acl --bind 127.0.0.1"
    process = subprocess.Popen([server, *options.split(), "--save", ""], cwd=tmp_path, stdout=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 30
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                break
            except OSError:
                assert process.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.05)
        yield f"localhost:{port}/0"
    finally:
        process.terminate()
        process.wait(10)


def test_a_user_with_a_password_over_tls_reads_writes_and_deletes(secured: str, tmp_path: Path) -> None:
    trusted = f"?ssl_ca_certs={tmp_path / 'server.crt'}"
    tier = RedisTier(f"rediss://omni:secret@{secured}{trusted}", timeout_s=5.0)
    assert tier.put("key", 7)
    assert tier.lookup("key") == 7
    tier.discard("key")
    assert tier.lookup("key") is None
    assert not [name for name in tier.counts if name.startswith("failed")]
    tier.close()


@pytest.mark.parametrize(
    "address",
    ["rediss://omni:wrong@{place}{trusted}", "rediss://omni:secret@{place}", "redis://omni:secret@{place}"],
    ids=["password", "certificate", "plain"],
)
def test_others_are_counted_misses(secured: str, tmp_path: Path, address: str) -> None:
    url = address.format(place=secured, trusted=f"?ssl_ca_certs={tmp_path / 'server.crt'}")
    tier = RedisTier(url, timeout_s=5.0)
    assert tier.put("key", 7) is False
    assert tier.counts["failed_write"] == 1
    tier.close()
