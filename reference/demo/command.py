"""``python -m reference demo``: compare, show the table, write the report."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn

from omnireuse.diffusion.calibration.profile import Profile
from omnireuse.errors import ConfigError
from omnireuse.evaluation.report.files import REPORT, write_report
from omnireuse.evaluation.report.results import read_results, write_results
from omnireuse.records import check_writable
from omnireuse.terminal import notes, progress_bar
from reference.case import CLIPS, IMAGES, Case
from reference.demo.compare import Cache, compare, generations
from reference.demo.config import DemoConfig
from reference.demo.reference import generator, load_quietly, tasks
from reference.demo.table import results_table

__all__ = ["CACHES", "run_demo"]

RESULTS = "results.json"
#: What is compared on any model; the first is what the report is about.
CACHES = (
    Cache(name="omnireuse default"),
    Cache(name="TeaCache 0.2", backend="tea_cache", options={"rel_l1_thresh": 0.2}),
    Cache(name="TeaCache 0.4", backend="tea_cache", options={"rel_l1_thresh": 0.4}),
)


def _caches(case: Case, folder: Path, config: DemoConfig) -> tuple[Cache, ...]:
    """`CACHES`; where the model's folder has a profile for these steps and this guidance, two of its plans in place of
    the last."""
    word = "guided" if config.full_guidance > 1 else "unguided"
    found = folder / "profiles" / f"{case.name}-{config.full_steps}-{word}.json"
    if not found.is_file() or float(Profile.load(found).call[case.guidance]) != config.full_guidance:
        return CACHES
    here = Path.cwd()
    found = found.relative_to(here) if found.is_relative_to(here) else found
    searched = (
        Cache(name=f"calibrated, {speedup}x", options={"profile": found.as_posix(), "speedup": speedup})
        for speedup in (2, 3)
    )
    return (CACHES[0], *searched, *CACHES[1:2])


def _written_before(out: Path) -> list[Path]:
    """The files that an earlier demo has written to `out`, the results that name them last.

    Raises:
        ConfigError: results that are not of a demo; they would be overwritten.
    """
    results = out / RESULTS
    if not results.exists():
        return []
    try:
        earlier = read_results(results)
    except ConfigError as error:
        raise ConfigError(
            f"demo(--out {str(out)!r}): {results} must be missing, or results of an earlier demo; "
            f"delete it, or name another folder ({error})"
        ) from error
    images = dict.fromkeys(sample.image for variant in earlier.variants for sample in variant.samples)
    return [*(out / name for name in (*images, *REPORT)), results]


def run_demo(config: DemoConfig, console: Console) -> bool:
    """Compare on the reference pipeline and write the results and their report to `config.out`.

    Returns:
        Whether it ran to its end; False where an interrupt cut it short and the finished prompts were kept.

    Raises:
        ConfigError: no pipeline where `config.model` says, or a folder that cannot be written to.
        KeyboardInterrupt: interrupted before anything could be kept.
    """
    case = CLIPS if config.video else IMAGES
    folder = case.find(config.model)
    earlier = _written_before(config.out)
    check_writable(config.out / RESULTS)
    with notes.status("loading the reference pipeline"):
        pipeline = load_quietly(case, folder)
    columns = (TextColumn("{task.description:<34}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with progress_bar(*columns) as progress:
        caches = _caches(case, folder, config)
        for path in earlier:
            path.unlink(missing_ok=True)
        bar = progress.add_task("warm-up: full", total=generations(config.prompts, len(caches)))
        comparison = compare(
            pipeline,
            tasks(case, config.prompts, seed=config.seed),
            caches,
            generate=generator(case, pipeline, guidance=config.full_guidance),
            num_inference_steps=config.full_steps,
            guidance=config.full_guidance,
            model=folder.resolve().name,
            folder=config.out,
            advance=lambda name: progress.update(bar, advance=1, description=name),
        )
    results = config.out / RESULTS
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
