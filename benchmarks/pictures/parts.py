"""A diagram of the environment, rollout loop, engine, draft store and verl, and of what flows between them."""

from __future__ import annotations

from pictures.sheet import SCHEMES, sheet, text

WIDE, HIGH = 144, 66  # of a box
STEP = 261  # from the left edge of a box to that of the next
TOP, LOW = 84, 210  # of the two rows of boxes
BOXES = (
    ("Environment", "tasks, tools, rewards"),
    ("Rollout loop", "plays one episode"),
    ("Engine", "local, vLLM or SGLang"),
    ("Draft store", "turns sampled earlier"),
)
TO_THE_RIGHT = ("messages, reward", "prompt token ids", "sampled token ids")  # from each box to its right neighbour
TO_THE_LEFT = ("sampled text", "sampled token ids", "drafts")


def draw(scheme: str) -> str:
    """Return the diagram as SVG."""
    ink = SCHEMES[scheme]["soft"]
    parts = [
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        f'<path d="M0 0L8 4L0 8z" fill="{ink}"/></marker></defs>',
        f'<g fill="none" stroke="{ink}" stroke-width="1.5" marker-end="url(#tip)">',
    ]
    labels = []
    for column, (right, left) in enumerate(zip(TO_THE_RIGHT, TO_THE_LEFT, strict=True)):
        start, end = 16 + STEP * column + WIDE + 6, 16 + STEP * (column + 1) - 6
        parts += [f'<path d="M{start} {TOP + 23}H{end}"/>', f'<path d="M{end} {TOP + 43}H{start}"/>']
        middle = (start + end) / 2
        labels += [text(middle, TOP + 15, right, "", "middle"), text(middle, TOP + 59, left, "", "middle")]
    loop, engine = (16 + STEP * column + WIDE / 2 for column in (1, 2))
    verl, middle = (loop + engine - WIDE) / 2, LOW + HIGH / 2
    parts += [
        f'<path d="M{loop} {TOP + HIGH + 4}V{middle}H{verl - 6}"/>',
        f'<path d="M{verl + WIDE + 4} {middle}H{engine}V{TOP + HIGH + 6}"/>',
        "</g>",
    ]
    labels += [
        text(loop - 10, middle - 34, "trajectories: token ids,", "", "end"),
        text(loop - 10, middle - 17, "masks, rewards", "", "end"),
        text(engine + 10, middle - 26, "updated weights"),
    ]
    for column, (noun, does) in enumerate(BOXES):
        parts += box(16 + STEP * column, TOP, noun, does)
    parts += box(verl, LOW, "verl", "updates the policy")
    below = "The engine checks a whole draft in one forward pass and keeps the tokens that the policy itself samples."
    return sheet(scheme, "How the parts of turntree fit together", below, 960, 296, [*parts, *labels])


def box(left: float, top: float, noun: str, does: str) -> list[str]:
    """Return a box with a bold noun and a short line below it."""
    middle = left + WIDE / 2
    return [
        f'<rect class="card" x="{left:g}" y="{top}" width="{WIDE}" height="{HIGH}" rx="8"/>',
        text(middle, top + 28, noun, "bold", "middle"),
        text(middle, top + 48, does, "soft", "middle"),
    ]
