"""vllm-omni's own HTTP server with omnireuse on a CPU, with a tiny Qwen-Image of random weights, to try requests out.

    scripts/vllm_omni_venv.sh /tmp/vllm-omni serve --port 8000 --step-execution --max-num-seqs 4

runs this in the environment that it builds. Further arguments are options of ``vllm serve``, such as
``--cache-config``. Its pictures are noise; what is real is the engine, its API, its log and its figures.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from engines.tests.hosts.operators import define_operators
from engines.tests.hosts.vllm_omni import cpu_platform, tiny_qwen
from tests import TOP

ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "MASTER_ADDR": "localhost",
    "TOKENIZERS_PARALLELISM": "false",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_TARGET_DEVICE": "cpu",
}


def environment(folder: Path) -> dict[str, str]:
    """What a server's processes need in addition; an existing folder, empty, takes their stand-ins for packages."""
    return {**ENVIRONMENT, "PYTHONPATH": f"{cpu_platform.announce(folder)}:src:."}


def serving(model: Path, *options: str) -> list[str]:
    """Arguments of Python that start a server of a model, from the top of the repository."""
    command = [
        "-m",
        "vllm.entrypoints.cli.main",
        "serve",
        str(model),
        "--omni",
        "--dtype",
        "float32",
        "--enforce-eager",
    ]
    return [*command, "--cache-backend", "omnireuse", *options]


def main(options: Sequence[str]) -> None:
    """Serve until the process ends."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for each in ("model", "site"):
            (folder / each).mkdir()
        define_operators()
        tiny_qwen.save(folder / "model")
        command = [sys.executable, "-W", "ignore", *serving(folder / "model", *options)]
        with subprocess.Popen(command, cwd=TOP, env=os.environ | environment(folder / "site")) as process:
            signal.signal(signal.SIGINT, lambda *_: None)  # a terminal sends it to the server, too
            signal.signal(signal.SIGTERM, lambda number, _: process.send_signal(number))
            raise SystemExit(process.wait())


if __name__ == "__main__":
    main(sys.argv[1:])
