"""ComfyUI's own server on the CPU, with the nodes of this repository, and with the small Flux as every checkpoint.

    COMFYUI=/tmp/comfyui/ComfyUI python -m engines.tests.hosts.comfyui.server 8188 /tmp/folder

The folder takes what ComfyUI writes.
"""

from __future__ import annotations

import os
import runpy
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from unittest.mock import MagicMock

from engines.tests.hosts.operators import define_operators
from tests import TOP

_STAND_IN = "from engines.tests.hosts.comfyui.checkpoint import NODE_CLASS_MAPPINGS\n"


def main(port: str, folder: Path) -> None:
    """Serve until the process ends."""
    custom = folder / "custom_nodes"
    custom.mkdir(parents=True)
    (custom / "omnireuse").symlink_to(TOP / "integrations" / "comfyui")
    (custom / "checkpoint.py").write_text(_STAND_IN, "utf-8")
    define_operators()
    host = Path(os.environ["COMFYUI"])
    # Nodes of sound, and of no use here.
    for name in ("torchaudio", "torchaudio.functional", "torchaudio.transforms"):
        sys.modules[name] = MagicMock(__spec__=ModuleSpec(name, None))
    database = f"sqlite:///{folder / 'comfyui.db'}"
    options = ["--cpu", "--port", port, "--base-directory", str(folder), "--database-url", database]
    sys.argv = ["main.py", *options, "--disable-api-nodes"]
    sys.path.insert(0, str(host))
    runpy.run_path(str(host / "main.py"), run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
