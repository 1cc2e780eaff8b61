"""The site: Sphinx over these Markdown pages and the docstrings."""

import importlib
from importlib import metadata

project = "turntree"
author = "the turntree authors"
version = release = metadata.version("turntree")
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
]
root_doc = "index"
html_theme = "furo"
html_title = "turntree"
exclude_patterns = ["_build"]
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_mock_imports = ["vllm", "sglang"]
napoleon_google_docstring = True
napoleon_numpy_docstring = False
nitpicky = False

for package in ("turntree.agents", "turntree.spec_tree"):  # names that are loaded when they are asked for
    module = importlib.import_module(package)
    for name in module.__all__:
        setattr(module, name, getattr(module, name))
