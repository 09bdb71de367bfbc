#!/usr/bin/env bash
# Create VENV and install SITS with the extras of one purpose: "engine" (run it) or "test" (run and test it).
# Usage: scripts/setup.sh VENV engine|test
# Safe to run again: pip finds everything in place, and a stamp lets make skip it altogether (so offline works).
set -euo pipefail
venv=$1 purpose=$2 python=${PYTHON:-python3}
export PIP_DISABLE_PIP_VERSION_CHECK=1

if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
    echo "error: SITS needs Python 3.11 or newer; $("$python" --version) found. Set PYTHON=/path/to/python3.11" >&2
    exit 2
fi
[ -x "$venv/bin/python" ] || {
    "$python" -m venv "$venv" || {
        echo "error: could not create $venv. On Debian: apt-get install python3-venv" >&2
        exit 2
    }
}
pip=("$venv/bin/python" -m pip install -q)
constraints=$(mktemp)
trap 'rm -f "$constraints"' EXIT
cp constraints.txt "$constraints"

if "$venv/bin/python" -c 'import torch, re; v = [int(x) for x in re.findall(r"\d+", torch.__version__)[:2]]; assert v >= [2, 11]' 2>/dev/null; then
    echo "setup: keeping torch $("$venv/bin/python" -c 'import torch; print(torch.__version__)')"
elif command -v nvidia-smi >/dev/null && nvidia-smi -L 2>/dev/null | grep -q GPU; then
    echo "setup: NVIDIA GPU found, installing the default torch"
    "${pip[@]}" -c "$constraints" 'torch>=2.11'
else
    # The plain index serves a CUDA build of several GB on Linux; the CPU build lives on PyTorch's own index.
    # Whichever of the two the local pip configuration offers first as 2.13.0+cpu is taken.
    echo "setup: no GPU found, installing the CPU build of torch 2.13.0"
    echo 'torch==2.13.0' >>"$constraints"
    "${pip[@]}" -c "$constraints" 'torch==2.13.0' ${SITS_TORCH_INDEX:+--extra-index-url "$SITS_TORCH_INDEX"}
fi

extras=engine
[ "$purpose" = test ] && extras=engine,test
echo "setup: installing sits-llm[$extras]"
"${pip[@]}" -c "$constraints" -e ".[$extras]"
touch "$venv/.installed-engine" "$venv/.installed-$purpose"
