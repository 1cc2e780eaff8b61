from functools import partial
from typing import Any

import bridge_results

PAGE, HEADING = bridge_results.ROOT / "docs" / "results.md", "## The field's clients"
rows = partial(bridge_results.rows, PAGE, HEADING)
require_result = partial(bridge_results.require_result, page=PAGE, heading=HEADING)


def extras(model: Any) -> dict[str, Any]:
    # Fields of an answer, at any depth, that the client's types do not know.
    found = dict(model.model_extra or {})
    for value in vars(model).values():
        for one in value if isinstance(value, list) else [value]:
            if hasattr(one, "model_extra"):
                found |= extras(one)
    return found
