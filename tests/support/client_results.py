from functools import partial

import bridge_results

PAGE, HEADING = bridge_results.ROOT / "docs" / "results.md", "## The field's clients"
rows = partial(bridge_results.rows, PAGE, HEADING)
require_result = partial(bridge_results.require_result, page=PAGE, heading=HEADING)
