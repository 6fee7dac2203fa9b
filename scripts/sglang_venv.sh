#!/usr/bin/env bash
# Build a venv with SGLang 0.5.23's diffusion pipelines on a CPU, from the package registries alone, and run the tests of
# engines/tests/hosts/sglang inside it, none of them skipped. About 2 GB.
# Usage: scripts/sglang_venv.sh [folder] [pytest options]
set -euo pipefail
[ "${1-}" != --help ] || { sed -n "s/^# //p;/^set/q" "$0"; exit; }
cd "$(dirname "$0")/.."
venv=${1:-${TMPDIR:-/tmp}/omnireuse-sglang-venv}
shift || true
install=("$venv/bin/pip" install --quiet --no-compile)

if [ ! -e "$venv/ready" ]; then
    "${PYTHON:-python3}" -m venv "$venv"
    # SGLang's own pins, but for torch: it pins 2.14.1, of which the registry has no CPU build.
    "${install[@]}" torch==2.13.0
    grep -vE '^(diffusers|transformers|huggingface_hub)==' constraints.txt > "$venv/constraints.txt"
    "${install[@]}" -c "$venv/constraints.txt" diffusers==0.37.0 transformers==5.19.0 huggingface_hub==1.33.0 httpx2 accelerate sentencepiece protobuf pillow numpy \
        cachetools msgspec platformdirs filelock rich typer tqdm pydantic pytest hypothesis hatchling hatch-fancy-pypi-readme editables
    # SGLang's own requirements bring a CUDA stack; these are what its diffusion pipelines import.
    "${install[@]}" --no-deps sglang==0.5.23 torchvision==0.28.0 cache_dit==1.5.3 apache-tvm-ffi==0.1.11 addict==2.4.0 \
        aiohappyeyeballs==2.7.1 aiohttp==3.14.5 aiosignal==1.4.0 attrs==26.1.0 compressed-tensors==0.20.0 dill==0.4.1 \
        einops==0.8.2 fastapi==0.165.0 frozenlist==1.8.0 gguf==0.19.0 ImageIO==2.38.1 ipython==9.18.1 loguru==0.7.3 \
        multidict==7.2.1 openai==3.54.0 orjson==3.13.0 partial-json-parser==0.2.1.1.post7 propcache==0.5.4 \
        pybase64==1.5.1 python-dateutil==4.0.0 pyzmq==27.3.0 sniffio==1.3.1 starlette==1.10.0 traitlets==5.16.1 \
        triton==3.9.0 uvicorn==0.54.0 yarl==1.25.1
    # What its HTTP server imports besides.
    "${install[@]}" httpx==0.28.1 imageio-ffmpeg==0.8.1 opentelemetry-exporter-otlp==1.45.2 prometheus-client==0.26.0 \
        psutil python-multipart==0.0.34 requests setproctitle==1.3.8 uvloop==0.23.0 websockets==17.4
    touch "$venv/ready"
fi
# Installed and not only on the path: SGLang finds plugins by the entry points of installed packages.
"${install[@]}" --no-deps --no-build-isolation --editable . --editable ./engines

# -c /dev/null: the project's pytest settings name plugins that this venv lacks, and its marks with them.
# The import first: without SGLang the tests would be skipped, and a skip is no failure.
# One thread: the tests compare pictures bit for bit.
"$venv/bin/python" -c 'import importlib.metadata as m; m.version("sglang")'
OMP_NUM_THREADS=1 PYTHONPATH=. "$venv/bin/python" -W ignore -m pytest -c /dev/null --rootdir . \
    -p no:cacheprovider -o consider_namespace_packages=true -q --strict-markers \
    -o 'markers=integration: runs an external service' engines/tests/hosts/sglang "$@"
