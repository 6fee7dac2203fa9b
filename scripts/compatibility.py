"""What versions the tests of a release ran with: note them, and write docs/compatibility.md.

    python scripts/compatibility.py note diffusers-oldest FOLDER/bin/python   # after the tests of an environment passed
    python scripts/compatibility.py note newest FOLDER/bin/python --log FILE  # whatever pytest's output there says
    python scripts/compatibility.py write                                     # the page, from what is noted

`.ci/run` does both. Notes are in out/compatibility, a file an environment; a row without a note stays.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
from datetime import date
from pathlib import Path

TOP = Path(__file__).resolve().parents[1]
NOTES = TOP / "out" / "compatibility"
PAGE = TOP / "docs" / "compatibility.md"
ROWS = {
    "suite": "the whole suite, newest supported versions",
    "newest": "the quick tests of models and prompts, newest release of everything; a failure stops no release",
    "diffusers-oldest": "the diffusion tests against the wheel, oldest supported versions",
    "vllm": "the encoder cache and the connector inside vLLM's scheduler",
    "vllm-omni": "step reuse inside vllm-omni's engine",
    "sglang": "step reuse inside SGLang's diffusion pipelines",
    "comfyui": "step reuse inside ComfyUI's samplers",
    "ray-serve": "the router of Ray Serve",
}
"""Environment -> the tests that run in it."""
PACKAGES = {"vllm": "vllm", "vllm-omni": "vllm-omni", "sglang": "sglang", "ray-serve": "ray"}
"""Environment -> the host's package."""
ASK = """
import importlib.metadata as m, json, platform, sys
found = {"python": platform.python_version()}
for name in sys.argv[1:]:
    try:
        found[name] = m.version(name).split("+")[0]
    except m.PackageNotFoundError:
        pass
print(json.dumps(found))
"""
HEAD = """# Compatibility

Versions that the tests of this revision ran with, on a CPU. `.ci/run` fills this page (`scripts/compatibility.py`).
Other versions within the ranges of `pyproject.toml` are expected to work; a host of another version than its plugin
knows is refused with a message that names both.

| tested | Python | torch | diffusers | transformers | host | on | result |
|---|---|---|---|---|---|---|---|
"""


def noted() -> dict[str, dict[str, str]]:
    """Environment -> package -> version."""
    return {file.stem: json.loads(file.read_text("utf-8")) for file in NOTES.glob("*.json")}


def result(log: Path) -> str:
    """What the last line of pytest's output says: that all passed, or how many failed."""
    last = log.read_text("utf-8").rstrip().rpartition("\n")[2]
    counts = {word: int(count) for count, word in re.findall(r"(\d+) (passed|failed|error)", last)}
    if not counts:
        return "did not finish"
    failed = counts.get("failed", 0) + counts.get("error", 0)
    return f"{failed:,} of {failed + counts.get('passed', 0):,} failed" if failed else "passed"


def note(environment: str, python: Path, host: str | None, log: Path | None) -> None:
    """Ask an environment for its versions, and keep them with the result."""
    names = ["torch", "diffusers", "transformers", PACKAGES.get(environment, "")]
    asked = subprocess.run(
        [str(python), "-c", ASK, *filter(None, names)], check=True, capture_output=True, encoding="utf-8"
    ).stdout
    found = json.loads(asked) | {"on": date.today().isoformat(), "result": "passed" if log is None else result(log)}
    if host:
        found["host"] = host
    elif name := PACKAGES.get(environment):
        found["host"] = f"{name} {found[name]}"
    NOTES.mkdir(parents=True, exist_ok=True)
    (NOTES / f"{environment}.json").write_text(json.dumps(found, indent=2) + "\n", "utf-8")


def rows() -> dict[str, str]:
    """What is tested -> its row of the page as it is."""
    if not PAGE.exists():
        return {}
    return {match[1]: match[0] for match in re.finditer(r"^\| (.+?) \|.*\|$", PAGE.read_text("utf-8"), re.MULTILINE)}


def write() -> None:
    """Write the page; a row without a note stays as it was."""
    before, notes = rows(), noted()
    lines = []
    for environment, tested in ROWS.items():
        if (found := notes.get(environment)) is not None:
            keys = ("python", "torch", "diffusers", "transformers", "host", "on", "result")
            cells = [found.get(key, "–") for key in keys]
            lines.append(f"| {tested} | {' | '.join(cells)} |")
        elif tested in before:
            lines.append(before[tested])
    PAGE.write_text(HEAD + "\n".join(lines) + "\n", "utf-8")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    adding = commands.add_parser("note")
    adding.add_argument("environment", choices=ROWS)
    adding.add_argument("python", type=Path)
    adding.add_argument("--host", help="name and version of a host that is no package")
    adding.add_argument("--log", type=Path, help="pytest's output, if the tests need not have passed")
    commands.add_parser("write")
    args = parser.parse_args()
    if args.command == "note":
        note(args.environment, args.python, args.host, args.log)
    else:
        write()


if __name__ == "__main__":
    main()
