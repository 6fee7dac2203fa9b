"""Ranks of SGLang's native pipeline: ``python -m engines.tests.hosts.sglang.forked FOLDER``.

Imports SGLang once, and forks the ranks of one parallel configuration after the other. Each rank writes what its
requests came to.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any

from engines.tests.hosts.sglang import conftest

KINDS: dict[str, dict[str, Any]] = {
    "alone": {"num_gpus": 1},
    "cfg": {"num_gpus": 2, "enable_cfg_parallel": True, "cfg_parallel_degree": 2},
}
ASKED: tuple[object, ...] = ("off", "on", {"tolerance": 0.4})
LIMIT = 200
"""Seconds after which a rank counts as stuck, and ends."""


def serve(kind: str, rank: int, port: int, folder: Path) -> None:
    """Serve the requests as one rank."""
    signal.alarm(LIMIT)
    options = KINDS[kind]
    os.environ.update(MASTER_PORT=str(port), LOCAL_RANK=str(rank), RANK=str(rank), WORLD_SIZE=str(options["num_gpus"]))
    from sglang.multimodal_gen.runtime.distributed import parallel_state
    from sglang.multimodal_gen.runtime.pipelines_core import build_pipeline
    from sglang.multimodal_gen.runtime.platforms.plugins import apply_plugin_hooks

    args = conftest.server_args(**{**conftest.NATIVE, **options})
    parallel_state.maybe_init_distributed_environment_and_model_parallel(
        tp_size=1, sp_size=1, cfg_degree=options["num_gpus"]
    )
    server = conftest.Server("native", build_pipeline(args), args)
    apply_plugin_hooks()
    seen = []
    for asked in ASKED:
        picture, calls = server.calls(0, 24, reuse=asked, height=64, width=64)
        seen.append({"calls": calls, "picture": picture.float().flatten().tolist()})
    (folder / f"{kind}-{rank}.json").write_text(json.dumps(seen), "utf-8")


def main(folder: Path) -> None:
    """Run all kinds, one after the other."""
    conftest.prepare()
    import sglang.multimodal_gen.runtime.pipelines_core  # noqa: F401  once, for all ranks

    for kind, options in KINDS.items():
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        ranks = []
        for rank in range(options["num_gpus"]):
            ranks.append(os.fork())
            if not ranks[-1]:
                status = 1
                try:
                    serve(kind, rank, port, folder)
                    status = 0
                finally:
                    sys.stderr.flush()
                    os._exit(status)
        for process in ranks:
            os.waitpid(process, 0)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
