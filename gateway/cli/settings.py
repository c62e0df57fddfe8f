"""`kvgate settings`: every setting with its default, what holds now, and where that comes from."""

import json
from dataclasses import asdict
from typing import Annotated

import typer

from gateway.cli.flags import AdminPortFlag, BackendsFlag, PortFlag, given_flags, settings_or_exit


def settings(
    backends: BackendsFlag = None,
    port: PortFlag = None,
    admin_port: AdminPortFlag = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON list instead of a table.")] = False,
) -> None:
    """Print every setting with its default, its present value and where that comes from. Secrets are masked."""
    flags = given_flags(backends=backends, port=port, admin_port=admin_port)
    present = settings_or_exit(flags)
    from gateway.setting_checks import describe

    rows = [asdict(row) for row in describe(present, flags)]
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
        return
    columns = ("name", "value", "default", "origin", "meaning")
    widths = {column: max(len(column), *(len(row[column] or "-") for row in rows)) for column in columns[:-1]}
    for row in [dict(zip(columns, columns, strict=True)), *rows]:
        cells = [f"{row[column] or '-':{widths[column]}}" for column in columns[:-1]]
        typer.echo("  ".join([*cells, row["meaning"]]))
