#!/usr/bin/env bash
# Makes a virtual environment for trainings on NVIDIA GPUs from requirements/gpu-ENGINE.txt, with this checkout in it.
#
# uv resolves and installs, as pip cannot override a pin of a package (a line "# override: PIN: WHY" of that file). Flash
# attention comes as the wheel that verl takes for this torch, CUDA and Python ("# wheel: URL").
#   usage: scripts/gpu_env.sh vllm|sglang [FOLDER]      (FOLDER: .venv-gpu-ENGINE; PYTHON=python3.12)
set -euo pipefail
cd "$(dirname "$0")/.."
engine=${1:?usage: scripts/gpu_env.sh vllm|sglang [FOLDER]}
folder=${2:-.venv-gpu-$engine}
pins=requirements/gpu-$engine.txt
[ -f "$pins" ] || { echo "no $pins; there is: $(ls requirements/gpu-*)" >&2; exit 2; }
python=${PYTHON:-python3.12}
"$python" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 12))' || {
  echo "flash attention's wheel is for Python 3.12, $("$python" --version) came; set PYTHON=python3.12" >&2; exit 2; }
overrides=$(mktemp); trap 'rm -f "$overrides"' EXIT
sed -n 's/^# override: \([^:]*\):.*/\1/p' "$pins" > "$overrides"
"$python" -m venv "$folder"
"$folder/bin/python" -m pip install --quiet uv
uv=$folder/bin/uv
"$uv" pip install --python "$folder/bin/python" --requirement "$pins" --override "$overrides" --editable ".[train]"
"$uv" pip install --python "$folder/bin/python" --no-deps "$(sed -n 's/^# wheel: //p' "$pins")"
"$folder/bin/turntree" doctor --gpu || :  # a machine that builds an image has no GPU
echo "$folder"
