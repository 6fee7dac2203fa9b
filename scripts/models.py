"""Write docs/models.md, the list of supported models, from the declarations, the published tables and the tests.

Usage: python scripts/models.py [--check]
"""

from __future__ import annotations

import ast
import sys
import textwrap
from collections.abc import Iterable
from pathlib import Path

from omnireuse.models import BLOCK_STACKS, UNSUPPORTED, BlockStack
from omnireuse.named.published import published_rows

TOP = Path(__file__).resolve().parents[1]
PAGE = TOP / "docs" / "models.md"
MODULAR = TOP / "tests/models/diffusion/pipelines/modular.py"
TRIED = (TOP / "tests/helpers/tiny.py", *sorted((TOP / "tests/models/diffusion/pipelines").glob("*.py")))

HEAD = """\
# Supported models

`omnireuse.enable(pipe)` works on every diffusers pipeline that has two things: a denoiser named `transformer`,
`transformer_2`, `transformer_ref`, `unconditional_transformer`, `unet`, `prior` or `decoder`, and a scheduler that is
told its timesteps. It needs no declaration of your model.

| you want | your model must be in | if it is not |
|---|---|---|
| the default, a target such as `speedup=`, a profile (regions `step` and `call`) | no list | \
[My model is not supported](how-to/unsupported-model.md) |
| TeaCache, MagCache, DBCache, FirstBlockCache (regions `blocks` and `tail`) | \
[the table of denoisers](#regions-blocks-and-tail) | [the reason](#models-for-regions-step-and-call-only), \
or [declare its blocks](extending.md#an-adapter-and-its-signal) |

## Pipelines that are tested

These pipelines are tested in regions `step` and `call`, in tiny versions with random weights. The tests check three
things: the result is bit-equal if every step is computed; half of the work is done if half of the steps are reused;
and nothing stays behind on the pipeline.

{pipelines}

[Families that are not tested](#families-that-are-not-tested) have a table of their own.

**Frames with sound.** For a denoiser that returns two kinds of latents (LTX-2, MiniMax H3), `enable(pipe)` selects
region `call`, which forecasts both. `region="step"` raises `UnsupportedModelError`, because the pipeline passes the
sound to a private copy of the scheduler, or to a scheduler of its own.

**Several kinds of latents elsewhere.** omnireuse finds out at the first call of a run. The default and the targets of
`enable` then go on in region `call`, with a warning and a count in `summary().fallbacks`. A cache that a denoiser
returns unchanged (the keys and values of AnyFlow FAR) does not count as latents.

**Computed in full.** `StableDiffusionPanoramaPipeline` steps its scheduler once for each window, and the frames of
`SkyReelsV2DiffusionForcingPipeline` have timesteps and schedulers of their own. Every step is computed, bit for bit,
and the log and `summary()` say why. With `ar_step=0` all frames of SkyReels share their timesteps: use region `call`,
and call `handle.advance()` in `callback_on_step_end`.

## Modular pipelines

Call `enable` on a modular pipeline as on any other. If it makes sound beside frames (Echo, LTX-2, MiniMax H3), it runs
in region `call`. Echo has no scheduler: after `enable`, give the number of its steps by `handle.expect(8)`.

**A loop of your own** in a `ModularPipelineBlocks` works if it calls `scheduler.set_timesteps` and `scheduler.step`. If
it does not, name its steps by `transformer.cache_context(name, step_index=i)`, in regions `call`, `blocks` and `tail`.
If the scheduler's noise is not known, give it there as well, by `sigma=`.

**Guidance.** Each branch has the name that the guider gives its batch (`pred_cond`, `pred_uncond`, `pred_cond_skip`)
and a history of its own, so guidance may begin or end during a run. `SkipLayerGuidance` and
`PerturbedAttentionGuidance` work in all regions.

The denoising blocks of all modular pipelines of diffusers 0.42 are tested around tiny denoisers, with the same checks;
also in region `blocks` if the denoiser is declared below:

{modular}

## Families that are not tested

No test builds a pipeline of these packages of `diffusers.pipelines` (deprecated packages are left out). No failure is
known except as the table says.

| family | what is different |
|---|---|
{untried}

## Regions `blocks` and `tail`

Each model below is tested in both regions. If a step is computed, the result is bit-equal to the plain model. If it is
reused, the result is the sum of input and residual, through the model's own output layers.

The *signal* is what TeaCache watches. The next two columns name the checkpoints with published figures
(`omnireuse/named/data/*.json` has the sources; they are not measured here). If a cell is empty, measure your own:
[TeaCache's coefficients](step-reuse-options.md#teacaches-coefficients),
[MagCache's ratios](step-reuse-options.md#magcaches-ratios).

| denoiser | signal | TeaCache's coefficients for | MagCache's ratios for | note |
|---|---|---|---|---|
"""

UNTRIED = {
    "ace_step": "a condition encoder for text, lyrics and timbre",
    "anyflow": "flow maps from one time to another; its denoisers are not declared",
    "audioldm2": "three text encoders, one of them a language model that generates tokens",
    "bria_fibo": "reads the hidden layers of a language model",
    "bria_fibo2": "its denoiser is not declared",
    "chronoedit": "an image encoder; the loop is that of Wan image-to-video",
    "consistency_models": "one or two steps, so there is nothing to reuse",
    "consisid": "faces found by OpenCV; the loop is that of CogVideoX",
    "controlnet_hunyuandit": "the loop of HunyuanDiT with a ControlNet",
    "controlnet_sd3": "the loop of Stable Diffusion 3 with a ControlNet",
    "ddim": "the loop of Stable Diffusion without guidance, on pixels",
    "ddpm": "the loop of Stable Diffusion without guidance, on pixels",
    "cosmos": "not tested as a whole; Cosmos 1.0 calls its scheduler twice a step, which a test covers",
    "deepfloyd_if": "cascades of UNets on pixels that also predict the variance",
    "dit": "classes instead of prompts; it does not return latents",
    "dreamlite": "a vision-language model",
    "ernie_image": "a denoiser of its own",
    "glm_image": "a vision-language model that first generates tokens",
    "helios": "runs in chunks, each with the previous ones as history",
    "ideogram4": "a vision-language model; a second transformer is called for the unguided branch",
    "joyimage": "a vision-language model",
    "kandinsky": "a multilingual text encoder of its own; the loop is that of Kandinsky 2.2",
    "kandinsky3": "a UNet of its own",
    "kandinsky6": "two autoencoders; frames and sound, as LTX-2",
    "kolors": "the loop of Stable Diffusion XL, with a text encoder that warns at import",
    "latent_diffusion": "a BERT of its own",
    "latte": "a video transformer of its own",
    "ledits_pp": 'runs on the last timesteps of the scheduler without telling it: use `prediction_target="output"`',
    "longcat_audio_dit": "an audio autoencoder of its own",
    "longcat_image": "takes prompts only, read by a vision-language model; in diffusers 0.42 it fails on embeddings",
    "lucy": "takes a video to edit; the loop is that of Wan",
    "marigold": "predicts depth from an image in a few steps",
    "motif_video": "a denoiser of its own, guided through a guider object",
    "nucleusmoe_image": "a denoiser of experts, which is not declared",
    "omnigen": "a processor that arranges text and images as tokens",
    "qwenimage21": "a vision-language model; text and references are kept in a key-value cache after the first step",
    "rfd4_proteina": "proteins instead of pictures; two schedulers, for backbone and latents",
    "sana_wm": "a world model with cameras in addition to the text",
    "shap_e": "a renderer: its latents are the weights of a shape",
    "stable_audio_3": "an audio autoencoder and an embedder of durations",
    "stable_video_diffusion": "an image encoder",
    "t2i_adapter": "the loop of Stable Diffusion with an adapter network",
    "visualcloze": "a grid of pictures; the loop is that of Flux Fill",
}
"""Package of `diffusers.pipelines` without a pipeline in the tests -> how it differs from those tested."""

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
    "MiniMaxMusic3Transformer1DModel",
    "NucleusMoEImageTransformer2DModel",
    "RFD4ProteinaTransformer",
    "SanaWMLTX2RefinerTransformer3DModel",
    "SanaWMTransformer3DModel",
    "WanAnimate2Transformer3DModel",
)
"""Denoisers of diffusers 0.42 without a declaration, which regions `blocks` and `tail` could perhaps support."""

UNSERVED = """
## Models for regions `step` and `call` only

Use the default or region `call` on these models. Region `blocks` or `tail` raises `UnsupportedModelError` with the
reason. A ControlNet makes no difference: Stable Diffusion with one supports regions `step` and `call`, Flux with one
all four.

| denoiser | reason |
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
            names = [name.name for name in node.names] if isinstance(node, ast.ImportFrom) else []
            if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "diffusers":
                names = [node.attr]
            found |= {name for name in names if name.endswith("Pipeline")}
    return sorted(found)


def modular(path: Path) -> list[str]:
    """The modular pipelines that the tests build."""
    tables = {}
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.value, ast.Dict):
            tables[ast.unparse(node.target)] = node.value
    return sorted(ast.literal_eval(key) for key in tables["PIPELINES"].keys if key is not None)


def _wrapped(text: str) -> str:
    return textwrap.fill(text, 120, break_long_words=False, break_on_hyphens=False)


def page() -> str:
    """The page as it should be."""
    tried = ", ".join(f"`{name}`" for name in pipelines(TRIED)) + "."
    untried = "\n".join(f"| `{name}` | {apart} |" for name, apart in sorted(UNTRIED.items()))
    lines = [
        HEAD.format(
            pipelines=_wrapped(tried),
            untried=untried,
            modular=_wrapped(", ".join(f"`{name}`" for name in modular(MODULAR)) + "."),
        )
    ]
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
    text = f"These are not declared yet, so they support regions `step` and `call` only: {names}."
    lines.append(f"\n{_wrapped(text)}\n")
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
