"""``omnireuse demo``: compare, show the table, write the report."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from omnireuse.demo.compare import Cache, compare, generations
from omnireuse.demo.config import DemoConfig
from omnireuse.demo.reference import generator, load_quietly, tasks
from omnireuse.demo.table import results_table
from omnireuse.reference.case import CLIPS, IMAGES
from omnireuse.report.files import write_report
from omnireuse.report.results import write_results

__all__ = ["CACHES", "run_demo"]

#: What is compared; the first is what the report is about.
CACHES = (
    Cache(name="omnireuse default"),
    Cache(name="TeaCache 0.2", backend="tea_cache", options={"rel_l1_thresh": 0.2}),
    Cache(name="TeaCache 0.4", backend="tea_cache", options={"rel_l1_thresh": 0.4}),
)


def run_demo(config: DemoConfig, console: Console) -> bool:
    """Compare on the reference pipeline and write the results and their report to `config.out`.

    Returns:
        Whether it ran to its end; False where an interrupt cut it short and the finished prompts were kept.

    Raises:
        ConfigError: no pipeline where `config.model` says.
        KeyboardInterrupt: interrupted before anything could be kept.
    """
    case = CLIPS if config.video else IMAGES
    folder = case.find(config.model)
    with console.status("loading the reference pipeline"):
        pipeline = load_quietly(case, folder)
    columns = (TextColumn("{task.description:<34}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        bar = progress.add_task("warm-up: full", total=generations(config.prompts, len(CACHES)))
        comparison = compare(
            pipeline,
            tasks(case, config.prompts, seed=config.seed),
            CACHES,
            generate=generator(case, pipeline, guidance=config.full_guidance),
            num_inference_steps=config.full_steps,
            guidance=config.full_guidance,
            model=folder.resolve().name,
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
