"""The `ingot` command."""

from __future__ import annotations

import typer

from ingot import images_cli, models_cli
from ingot.rehearsal import cli as local
from ingot.rehearse import rehearse

app = typer.Typer(
    name="ingot",
    help="Golden images and clusters for LLM inference on AWS.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(local.app, name="local")
app.add_typer(models_cli.app, name="models")
app.add_typer(images_cli.app, name="images")
app.command("rehearse")(rehearse)
