"""The `ingot` command."""

from __future__ import annotations

from importlib.metadata import version
from typing import Annotated

import typer

from ingot import channels_cli, images_cli, models_cli
from ingot.rehearsal import cli as local
from ingot.rehearse import rehearse
from ingot.verify.canary import canary

app = typer.Typer(
    name="ingot",
    help="Golden images and clusters for LLM inference on AWS.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _say_version(asked: bool) -> None:
    if asked:
        typer.echo(f"ingot {version('ingot')}")
        raise typer.Exit


_VERSION = typer.Option("--version", help="Say the version and exit.", callback=_say_version, is_eager=True)


@app.callback()
def _options(_: Annotated[bool, _VERSION] = False) -> None:
    pass


app.add_typer(local.app, name="local")
app.add_typer(models_cli.app, name="models")
app.add_typer(images_cli.app, name="images")
app.add_typer(channels_cli.app, name="channel")
app.command("rehearse")(rehearse)
app.command("canary")(canary)
