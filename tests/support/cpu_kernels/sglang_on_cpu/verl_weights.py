"""The trainer's side of verl's SGLang server, for weights in main memory.

verl and SGLang send weights as handles of CUDA memory: SGLang's patch of PyTorch's pickling reads a device index that
CPU tensors do not have. PyTorch's own pickling shares memory through files that any process may open.
"""

from typing import Any

import torch.multiprocessing
from sglang.srt.utils import patch_torch

from turntree.agents.verl.serving.sglang_weights import SglangWeightSender


class CpuServerAdapter(SglangWeightSender):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        patch_torch._modify_tuple = lambda values, index, modifier: values
        torch.multiprocessing.set_sharing_strategy("file_system")
