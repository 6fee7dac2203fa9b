"""Write docs/models.md: what is reused of which model, from the declarations, the published tables and the tests.

Usage: python scripts/models.py [--check]
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable
from pathlib import Path

from omnireuse.diffusion.adapters import BLOCK_STACKS, UNSUPPORTED, BlockStack
from omnireuse.diffusion.cache.published import published_rows

TOP = Path(__file__).resolve().parents[1]
PAGE = TOP / "docs" / "models.md"
TRIED = (TOP / "tests" / "diffusion" / "tiny.py", *sorted((TOP / "tests" / "diffusion" / "pipelines").glob("*.py")))

HEAD = """\
# Models

Written by `python scripts/models.py`; a test keeps it current.

Regions `step` and `call` know nothing of the model: they serve every diffusers pipeline whose denoiser is its
`transformer`, `transformer_2`, `unconditional_transformer`, `unet`, `prior` or `decoder`, and whose scheduler is told
its timesteps. On tiny versions of these pipelines they are tested to be bit-equal where everything computes, to do half
of the work where half is reused, and to leave nothing behind:
{pipelines}.

A denoiser that makes two kinds of latents (LTX-2: frames and sound) is served in region `call`, which forecasts both,
and `enable(pipe)` chooses it there. Region `step` asked for by name raises `UnsupportedModelError`: the sound goes to
a copy of the scheduler that the pipeline makes for each run and keeps to itself, so its forecast could not be handed
over.

### Families not tried

Of these packages of `diffusers.pipelines`, the deprecated ones aside, the tests build no pipeline. But for
what the table says, nothing is known to fail there; nobody has looked.

| family | what sets it apart |
|---|---|
{untried}

## Regions `blocks` and `tail`

Each model below is tested, in both regions, to be bit-equal to the plain model where it computes, and to give the sum
of input and residual through its own output layers where it reuses. The signal is what TeaCache watches. Published
figures are borrowed from their sources (`cache/data/*.json`), not measured here; without them, the caches are
calibrated on the model's own steps.

| denoiser | signal | TeaCache's coefficients for | MagCache's ratios for | to know |
|---|---|---|---|---|
"""

UNTRIED = {
    "ace_step": "a condition encoder for text, lyrics and timbre",
    "anyflow": "flow maps from one time to another; its denoisers are not declared",
    "audioldm2": "three text encoders, one of them a language model that is sampled",
    "bria_fibo": "a language model, whose hidden layers it reads",
    "bria_fibo2": "its denoiser is not declared",
    "chronoedit": "an image encoder; the loop is that of Wan image-to-video",
    "consistency_models": "one or two steps, which leave nothing to reuse",
    "consisid": "faces found by OpenCV; the loop is that of CogVideoX",
    "controlnet_hunyuandit": "the loop of HunyuanDiT beside a ControlNet",
    "controlnet_sd3": "the loop of Stable Diffusion 3 beside a ControlNet",
    "ddim": "the loop of Stable Diffusion without guidance, on pixels",
    "ddpm": "the loop of Stable Diffusion without guidance, on pixels",
    "cosmos": "not tried as a whole; Cosmos 1.0 asks its scheduler twice a step, which a test does too",
    "deepfloyd_if": "cascades of UNets on pixels that also say the variance",
    "dit": "classes instead of prompts; it gives no latents",
    "dreamlite": "a vision-language model",
    "ernie_image": "a denoiser of its own",
    "glm_image": "a vision-language model that draws tokens first",
    "helios": "runs in chunks, each with the ones before as history",
    "ideogram4": "a vision-language model; a second transformer is called for the unguided branch",
    "joyimage": "a vision-language model",
    "kandinsky": "a multilingual text encoder of its own; the loop is that of Kandinsky 2.2",
    "kandinsky3": "a UNet of its own",
    "kandinsky6": "two autoencoders; frames and sound, as LTX-2",
    "kolors": "the loop of Stable Diffusion XL behind a text encoder that warns when it is imported",
    "latent_diffusion": "a BERT of its own",
    "latte": "a video transformer of its own",
    "ledits_pp": 'runs on the last of the scheduler\'s timesteps and tells nobody: ask for `quantity="output"`',
    "longcat_audio_dit": "an audio autoencoder of its own",
    "longcat_image": "prompts only, read by a vision-language model; in diffusers 0.42 it fails on embeddings",
    "lucy": "a video to edit; the loop is that of Wan",
    "marigold": "an autoencoder; a few steps from an image to its depth",
    "motif_video": "a denoiser of its own, guided through a guider object",
    "nucleusmoe_image": "a denoiser of experts, which is not declared",
    "omnigen": "a processor that lays text and images out as tokens",
    "qwenimage21": "a vision-language model; text and references are kept in a key-value cache after the first step",
    "rfd4_proteina": "proteins, not pictures: two schedulers, backbone and latents",
    "sana_wm": "a world model: cameras beside the text",
    "shap_e": "a renderer: its latents are the weights of a shape",
    "stable_audio_3": "an audio autoencoder and an embedder of durations",
    "stable_video_diffusion": "an image encoder",
    "t2i_adapter": "the loop of Stable Diffusion beside an adapter network",
    "visualcloze": "a grid of pictures; the loop is that of Flux Fill",
}
"""Package of `diffusers.pipelines` without a pipeline in the tests -> what it has that those tried do not."""

UNDECLARED = (
    "AnyFlowFARTransformer3DModel",
    "AnyFlowTransformer3DModel",
    "BriaFibo2Transformer2DModel",
    "Cosmos3OmniTransformer",
    "DreamLiteTransformer2DModel",
    "Flux3Transformer2DModel",
    "HeliosTransformer3DModel",
    "Kandinsky6SRTransformer3DModel",
    "Kandinsky6Transformer3DModel",
    "LongCatAudioDiTTransformer",
    "MiniMaxH3Transformer3DModel",
    "MiniMaxMusic3Transformer1DModel",
    "NucleusMoEImageTransformer2DModel",
    "RFD4ProteinaTransformer",
    "SanaWMLTX2RefinerTransformer3DModel",
    "SanaWMTransformer3DModel",
    "WanAnimate2Transformer3DModel",
)
"""Denoisers of diffusers 0.42 that regions `blocks` and `tail` could perhaps serve, but that nobody has declared."""

UNSERVED = """
## Served in regions `step` and `call` alone

Asking for region `blocks` or `tail` of these raises `UnsupportedModelError` with the reason. A ControlNet beside a UNet
changes nothing in that: Stable Diffusion with one is served in regions `step` and `call`, Flux with one in all four.

| denoiser | why |
|---|---|
"""


def published(table: str, stack: BlockStack) -> str:
    """The checkpoints with figures for this model and its signal."""
    rows = [row for row in published_rows(table) if row["transformer_class"] == stack.model]
    return "; ".join(row["checkpoint"] for row in rows if row.get("signal", stack.signal_name) == stack.signal_name)


def notes(stack: BlockStack) -> str:
    """What a user of this model should know."""
    said = []
    if stack.bypass:
        said.append(f"region `tail` always runs {', '.join(f'`{name}`' for name in stack.bypass)}")
    if stack.has_long_skips:
        said.append("region `tail` needs at least as many first blocks as last ones")
    return "; ".join(said)


def pipelines(paths: Iterable[Path]) -> list[str]:
    """The pipelines of diffusers that the tests build."""
    found = set()
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module == "diffusers":
                found |= {name.name for name in node.names if name.name.endswith("Pipeline")}
    return sorted(found)


def page() -> str:
    """The page as it should be."""
    tried = ", ".join(f"`{name}`" for name in pipelines(TRIED))
    untried = "\n".join(f"| `{name}` | {apart} |" for name, apart in sorted(UNTRIED.items()))
    lines = [HEAD.format(pipelines=tried, untried=untried)]
    for name, stack in sorted(BLOCK_STACKS.items()):
        cells = (
            f"`{name}`",
            stack.signal_name.replace("_", " "),
            published("teacache_coefficients", stack),
            published("magcache_ratios", stack),
            notes(stack),
        )
        lines.append("| " + " | ".join(cells) + " |\n")
    lines.append(UNSERVED)
    lines += [f"| `{name}` | {why} |\n" for name, why in sorted(UNSUPPORTED.items())]
    names = ", ".join(f"`{name}`" for name in UNDECLARED)
    lines.append(f"\nNot declared yet, so regions `step` and `call` serve them alone, too: {names}.\n")
    return "".join(lines)


def main() -> int:
    """Write the page, or with ``--check`` only say whether it is current."""
    wanted = page()
    if "--check" in sys.argv[1:]:
        current = PAGE.is_file() and PAGE.read_text(encoding="utf-8") == wanted
        print("docs/models.md is current" if current else "docs/models.md is not current: run scripts/models.py")
        return 0 if current else 1
    PAGE.write_text(wanted, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
