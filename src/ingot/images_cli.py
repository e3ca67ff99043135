"""``ingot images``: what can be said of an image before it is baked."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from ingot import images
from ingot.checkout import ROOT
from ingot.preflight.refusal import report

app = typer.Typer(help="The images of packer/images.yml.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """A group, so that `base` stays a word of its own."""


@app.command()
def base(
    name: Annotated[str, typer.Argument(help="Image of packer/images.yml, such as x86.")],
    base_image_id: Annotated[
        str,
        typer.Option(help="The AMI of `packer build -var base_image_id=…`. Empty: the newest of the table."),
    ] = "",
    base_name: Annotated[
        str, typer.Option("--base", help="One of the image's bases, as `packer build -var base=…`.")
    ] = "",
) -> None:
    """Show the AMI that a bake would start from, and refuse one that cannot become an image."""
    import boto3  # takes a third of a second, which other commands need not pay
    from botocore.exceptions import BotoCoreError, ClientError

    refusals = images.check_catalog()
    if not refusals:
        catalog = images.load()
        refusals = images.check_image(name, catalog, ROOT / "roles")
    if not refusals:
        try:
            # boto3 itself reads AWS_DEFAULT_REGION only; everything else here takes AWS_REGION.
            ec2 = boto3.client("ec2", region_name=os.environ.get("AWS_REGION"))
            chosen, refusals = images.base_refusals(
                name, catalog, ec2.describe_images, base_image_id, base_name
            )
        except (BotoCoreError, ClientError, ValueError) as error:  # the last: an endpoint that is no URL
            typer.secho(f"AWS could not be asked for the AMI: {error}", fg="red", err=True)
            raise typer.Exit(1) from error
        if chosen:
            typer.echo(f"{chosen['image_id']} {chosen.get('name', '')} of {chosen.get('owner_id', '')}")
    if refusals:
        typer.echo(report(refusals), err=True)
        raise typer.Exit(1)
