"""Tiers outside the process: what they keep comes back, and nothing they do wrong is more than a counted miss."""

import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

from omnireuse.errors import ConfigError, WrongTypeError
from omnireuse.stores.codec import CorruptValueError, decode, encode
from omnireuse.stores.disk import DiskTier
from omnireuse.stores.redis import RedisTier
from omnireuse.stores.tier import CircuitBreaker, TieredStore

VALUE = (
    torch.arange(6.0).reshape(2, 3),
    None,
    [{"mask": torch.tensor([True]), "n": 3, "x": 0.5}],
    torch.ones(2).bfloat16(),
)


def check(value):
    assert type(value) is tuple
    assert torch.equal(value[0], VALUE[0])
    assert value[1] is None
    assert torch.equal(value[2][0]["mask"], VALUE[2][0]["mask"])
    assert (value[2][0]["n"], value[2][0]["x"], value[3].dtype) == (3, 0.5, torch.bfloat16)


class TestCodec:
    def test_values_come_back(self):
        check(decode("k", encode("k", VALUE)))

    def test_every_single_flipped_byte_and_every_cut_is_noticed(self):
        data = encode("k", torch.ones(2))
        for i in range(len(data)):
            with pytest.raises(CorruptValueError):
                decode("k", data[:i] + bytes([data[i] ^ 1]) + data[i + 1 :])
            with pytest.raises(CorruptValueError):
                decode("k", data[:i])

    def test_a_value_of_another_key_is_noticed(self):
        with pytest.raises(CorruptValueError, match="holds that of other"):
            decode("k", encode("other", VALUE))

    @pytest.mark.parametrize("value", [b"bytes", {1: 2}, torch.float16, object()])
    def test_what_cannot_leave_is_named(self, value):
        with pytest.raises(WrongTypeError, match="value"):
            encode("k", value)


@pytest.fixture(params=["disk", "redis"])
def tier(request, tmp_path):
    if request.param == "disk":
        yield DiskTier(tmp_path / "store", max_bytes=1 << 20, namespace=request.node.name)
    else:
        made = RedisTier(request.getfixturevalue("redis_url"), namespace=request.node.name, timeout_s=5.0)
        yield made
        made.close()


@pytest.fixture
def raw(tier, tmp_path, request):
    """``raw()``: the bytes of the one value in a tier, or None; ``raw(data)`` puts others in their place."""
    if isinstance(tier, DiskTier):

        def access(data=None):
            files = [path for path in (tmp_path / "store").iterdir() if path.is_file()]
            if data is not None:
                files[0].write_bytes(data)
            return files[0].read_bytes() if files else None
    else:
        server = client(request.getfixturevalue("redis_url"))

        def access(data=None):
            key = next((key for key in server.scan_iter() if key.startswith(tier.namespace.encode())), None)
            if data is not None:
                server.set(key, data)
            return None if key is None else server.get(key)

    return access


def client(url):
    return pytest.importorskip("redis").Redis.from_url(url)


class TestEveryTier:
    def test_what_was_put_is_found(self, tier):
        assert tier.lookup("k", "absent") == "absent"
        assert tier.put("k", VALUE)
        check(tier.lookup("k"))
        tier.discard("k")
        assert tier.lookup("k") is None
        assert (tier.counts["hits"], tier.counts["misses"], tier.counts["writes"]) == (1, 2, 1)

    def test_namespaces_are_apart(self, tier):
        tier.put("k", 1, namespace="epoch1")
        assert tier.lookup("k", namespace="epoch2") is None
        assert tier.lookup("k", namespace="epoch1") == 1

    def test_none_is_a_value(self, tier):
        tier.put("k", None)
        assert tier.lookup("k", "absent") is None

    def test_foreign_bytes_are_a_miss_and_dropped(self, tier, raw):
        tier.put("k", VALUE)
        cut = raw()[:-1]
        for lie in (b"", b"\x80\x04pickle", encode("someone:else", VALUE), cut):
            tier.put("k", VALUE)
            raw(lie)
            assert tier.lookup("k", "absent") == "absent"
            assert raw() is None
        assert tier.counts["corrupt"] == 4

    def test_what_cannot_be_stored_is_counted(self, tier):
        assert tier.put("k", {1, 2}) is False
        assert tier.counts["unstorable"] == 1

    def test_threads_do_not_tear_values(self, tier):
        values = [torch.full((1000,), float(i)) for i in range(4)]

        def work(i):
            for _ in range(20):
                tier.put("k", values[i])
                found = tier.lookup("k")
                assert found is None or (found == found[0]).all()

        threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert tier.counts["corrupt"] == 0


class TestDisk:
    def test_the_quota_drops_what_was_read_longest_ago(self, tmp_path):
        now = [1e9]
        size = len(encode(":a", torch.zeros(100)))
        tier = DiskTier(tmp_path, max_bytes=2 * size, clock=lambda: now[0])
        for key in "abac":
            now[0] += 10
            if tier.lookup(key) is None:
                tier.put(key, torch.zeros(100))
        assert [tier.lookup(key) is not None for key in "abc"] == [True, False, True]
        assert tier.num_bytes() <= 2 * size
        assert tier.counts["evictions"] == 1

    def test_an_oversize_value_is_refused_alone(self, tmp_path):
        tier = DiskTier(tmp_path, max_bytes=2000)
        tier.put("a", torch.zeros(10))
        assert tier.put("big", torch.zeros(10_000)) is False
        assert tier.lookup("a") is not None
        assert tier.counts["refused"] == 1

    def test_an_abandoned_part_is_removed(self, tmp_path):
        tier = DiskTier(tmp_path, max_bytes=1 << 20)
        part = tmp_path / "x.part"
        part.write_bytes(b"half")
        os.utime(part, (1, 1))
        tier.put("a", 1)
        assert not part.exists()

    def test_a_path_that_is_no_directory_is_a_counted_miss_and_opens_the_circuit(self, tmp_path, caplog):
        (tmp_path / "file").write_text("in the way", "utf-8")
        tier = DiskTier(tmp_path / "file", max_bytes=1 << 20, breaker=CircuitBreaker(max_failures=2))
        assert [tier.put("a", 1) for _ in range(4)] == [False] * 4
        assert tier.lookup("a", "absent") == "absent"
        assert tier.counts["failed_write"] == 2
        assert tier.counts["held_back"] == 3
        assert "not asked for a while" in caplog.text

    @pytest.mark.skipif(not hasattr(os, "geteuid"), reason="needs POSIX permissions")
    def test_a_path_without_permission_is_a_counted_miss(self, tmp_path):
        closed = tmp_path / "closed"
        closed.mkdir(mode=0)
        if os.geteuid() == 0:
            closed = Path("/sys")  # root passes every permission bit, but the kernel makes no folders there for anyone
        tier = DiskTier(closed / "store", max_bytes=1 << 20)
        assert tier.put("a", 1) is False
        assert tier.lookup("a", "absent") == "absent"
        assert tier.counts["failed_write"] == 1

    @pytest.mark.parametrize("max_bytes", [0, -1, None])
    def test_a_quota_below_one_is_refused(self, tmp_path, max_bytes):
        with pytest.raises(ConfigError, match="max_bytes"):
            DiskTier(tmp_path, max_bytes=max_bytes)

    def test_two_processes_share_it(self, tmp_path):
        code = (
            "import sys, torch\n"
            "from omnireuse.stores.disk import DiskTier\n"
            "tier = DiskTier(sys.argv[1], max_bytes=1 << 20, namespace='n')\n"
            "tier.put('k', torch.arange(5))\n"
        )
        subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True, timeout=120)
        assert torch.equal(DiskTier(tmp_path, max_bytes=1 << 20, namespace="n").lookup("k"), torch.arange(5))


class TestRedis:
    @pytest.fixture(autouse=True)
    def _package(self):
        pytest.importorskip("redis", reason="the redis package (omnireuse[redis]) is not installed")

    def test_a_dead_server_is_a_counted_miss(self):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        tier = RedisTier(f"redis://127.0.0.1:{port}/0", timeout_s=0.2)
        assert [tier.lookup("k", "absent") for _ in range(5)] == ["absent"] * 5
        assert (tier.counts["failed_read"], tier.counts["held_back"]) == (3, 2)
        tier.close()

    def test_a_slow_server_is_a_counted_miss(self):
        with socket.socket() as silent:
            silent.bind(("127.0.0.1", 0))
            silent.listen()
            tier = RedisTier(f"redis://127.0.0.1:{silent.getsockname()[1]}/0", timeout_s=0.05)
            assert tier.put("k", 1) is False
            assert tier.counts["failed_write"] == 1
            tier.close()

    def test_a_full_server_is_a_counted_miss(self, redis_url):
        tier = RedisTier(redis_url, namespace="full", timeout_s=5.0)
        server = client(redis_url)
        server.config_set("maxmemory", 1)
        try:
            assert tier.put("k", torch.zeros(1000)) is False
            assert tier.counts["failed_write"] == 1
        finally:
            server.config_set("maxmemory", 0)
            tier.close()

    def test_another_type_under_the_key_is_a_counted_miss(self, redis_url):
        tier = RedisTier(redis_url, namespace="wrong", timeout_s=5.0)
        client(redis_url).lpush("wrong:k", "item")
        assert tier.lookup("k", "absent") == "absent"
        assert tier.counts["failed_read"] == 1
        tier.close()

    def test_entries_may_age(self, redis_url):
        tier = RedisTier(redis_url, namespace="age", ttl_s=100, timeout_s=5.0)
        tier.put("k", 1)
        assert 0 < client(redis_url).ttl("age:k") <= 100
        tier.close()

    @pytest.mark.parametrize(
        ("url", "more"), [("nonsense", {}), ("redis://h", {"timeout_s": 0}), ("redis://h", {"ttl_s": 0})]
    )
    def test_bad_arguments_are_refused(self, url, more):
        with pytest.raises(ConfigError, match="RedisTier"):
            RedisTier(url, **more)


class TestBreaker:
    def test_it_opens_pauses_tries_and_closes(self):
        now = [0.0]
        breaker = CircuitBreaker(max_failures=2, pause_s=10, clock=lambda: now[0])
        assert [breaker.report(ok=False) for _ in range(2)] == [False, True]
        assert not breaker.allows()
        now[0] = 10.0
        assert [breaker.allows(), breaker.allows()] == [True, False]
        breaker.report(ok=False)
        now[0] = 15.0
        assert not breaker.allows()
        now[0] = 20.0
        assert breaker.allows()
        breaker.report(ok=True)
        assert [breaker.allows(), breaker.allows()] == [True, True]

    def test_bad_arguments_are_refused(self):
        with pytest.raises(ConfigError, match="CircuitBreaker"):
            CircuitBreaker(max_failures=0)
        with pytest.raises(ConfigError, match="CircuitBreaker"):
            CircuitBreaker(pause_s=0)


def test_a_value_found_far_away_is_copied_nearer(tmp_path):
    near = DiskTier(tmp_path / "near", max_bytes=1 << 20)
    far = DiskTier(tmp_path / "far", max_bytes=1 << 20)
    store = TieredStore([near, far])
    far.put("k", 5)
    assert store.lookup("k") == 5
    assert near.lookup("k") == 5
    assert store.put("l", 6)
    assert far.lookup("l") == 6
    store.discard("l")
    assert store.lookup("l", "absent") == "absent"
    store.close()
