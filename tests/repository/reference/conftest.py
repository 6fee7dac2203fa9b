from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from reference.train import __main__ as command


@pytest.fixture(scope="session")
def train(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., tuple[Path, Path]]:
    """``train all`` on 32 scenes, one step a stage -> (training folder, exported pipeline).

    The pipeline comes first, then arguments of the command line. Keywords say for each stage what goes over its
    settings.
    """

    def run(name: str, *arguments: str, **settings: dict[str, Any]) -> tuple[Path, Path]:
        recipe = command.RECIPES[name]
        stages = {stage: (partial(train, **settings[stage]), 1) for stage, (train, _) in recipe.stages.items()}
        folder, target = (tmp_path_factory.mktemp(kind) for kind in ("run", "exported"))
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(command.RECIPES, name, replace(recipe, stages=stages, num_scenes=32))
            command.main(
                ["all", "--pipeline", name, "--run", str(folder), "--to", str(target), "--no-compile", *arguments]
            )
        return folder, target

    return run
