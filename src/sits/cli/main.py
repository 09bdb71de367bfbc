"""``sits``: a group that imports a command only when it is called, so that ``sits --version`` stays fast.

To add a command: write ``src/sits/cli/<module>.py`` exposing ``command`` (a ``click.Command``) and add it here.
Exit codes: 0 done; 1 failed; 2 wrong usage or input; 3 ran, but the figures cannot be trusted; 4 the load
generator was the bottleneck; 130 interrupted.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Sequence

import click

import sits
from sits.errors import SitsError

# name on the command line -> (module under sits.cli, one line for --help)
COMMANDS: dict[str, tuple[str, str]] = {
    "bench": ("bench_command", "Measure a model on this machine or any OpenAI-compatible endpoint."),
    "report": ("report_command", "Show results of sits bench on the console or as HTML."),
    "compare": ("compare_command", "Compare results: ratio, interval and verdict of every metric."),
    "explain": ("explain_command", "Where the milliseconds of a token go, and which switch would help."),
    "serve": ("serve_command", "Serve a model behind the OpenAI API."),
    "quantize": ("quantize_command", "Write a quantised checkpoint, by a plan file if wanted."),
    "models": ("models_command", "Fetch and list models."),
    "mock-server": ("mock_server_command", "An OpenAI-compatible endpoint with scripted timing and faults."),
    "kernels": ("kernels_command", "Operator implementations here; re-measure which is fastest."),
    "ops": ("ops_command", "Dashboards, alert rules, silences, trace ids, collector lint."),
    "doctor": ("doctor_command", "What is found on this machine, what is missing, and the fix."),
}

EXIT_INTERRUPTED = 130


class LazyGroup(click.Group):
    """A group whose commands live in modules that load on first use."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for name, (module, _) in COMMANDS.items() if _exists(module)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        entry = COMMANDS.get(cmd_name)
        if entry is None or not _exists(entry[0]):
            return None
        command = importlib.import_module(f"sits.cli.{entry[0]}").command
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not args[0].startswith("-") and args[0] not in self.list_commands(ctx):
            import difflib

            near = difflib.get_close_matches(args[0], self.list_commands(ctx), n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise click.UsageError(f"no command {args[0]!r}.{hint} Commands: {', '.join(self.list_commands(ctx))}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        # The help lines come from the table: printing them must not import every command.
        if rows := [(name, COMMANDS[name][1]) for name in self.list_commands(ctx)]:
            with formatter.section("Commands"):
                formatter.write_dl(rows)


def _exists(module: str) -> bool:
    return importlib.util.find_spec(f"sits.cli.{module}") is not None


_EPILOG = "The gate for CI is a command of its own: sits-validate (see sits-validate --help)."


@click.group(
    cls=LazyGroup,
    epilog=_EPILOG,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(sits.__version__, "-V", "--version", prog_name="sits", message="%(prog)s %(version)s")
def cli() -> None:
    """Measure, explain, accelerate and gate LLM inference."""


def run(command: click.Command, prog_name: str, arguments: Sequence[str] | None = None) -> int:
    """Run a command and turn whatever ends it into an exit code and one readable line on stderr."""
    try:
        outcome = command.main(args=arguments, prog_name=prog_name, standalone_mode=False)
    except SitsError as error:
        click.echo(f"error: {error}", err=True)
        return error.exit_code
    except click.ClickException as error:
        usage = isinstance(error, click.UsageError)
        if usage and getattr(error, "ctx", None) is not None:
            path = error.ctx.command_path  # type: ignore[attr-defined]
            click.echo(f"error: {error.format_message()} (see {path} --help)", err=True)
        else:
            click.echo(f"error: {error.format_message()}", err=True)
        return 2
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader of a pipe went away (``| head``): nothing to report, and nothing more may be written.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        if os.environ.get("SITS_DEBUG"):
            raise
        click.echo(f"error: internal: {type(error).__name__}: {error}", err=True)
        click.echo("This is a fault of SITS. Run again with SITS_DEBUG=1 for the traceback and report it.", err=True)
        return 1
    return outcome if isinstance(outcome, int) else 0


def main() -> None:
    """Entry point of the console script."""
    sys.exit(run(cli, "sits"))


if __name__ == "__main__":
    main()
