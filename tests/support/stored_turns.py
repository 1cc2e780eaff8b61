from typing import Any

import numpy as np

from turntree.spec_tree.rules.ledger import StoredTurn


def stored_turn(tokens: Any, logprobs: Any, top_ids: Any, top_logprobs: Any, **fields: Any) -> StoredTurn:
    """Return a stored turn that ended at its token limit of 4, without a seed, unless ``fields`` override it."""
    names = {"tokens": np.int32, "logprobs": np.float32, "top_ids": np.int32, "top_logprobs": np.float32}
    columns = zip(names.items(), (tokens, logprobs, top_ids, top_logprobs), strict=True)
    arrays = {name: np.asarray(values, kind) for (name, kind), values in columns}
    return StoredTurn(**arrays, **{"seed": None, "version": 0, "token_limit": 4, "stopped": False, **fields})
