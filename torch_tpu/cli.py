"""The command `torch-tpu`: what is installed, whether a script runs on a chip, and the folder of compiled programs."""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import track

app = typer.Typer(help=__doc__, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
cache_app = typer.Typer(help="The folder of compiled programs.", no_args_is_help=True)
app.add_typer(cache_app, name="cache")

# What is not known here goes to the script, wherever it stands.
_PASSED_ON = {"ignore_unknown_options": True}
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Script = Annotated[str, typer.Argument(help="A Python script.", metavar="SCRIPT")]
Arguments = Annotated[list[str] | None, typer.Argument(help="The script's arguments.", metavar="[ARGS]...")]


def main() -> None:
    """The entry point of the command."""
    app()


@app.command()
def info(as_json: Json = False) -> None:
    """The plugin, the devices, versions, and the folder of compiled programs."""
    _print(_info(), as_json)


@app.command(context_settings=_PASSED_ON)
def check(
    script: Script,
    arguments: Arguments = None,
    target: Annotated[str, typer.Option(help="A chip, or a slice: v5e, v6e, tpu7x, v5p, v4, v6e:2x2, ...")] = "v5e",
    html: Annotated[Path | None, typer.Option(help="Also write a page to this file.", metavar="FILE")] = None,
    as_json: Json = False,
) -> None:
    """Run a script, compile every program it compiled for a chip, and report what would not run there.

    No TPU is needed. Exits with 1 if something would not compile or not fit, or if the script raises.
    """
    with _script_prints_to(sys.stderr if as_json else sys.stdout):
        from .aot.check import check as check_script

        try:
            report = check_script(script, arguments or [], target, _progress)
        except (ValueError, FileNotFoundError, ImportError) as error:
            _fail(str(error))
    if html is not None:
        from .aot.page import page

        html.write_text(page(report), encoding="utf-8")
    typer.echo(json.dumps(report.to_dict(), indent=1) if as_json else str(report))
    raise typer.Exit(0 if report.ok else 1)


@cache_app.command("list")
def list_cache(as_json: Json = False) -> None:
    """The programs on disk, those that were used last first."""
    from . import cache

    found = []
    for entry in cache.files():
        with contextlib.suppress(OSError):
            status = entry.stat()
            used = datetime.fromtimestamp(status.st_mtime).isoformat(" ", "seconds")
            found.append({"name": entry.name, "bytes": status.st_size, "used": used})
    found.sort(key=lambda e: e["used"], reverse=True)
    if as_json:
        typer.echo(json.dumps(found, indent=1))
    else:
        typer.echo("\n".join(f"{e['used']}  {e['bytes']:>12,}  {e['name']}" for e in found) or "no programs")


@cache_app.command("size")
def size_of_cache(as_json: Json = False) -> None:
    """How many programs there are, and their bytes."""
    _print(_cache(), as_json)


@cache_app.command("clear")
def clear_cache(as_json: Json = False) -> None:
    """Delete all programs on disk."""
    from . import cache

    _print({"deleted": cache.clear(), "folder": str(cache.folder() or "")}, as_json)


@cache_app.command("warm", context_settings=_PASSED_ON)
def warm(script: Script, arguments: Arguments = None, as_json: Json = False) -> None:
    """Run a script, so that the programs it needs are on disk for the next process."""
    import torch

    from .aot.check import run

    if not Path(script).is_file():
        _fail(f"{script} is no file")
    entries, began = _cache()["programs"], time.perf_counter()
    with _script_prints_to(sys.stderr if as_json else sys.stdout):
        failure = run(script, arguments or [])
    stats = torch.tpu.cache_stats()
    done = {
        "compiled": stats["compiles"],
        "found": stats["disk_hits"],
        "added": _cache()["programs"] - entries,
        "seconds": round(time.perf_counter() - began, 1),
        "error": "" if failure is None else f"{type(failure).__name__}: {failure}",
    }
    _print(done, as_json)
    raise typer.Exit(0 if failure is None else 1)


def _info() -> dict[str, Any]:
    import torch

    from . import _C, __version__, runtime

    devices = {}
    if torch.tpu.is_available():
        devices = {f"tpu:{i}": torch.tpu.get_device_name(i) for i in range(torch.tpu.device_count())}
    return {
        "torch-tpu": __version__,
        **{name: _version(name) for name in ("torch", "jax", "jaxlib", "libtpu")},
        "python": sys.version.split()[0],
        "plugin": runtime.plugin_path() if devices else "none",
        "pjrt": ".".join(map(str, _C.pjrt_api_version())) if devices else "",
        "stablehlo": _C.stablehlo_version() if devices else "",
        "tpu attached": runtime.tpu_attached(),
        "devices": devices,
        "device memory": runtime.total_memory(),
        "cache": _cache(),
    }


def _cache() -> dict[str, Any]:
    from . import cache

    count, bytes_ = cache.size()
    return {"folder": str(cache.folder() or ""), "programs": count, "bytes": bytes_, "limit": cache.max_bytes()}


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _print(values: dict[str, Any], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(values, indent=1))
        return
    width = max(map(len, values))
    for name, value in values.items():
        lines = [f"{k}: {v}" for k, v in value.items()] if isinstance(value, dict) else [str(value)]
        typer.echo("\n".join(f"{name if i == 0 else '':<{width}}  {line}" for i, line in enumerate(lines or [""])))


def _progress(items: Sequence[Any]) -> Iterable[Any]:
    return track(items, "compiling for the chip", console=Console(stderr=True), transient=True)


@contextlib.contextmanager
def _script_prints_to(stream: Any) -> Iterator[None]:
    with contextlib.redirect_stdout(stream):
        yield


def _fail(message: str) -> None:
    typer.echo(f"torch-tpu: {message}", err=True)
    raise typer.Exit(2)
