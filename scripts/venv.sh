#!/usr/bin/env bash
# Prints the path of a virtual environment that can run this checkout, and makes it where it is missing.
#
# Two layers: the dependencies, in a cache folder keyed by the requirement files and the Python version,
# shared by every checkout; and a thin one for this checkout, with turntree itself installed editable.
# An engine's environment lies over another's: what it pins is installed without dependencies, and whatever
# it does not have comes from below, so that torch, Ray and verl are there once.
#   usage: scripts/venv.sh [-n] NAME     (-n makes nothing; status 1 if it is missing. requirements/NAME.txt pins it; its first line names pyproject's extra,
#                                    "# extra: test", or what it lies over, "# over: cpu")
set -euo pipefail
cd "$(dirname "$0")/.."
dry=; [ "${1:-}" != -n ] || { dry=1; shift; }
name=${1:?usage: scripts/venv.sh NAME, for example: scripts/venv.sh cpu}
pins=requirements/$name.txt
[ -f "$pins" ] || { echo "no $pins; there is: $(ls requirements)" >&2; exit 2; }
python=${PYTHON:-python3}
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
  echo "turntree needs Python 3.11 or newer, $("$python" --version) came; set PYTHON=python3.11" >&2; exit 2; }
extra=$(sed -n '1s/^# extra: //p' "$pins")
over=$(sed -n '1s/^# over: //p' "$pins")
[ -n "$extra$over" ] || { echo "the first line of $pins must be '# extra: NAME' or '# over: NAME'" >&2; exit 2; }
wanted=$(EXTRA=$extra "$python" -c 'import os, re, tomllib
project = tomllib.load(open("pyproject.toml", "rb"))["project"]
extras = [os.environ["EXTRA"]]
for one in extras:  # and those that it names
    found = re.findall(r"turntree\[([^]]*)\]", str(project["optional-dependencies"].get(one)))
    extras += [name for name in ",".join(found).split(",") if name and name not in extras]
print(project["dependencies"], [(one, project["optional-dependencies"].get(one)) for one in sorted(extras)])')
below=; [ -z "$over" ] || below=$(dirname "$(dirname "$("$0" ${dry:+-n} "$over")")")
key=$( { "$python" -VV; uname -m; cat "$pins"; echo "${below:-$wanted}"; } | sha256sum | cut -c1-16)
cache=${TURNTREE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/turntree}/venvs
base=$cache/$name-$key
thin=$base/checkouts/$( { pwd -P; cat pyproject.toml; } | sha256sum | cut -c1-16)
[ -z "$dry" ] || { echo "$thin"; [ -f "$base/.complete" ]; exit; }

exec 9>&1 1>&2                                   # pip talks on stderr; only the path goes to stdout
export PYTHONWARNINGS=ignore                     # what setuptools says to authors of packages; errors stay
mkdir -p "$cache"
exec 8>"$cache/$name-$key.lock"; flock 8         # two checkouts at once build it once
purelib() { "$1/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))'; }
if [ ! -f "$base/.complete" ]; then
  echo "installing the pinned requirements of $pins (once; kept in $base)"
  rm -rf "$base"
  if [ -n "$over" ]; then
    "$python" -m venv --without-pip "$base"
    purelib "$below" > "$(purelib "$base")/below.pth"
    "$below/bin/python" -m pip --python "$base/bin/python" install --quiet --no-deps --requirement "$pins"
  else
    "$python" -m venv "$base"
    "$base/bin/python" -m pip install --quiet --upgrade "pip>=24" "setuptools>=77" wheel
    PYTHONUNBUFFERED=1 "$base/bin/python" -m pip install --progress-bar off --constraint "$pins" --editable ".[$extra]" |
      "$python" scripts/install_bar.py "$pins" "$(purelib "$base")"
    "$base/bin/python" -m pip uninstall --quiet --yes turntree
  fi
  touch "$base/.complete"
fi
if [ ! -f "$thin/.complete" ]; then
  rm -rf "$thin"
  "$base/bin/python" -m venv --without-pip "$thin"
  { purelib "$base"; [ -z "$over" ] || purelib "$below"; } > "$(purelib "$thin")/dependencies.pth"
  "${below:-$base}/bin/python" -m pip --python "$thin/bin/python" install --quiet --no-deps --no-build-isolation --editable .
  touch "$thin/.complete"
fi
echo "$thin" >&9
