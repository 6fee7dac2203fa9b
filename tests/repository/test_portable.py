"""Rules that a system other than POSIX needs and no test here can run."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator

import pytest

from tests import TOP

#: Modules and functions that Windows lacks.
POSIX = {"fcntl", "grp", "pty", "pwd", "resource", "termios"} | {"fork", "getuid", "killpg", "mkfifo", "uname"}
#: Engines that run on Linux alone.
LINUX = ("engines/src/omnireuse_engines/vllm", "engines/src/omnireuse_engines/sglang", "engines/tests/hosts")
#: Where in the arguments of each the encoding stands.
TEXT = {"read_text": 0, "write_text": 1}
RESERVED = re.compile(r'[<>:"|?*\\]|(^|/)(con|prn|aux|nul|com\d|lpt\d)(\.[^/]*)?(/|$)|[. ](/|$)', re.IGNORECASE)


def tracked() -> dict[str, str]:
    """Modes of the files that git holds, by name; pytest skips what asks outside of a clone."""
    listed = subprocess.run(["git", "ls-files", "-sz"], cwd=TOP, capture_output=True, encoding="utf-8")
    if listed.returncode:
        pytest.skip("not a clone")
    rows = [row.partition("\t") for row in listed.stdout.split("\0") if row]
    return {name: head.split()[0] for head, _, name in rows}


def breaches(source: str) -> Iterator[str]:
    """Calls that read or write text in the encoding of the system, and names that only POSIX has."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            names = {alias.name for alias in node.names} | {getattr(node, "module", None)}
            yield from (f"line {node.lineno}: {name}" for name in POSIX & names)
        elif isinstance(node, ast.Call) and isinstance(node.func, (ast.Attribute, ast.Name)):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else node.func.id
            owner = ast.unparse(node.func.value) if isinstance(node.func, ast.Attribute) else ""
            if owner == "os" and name in POSIX:
                yield f"line {node.lineno}: os.{name}"
            if owner == "os" and name == "rename":
                yield f"line {node.lineno}: os.rename, which does not replace a file on Windows"
            given = {keyword.arg: keyword.value for keyword in node.keywords}
            has_encoding = "encoding" in given
            if given.keys() & {"text", "universal_newlines"} and owner == "subprocess" and not has_encoding:
                yield f"line {node.lineno}: {name} of text without encoding"
            if owner and name in TEXT and not has_encoding and len(node.args) <= TEXT[name]:
                yield f"line {node.lineno}: {name} without encoding"
            modes = [each.value for each in node.args if isinstance(each, ast.Constant) and isinstance(each.value, str)]
            is_text = (not owner and not any("b" in mode for mode in modes[-1:])) or modes in (["r"], ["w"], ["a"])
            if name == "open" and is_text and not has_encoding:
                yield f"line {node.lineno}: open without encoding"


def test_the_repository_has_no_links_and_no_name_that_windows_refuses() -> None:
    files = tracked()
    assert [name for name, mode in files.items() if mode == "120000"] == []
    assert [name for name in files if RESERVED.search(name)] == []
    assert len({name.lower() for name in files}) == len(files)


def test_text_has_an_encoding_and_nothing_needs_posix() -> None:
    sources = [name for name in tracked() if name.endswith(".py") and (TOP / name).is_file()]
    found = {name: list(breaches((TOP / name).read_text("utf-8"))) for name in sources if not name.startswith(LINUX)}
    assert {name: lines for name, lines in found.items() if lines} == {}


@pytest.mark.parametrize(
    "source",
    [
        "path.read_text()",
        "path.write_text(x)",
        "open(path)",
        "open(path, 'w')",
        "path.open('w')",
        "import fcntl",
        "from resource import getrusage",
        "os.fork()",
        "os.rename(part, target)",
        "subprocess.run(command, text=True)",
    ],
)
def test_the_rule_sees(source: str) -> None:
    assert len(list(breaches(source))) == 1


@pytest.mark.parametrize(
    "source",
    [
        "path.read_text('utf-8')",
        "path.write_text(x, encoding='utf-8')",
        "open(path, 'rb')",
        "open(path, encoding='utf-8')",
        "path.open('wb')",
        "write_text(path, x)",
        "cache.open(pipe, 'group')",
        "subprocess.run(command, text=True, encoding='utf-8')",
    ],
)
def test_the_rule_lets_pass(source: str) -> None:
    assert list(breaches(source)) == []
