"""``ingot models``: entries for the catalogue of models."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from ingot import models

CATALOG = Path("files/models.yml")

app = typer.Typer(help="The catalogue of models: files/models.yml.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """A group, so that `lock` stays a word of its own."""


@app.command()
def lock(
    model: Annotated[str, typer.Argument(help="Id of the model, OWNER/NAME.")],
    revision: Annotated[
        str, typer.Option(help="Branch, tag or commit; the entry holds the commit that it is now.")
    ] = "main",
    directory: Annotated[
        Path | None, typer.Option(help="Take the files here instead of asking Hugging Face.")
    ] = None,
    licence: Annotated[str, typer.Option(help="With --directory: the model's licence.")] = "unknown",
    token_file: Annotated[
        Path | None, typer.Option(help="File with a token of Hugging Face, for gated models.")
    ] = None,
) -> None:
    """Print a model's entry for files/models.yml: its files' sizes and hashes, and its shape."""
    try:
        models.check_model_id(model)
        if directory:
            entry = models.lock_directory(directory, revision, licence)
        else:
            entry = models.lock_huggingface(
                model,
                revision,
                token_file.read_text().strip() if token_file else None,
                os.environ.get("HF_ENDPOINT", "https://huggingface.co"),
                lambda text: typer.echo(text, err=True),
            )
    except models.ModelError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from error
    typer.echo(f"# Put this below `models:` in {CATALOG}, indented by two spaces.", err=True)
    typer.echo(models.render_entry(model, entry), nl=False)
