"""The trainer's side of verl's SGLang server, where the weights lie in the machine's memory.

verl and SGLang hand weights over as handles of CUDA memory: SGLang's patch of PyTorch's pickling reads the index of a
device that a tensor of the CPU does not have. PyTorch's own pickling shares memory by files, which any process may
open, not only a child of the one that made them.
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
