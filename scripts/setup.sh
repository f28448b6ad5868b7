#!/bin/sh
# Makes .venv with everything that the demo, the tests and the checks need.
# A system package is installed only when it is missing and we may.
set -eu
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}

"$python" - <<'PY'
import sys
if sys.version_info < (3, 11):
    sys.exit(f"consortium needs Python 3.11 or newer; {sys.executable} is {sys.version.split()[0]}"
             "\nhint: make setup PYTHON=/path/to/python3.11")
PY

if [ ! -x .venv/bin/python ]; then
    if ! "$python" -c "import ensurepip, venv" 2>/dev/null; then
        if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
            apt-get update -qq && apt-get install -y -qq python3-venv
        else
            echo "Python's venv module is missing. hint: apt-get install python3-venv" >&2
            exit 1
        fi
    fi
    "$python" -m venv .venv
fi
# The crash campaigns need strace; without it their tests fail and say so.
if ! command -v strace >/dev/null; then
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        apt-get update -qq && apt-get install -y -qq strace
    else
        echo "strace is missing, and the crash tests need it. hint: apt-get install strace" >&2
    fi
fi
echo "installing into .venv; torch is most of it, and takes a minute or two" >&2
.venv/bin/python -m pip install --quiet --disable-pip-version-check \
    --constraint constraints.txt --editable ".[dev,examples,onnx,plots,torch]"
touch .venv/ready
