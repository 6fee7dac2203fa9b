#!/usr/bin/env bash
# Build a venv with vLLM's scheduler (no GPU, no model, no vLLM dependencies beyond its imports) and run our encoder cache
# manager and our connector inside it: every test marked integration that needs vLLM, none of them skipped. `python -m
# bench encoder_cache` and `encoder_connector` find the venv at the default place. Usage: scripts/vllm_venv.sh [folder of
# the venv]
set -euo pipefail
[ "${1-}" != --help ] || { sed -n "s/^# //p;/^set/q" "$0"; exit; }
cd "$(dirname "$0")/.."
# --no-compile: compiling all of torch and vLLM takes longer than the few modules that are imported.
venv=${1:-${TMPDIR:-/tmp}/omnireuse-vllm-venv}
torch='torch==2.13.0'

if [ ! -x "$venv/bin/python" ]; then
    "${PYTHON:-python3}" -m venv "$venv"
fi
# vLLM itself pins a CUDA stack that its scheduler does not need.
"$venv/bin/pip" install --quiet --no-compile --no-deps 'vllm==0.33.0'
"$venv/bin/pip" install --quiet --no-compile "$torch" numpy pytest hypothesis \
    'transformers>=5.16.1,<5.21' pydantic cloudpickle msgspec cachetools psutil regex requests tqdm py-cpuinfo pyzmq \
    einops pillow prometheus_client rich typer safetensors redis blake3 cbor2 pybase64 setproctitle python-json-logger pyyaml packaging uvloop xxhash
# The rest is imported somewhere on the way to the scheduler; their own dependencies would bring another torch.
"$venv/bin/pip" install --quiet --no-compile --no-deps \
    aiohttp aiosignal aiohappyeyeballs frozenlist multidict yarl propcache attrs 'fastapi<0.137' starlette anyio sniffio \
    openai distro jiter httpx httpcore h11 oss-harmony partial-json-parser 'xgrammar==0.2.8' 'apache-tvm-ffi==0.1.11' \
    opencv-python-headless scipy annotated-doc typing-inspection mcp httpx-sse \
    'llguidance>=1.7,<1.8' 'outlines_core==0.2.14' 'lm-format-enforcer==0.11.3' 'lark==1.2.2' interegular

# -c /dev/null: the project's pytest settings name plugins that this venv lacks, and its marks with them.
# The import first: without vLLM the tests would be skipped, and a skip is no failure.
"$venv/bin/python" -c 'import vllm.v1.core.sched.scheduler'
PYTHONPATH=src:engines/src "$venv/bin/python" -m pytest -c /dev/null --rootdir . -p no:cacheprovider -q -s \
    --strict-markers -o consider_namespace_packages=true -o 'markers=integration: runs an external service' \
    engines/tests/hosts/vllm
