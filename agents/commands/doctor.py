from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from turntree.agents.commands.options import JsonOption, PolicyOptions, TemplateOption

if TYPE_CHECKING:
    from collections.abc import Iterator

    from turntree.agents.commands.installation import Finding


def doctor_command(
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Options of --config, as in `turntree train`.")
    ] = None,
    config: Annotated[
        str | None, typer.Option(help="Training to check: configuration name, YAML file, or first KEY=VALUE option.")
    ] = None,
    gpu: Annotated[bool, typer.Option("--gpu", help="Check what GPU training needs.")] = False,
    model: Annotated[
        str | None, typer.Option(help="Describe the chat template of this model: folder or Hugging Face id.")
    ] = None,
    template: TemplateOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show what is installed, which engines and devices work, and how to install what is missing.

    With --config, also run every check that `turntree train` runs before it starts (as `train --check`), and estimate
    the memory of each phase.

    Exit status 1: a part is broken, the training cannot start or does not fit into memory, or, with --gpu, a package
    for GPU training is missing.

    Example: turntree doctor --gpu --config engine=vllm size=7b env=math

    Example: turntree doctor --model DIR --template "{enable_thinking: false}"
    """
    import json

    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from turntree.agents.commands.installation import Health, examine

    checked, needed = _of_training(config, overrides or [], gpu=gpu)
    findings = [*examine(), *checked]
    needed += [finding for finding in findings if gpu and finding.part.startswith("device cuda")]
    if model is not None:
        findings += _of_template(model, template)
    console = Console()
    if as_json:
        console.print_json(json.dumps([finding._asdict() for finding in findings]))
    else:
        table = Table("part", "", "details", box=None)
        for part, health, what, _ in findings:
            colour = {Health.OK: "green", Health.MISSING: "yellow", Health.BROKEN: "red"}[health]
            table.add_row(part, Text(health, style=colour), Text(what))
        console.print(table)
        if fixes := [f"{finding.part}: {finding.fix}" for finding in findings if finding.fix]:
            # Lines to copy: a table would break them to the width of the terminal.
            console.print(Text("\n".join(("\nto do", *fixes))), soft_wrap=True)
    missing = any(finding.health is Health.MISSING for finding in needed)
    if missing or any(finding.health is Health.BROKEN for finding in findings):
        raise typer.Exit(1)


def _of_training(config: str | None, overrides: list[str], *, gpu: bool) -> tuple[list[Finding], list[Finding]]:
    # Returns all findings, and those without which the training does not run on a GPU.
    from turntree.agents.commands.gpu_check import examine_gpus, examine_training
    from turntree.agents.errors import UsageError

    if config is None and overrides:
        raise UsageError(f"{overrides[0]} is an option of a training; pass the first option with --config")
    start = None
    if config is not None:
        from turntree.agents.verl.start import check_start

        start = check_start(config, overrides)
    needed: list[Finding] = []
    if gpu:
        engine = None if start is None else str(start.composition.verl.actor_rollout_ref.rollout.name)
        needed = list(examine_gpus(engine))
    return [*needed, *([] if start is None else examine_training(start))], needed


def _of_template(model: str, variables: str | None) -> Iterator[Finding]:
    from turntree.agents.commands.installation import Finding, Health
    from turntree.agents.errors import RenderError
    from turntree.agents.evaluation.checkpoint import Checkpoint
    from turntree.agents.loop.renderer import Renderer

    tokenizer = Checkpoint.open(model).tokenizer
    try:
        found = Renderer(tokenizer, **PolicyOptions(template=variables).renderer_options()).template
    except RenderError as error:
        yield Finding("template", Health.BROKEN, str(error), "correct the template, or set another variable")
        return
    thought = "none" if found.thought is None else f"{found.thought.begin} to {found.thought.end}"
    rows = {
        "system role": "supported" if found.system else "none: the first user message starts with the system text",
        "tool role": str(found.tool_role),
        "tools": "rendered" if found.renders_tools else "not rendered: the system message describes them",
        "tool calls": found.tool_format or "unknown format: hermes is used, unless tool_format is set",
        "tool call ids": "nine letters or digits" if found.nine_letter_ids else "any",
        "end tokens": " ".join(map(str, tokenizer.convert_ids_to_tokens(found.end_tokens))),
        "reasoning": thought + (f"; the prompt opens {found.opens}" if found.opens else ""),
        "special tokens": " ".join(found.marks.tokens),
        "variables": ", ".join(found.readable) or "none",
    }
    for name, what in rows.items():
        yield Finding(f"template: {name}", Health.OK, what)
