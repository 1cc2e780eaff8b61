"""Replaces Ray 2.60's file of this name, which imports Ray in front of each worker.

A worker gets its environment variables and its interpreter; Ray's other runtime environments are not supported.
"""

import argparse
import json
import os
import re
import shlex
import sys

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--serialized-runtime-env-context", default="{}")
    parser.add_argument("--language")
    own, words = parser.parse_known_args()
    context = json.loads(own.serialized_runtime_env_context)
    for name, value in (context.get("env_vars") or {}).items():
        os.environ[name] = re.sub(r"\$\{[A-Z0-9_]+\}", "", os.path.expandvars(value))
    python = context.get("py_executable") or sys.executable  # a command, in the shell's grammar
    os.execvp("bash", ["bash", "-c", " ".join(["exec", python, *map(shlex.quote, words)])])
