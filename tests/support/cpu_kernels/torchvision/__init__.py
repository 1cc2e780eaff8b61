"""Let PyPI's torchvision, whose kernels need CUDA, be imported next to a torch without CUDA.

torchvision describes two operators of its compiled library at import and fails if that library could not be loaded.
This package declares the operators, then loads the real torchvision.
"""

import importlib.util
import sys
from importlib.machinery import PathFinder
from pathlib import Path

import torch

_OURS = Path(__file__).resolve().parent.parent
_LIBRARY = torch.library.Library("torchvision", "FRAGMENT")
for _name in ("nms", "qnms"):
    _LIBRARY.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

_spec = PathFinder.find_spec("torchvision", [folder for folder in sys.path if Path(folder).resolve() != _OURS])
if _spec is None or _spec.loader is None:
    raise ImportError("torchvision is not installed; requirements/sglang-*.txt pins it")
_real = importlib.util.module_from_spec(_spec)
_real._declared = _LIBRARY  # type: ignore[attr-defined]  # operators live as long as their library
sys.modules["torchvision"] = _real
_spec.loader.exec_module(_real)
