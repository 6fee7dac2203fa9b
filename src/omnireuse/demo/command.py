"""``omnireuse demo``: compare, show the table, write the report."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from omnireuse.demo.compare import Cache, compare, generations
from omnireuse.demo.reference import held_out_tasks, image_generator, load_pipeline
from omnireuse.demo.table import results_table
from omnireuse.errors import ConfigError
from omnireuse.report.files import write_report
from omnireuse.report.results import write_results

__all__ = ["CACHES", "DemoConfig", "run_demo"]

#: What is compared; the first is what the report is about.
CACHES = (
    Cache(name="omnireuse default"),
    Cache(name="TeaCache 0.2", backend="tea_cache", options={"rel_l1_thresh": 0.2}),
    Cache(name="TeaCache 0.4", backend="tea_cache", options={"rel_l1_thresh": 0.4}),
)


@dataclass(frozen=True, kw_only=True)
class DemoConfig:
    """What `run_demo` does.

    Attributes:
        model: folder of the reference pipeline.
        out: folder for the results, created where missing.
        steps: denoising steps of the full run, ≥ 4.
        guidance: classifier-free guidance, ≥ 1; 1 is none.
        prompts: how many prompts, ≥ 1.
        seed: decides prompts and noise, ≥ 0.

    Raises:
        ConfigError: a value out of range.
    """

    model: Path = Path("models/shapes-flux")
    out: Path = Path("out/demo")
    steps: int = 28
    guidance: float = 5.0
    prompts: int = 6
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in (("steps", 4), ("prompts", 1), ("seed", 0)):
            if getattr(self, name) < least:
                value = getattr(self, name)
                raise ConfigError(
                    f"demo({name}={value}): {name} must be a whole number of at least {least}, got {value}"
                )
        if not (math.isfinite(self.guidance) and self.guidance >= 1.0):
            raise ConfigError(
                f"demo(guidance={self.guidance}): guidance must be a finite number of at least 1, got {self.guidance}; "
                "1 is no guidance"
            )


def run_demo(config: DemoConfig, console: Console) -> bool:
    """Compare on the reference pipeline and write the results and their report to `config.out`.

    Returns:
        Whether it ran to its end; False where an interrupt cut it short and the finished prompts were kept.

    Raises:
        ConfigError: no pipeline in `config.model`.
        KeyboardInterrupt: interrupted before anything could be kept.
    """
    with console.status("loading the reference pipeline"):
        pipeline = load_pipeline(config.model)
    columns = (TextColumn("{task.description:<34}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        bar = progress.add_task("warm-up: full", total=generations(config.prompts, len(CACHES)))
        comparison = compare(
            pipeline,
            held_out_tasks(config.prompts, seed=config.seed),
            CACHES,
            generate=image_generator(pipeline, guidance=config.guidance),
            num_inference_steps=config.steps,
            guidance=config.guidance,
            model=config.model.resolve().name,
            folder=config.out,
            advance=lambda name: progress.update(bar, advance=1, description=name),
        )
    results = config.out / "results.json"
    write_results(comparison, results)
    written = write_report(comparison, config.out, config.out)
    console.print(results_table(comparison))
    console.print()
    if not comparison.complete:
        done = len(comparison.prompts)
        console.print(f"[yellow]interrupted:[/] kept the {done} of {config.prompts} prompts that were finished")
    for path in (results, *written):
        console.print(f"wrote {path}", highlight=False, soft_wrap=True)
    return comparison.complete
