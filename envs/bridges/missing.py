from __future__ import annotations

import importlib
from types import ModuleType

from turntree.envs.errors import MissingExtra, pip_install


def library(module: str, package: str) -> ModuleType:
    """Import an optional library, or raise an error that names the package to install.

    Raises:
        MissingExtra: If it is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingExtra(f"this bridge needs {package} ({error}): {pip_install(package)}") from error
