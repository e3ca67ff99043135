"""``ingot models``: entries for the catalogue of models."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from ingot import model_lock
from ingot.models import ModelError, check_model_id

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
        Path | None,
        typer.Option(
            help="Take the files here instead of asking Hugging Face.", exists=True, file_okay=False
        ),
    ] = None,
    licence: Annotated[str, typer.Option(help="With --directory: the model's licence.")] = "unknown",
    token_file: Annotated[
        Path | None,
        typer.Option(
            help="File with a token of Hugging Face, for gated models.",
            exists=True,
            dir_okay=False,
            readable=True,
        ),
    ] = None,
) -> None:
    """Print a model's entry for files/models.yml: its files' sizes and hashes, and its shape."""
    try:
        check_model_id(model)
        if directory:
            entry = model_lock.lock_directory(directory, revision, licence)
        else:
            entry = model_lock.lock_huggingface(
                model,
                revision,
                _token(token_file) if token_file else None,
                os.environ.get("HF_ENDPOINT", "https://huggingface.co"),
                lambda text: typer.echo(text, err=True),
            )
    except ModelError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from error
    typer.echo(f"# Put this below `models:` in {CATALOG}, indented by two spaces.", err=True)
    typer.echo(model_lock.render_entry(model, entry), nl=False)


def _token(path: Path) -> str:
    """What is sent as a header: a single printable word.

    Raises:
        ModelError: the file holds something else, which is not repeated.
    """
    token = path.read_bytes().strip()
    if not token.isascii() or not (text := token.decode()).isprintable() or " " in text or not text:
        raise ModelError(f"{path} holds no token: it must be one line, such as hf_…")
    return text
