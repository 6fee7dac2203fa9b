#!/usr/bin/env bash
# Build a venv with vllm-omni 0.30.0 on a CPU, from the package registries alone, and run the tests of
# engines/tests/hosts/vllm_omni inside it, none of them skipped. About 2 GB.
# Usage: scripts/vllm_omni_venv.sh [folder of the venv] [pytest options]
# To try requests out instead, with a tiny model: scripts/vllm_omni_venv.sh folder serve [options of vllm serve]
set -euo pipefail
[ "${1-}" != --help ] || { sed -n "s/^# //p;/^set/q" "$0"; exit; }
cd "$(dirname "$0")/.."
venv=${1:-${TMPDIR:-/tmp}/omnireuse-vllm-omni-venv}
shift || true
install=("$venv/bin/pip" install --quiet --no-compile)

if [ ! -e "$venv/ready" ]; then
    "${PYTHON:-python3}" -m venv "$venv"
    # vllm-omni names no vllm among its requirements, but imports one of the same minor version; that pins a CUDA stack.
    "${install[@]}" --no-deps vllm==0.30.0 vllm-omni==0.30.0
    "${install[@]}" torch==2.13.0 'transformers>=5.13,<5.15' diffusers==0.40.0 accelerate==1.12.0 aenum==3.1.16 omegaconf \
        numpy pydantic cloudpickle msgspec cachetools psutil regex requests tqdm py-cpuinfo pyzmq einops pillow \
        prometheus_client blake3 cbor2 pybase64 setproctitle python-json-logger pyyaml packaging uvloop xxhash tiktoken \
        loguru prettytable pytest hypothesis rich typer redis platformdirs filelock hatchling hatch-fancy-pypi-readme editables
    # The rest is imported somewhere on the way; their own requirements would bring another torch.
    "${install[@]}" --no-deps torchvision==0.28.0 cache-dit==1.5.0 aiohttp aiosignal aiohappyeyeballs frozenlist multidict \
        yarl propcache attrs 'fastapi<0.137' starlette anyio sniffio openai distro jiter httpx httpx2 httpcore h11 \
        openai-harmony partial-json-parser 'xgrammar==0.2.8' 'apache-tvm-ffi==0.1.11' opencv-python-headless scipy \
        annotated-doc typing-inspection mcp httpx-sse 'llguidance>=1.7,<1.8' 'outlines_core==0.2.14' \
        'lm-format-enforcer==0.11.3' 'lark==1.2.2' interegular
    # What its HTTP server imports besides; of torchaudio, which is a CUDA build, the tests have a stand-in.
    "${install[@]}" anthropic==2.12.0 av==18.1.0 depyf==0.20.0 gguf==0.19.0 ijson==3.6.0 imageio==2.38.1 janus==2.0.0 \
        jmespath==1.1.0 jsonschema==4.26.0 mistral-common==1.13.1 msgpack==1.2.4 opentelemetry-api==1.45.2 \
        prometheus-fastapi-instrumentator==8.1.0 pydantic-settings==2.16.3 python-multipart==0.0.34 sentencepiece==0.2.3 \
        soundfile==0.14.0 soxr==1.1.0 sse-starlette==3.7.0 uvicorn==0.54.0 watchfiles==1.3.0 websockets==17.4
    "${install[@]}" --no-deps model-hosting-container-standards==0.1.16
    touch "$venv/ready"
fi
# Installed and not only on the path: the engine finds plugins by the entry points of installed packages.
"${install[@]}" --no-deps --no-build-isolation --editable . --editable ./engines

if [ "${1:-}" = serve ]; then
    shift
    export OMP_NUM_THREADS=${OMP_NUM_THREADS:-$(nproc)} PYTHONPATH=.
    exec "$venv/bin/python" -W ignore -m engines.tests.hosts.vllm_omni.server "$@"
fi

# -c /dev/null: the project's pytest settings name plugins that this venv lacks, and its marks with them.
# The import first: without vllm-omni the tests would be skipped, and a skip is no failure.
"$venv/bin/python" -c 'import importlib.metadata as m; m.version("vllm-omni"), m.version("vllm")'
OMP_NUM_THREADS=${OMP_NUM_THREADS:-$(nproc)} PYTHONPATH=. "$venv/bin/python" -W ignore -m pytest -c /dev/null --rootdir . \
    -p no:cacheprovider -o consider_namespace_packages=true -q --strict-markers \
    -o 'markers=integration: runs an external service' engines/tests/hosts/vllm_omni "$@"
