"""``sits-validate``: the gate. Exit 0 pass, 1 critical, 2 warnings only, 3 could not judge.

Click exits with 2 on a usage error and Python with 1 on a crash; both would read as a verdict. Here they are 3.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sits import __version__
from sits.errors import InputError, SitsError

if TYPE_CHECKING:
    from sits.validate.report import Report

UNJUDGED = 3
FORMATS = ("text", "json", "junit", "sarif", "codequality", "markdown", "github")


class _Command(click.Command):
    """Remembers the order of --format and --output, so that each pair belongs together."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        _, _, order = self.make_parser(ctx).parse_args(args=list(args))
        ctx.meta["order"] = [param.name for param in order if param.name in ("formats", "outputs")]
        return super().parse_args(ctx, args)


@click.command(
    cls=_Command,
    name="sits-validate",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="Exit code: 0 all pass, 1 a critical rule is violated, 2 only warnings, 3 could not judge "
    "(wrong usage or configuration, unreadable result, no data for a critical rule).",
)
@click.option("-c", "--config", "config_path", metavar="FILE", help="Configuration; default .sits/config.yaml.")
@click.option("--profile", metavar="NAME", help="Profile of the configuration; default $SITS_PROFILE.")
@click.option(
    "-r", "--result", "results", multiple=True, metavar="FILE", help="Result (file or folder) to judge. Repeatable."
)
@click.option("--run", is_flag=True, help="Run the benchmark of the configuration first, then judge its result.")
@click.option(
    "-b", "--baseline", "baselines", multiple=True, metavar="FILE", help="Result to compare with. Repeatable."
)
@click.option(
    "-f",
    "--report-format",
    "--format",
    "formats",
    multiple=True,
    type=click.Choice(FORMATS),
    help="Report format. Repeatable, each followed by its --output; one may go to standard output.",
)
@click.option("-o", "--output", "outputs", multiple=True, metavar="FILE", help="Where the format before it goes.")
@click.option(
    "--fail-on",
    type=click.Choice(["critical", "warn", "never"]),
    default="critical",
    show_default=True,
    help="warn: warnings exit 1. never: violations exit 0 (3 stays 3).",
)
@click.option("--check-config", is_flag=True, help="Only check the configuration: 0 good, 3 not.")
@click.option("--explain", metavar="RULE", help="Explain a rule (id or name).")
@click.option("--list-rules", is_flag=True, help="List all rules.")
@click.option("--list-presets", is_flag=True, help="List all presets.")
@click.option("--init", is_flag=True, help="Write a commented configuration for the result given or found.")
@click.option("--schema", is_flag=True, help="Print the JSON Schema of the configuration.")
@click.version_option(__version__, prog_name="sits-validate")
@click.argument("files", nargs=-1, metavar="[CONFIG]...")
@click.pass_context
def command(ctx: click.Context, **options: Any) -> int:
    """Judge benchmark results by the rules of a configuration: the gate between build and deploy.

    CONFIG files may be named with --check-config (as pre-commit does).
    """
    files: tuple[str, ...] = options.pop("files")
    if options["explain"] is not None or options["list_rules"] or options["list_presets"] or options["schema"]:
        from sits.validate import explain

        if options["explain"] is not None:
            click.echo(explain.explain(options["explain"]), nl=False)
        elif options["schema"]:
            click.echo(explain.schema_text(), nl=False)
        else:
            click.echo(explain.list_rules() if options["list_rules"] else explain.list_presets(), nl=False)
        return 0
    if options["check_config"]:
        return _check_config(
            [*files, *([options["config_path"]] if options["config_path"] else [])], options["profile"]
        )
    if files:
        raise click.UsageError(f"unexpected argument '{files[0]}'. Results are given with --result {files[0]}")
    if options["init"]:
        from sits.validate.init import write_initial

        path = write_initial(Path(options["config_path"] or _default()), [Path(p) for p in options["results"]])
        click.echo(path, nl=False)
        return 0
    targets = pair_outputs(ctx.meta["order"], options["formats"], options["outputs"])
    return _validate(options, targets)


def _default() -> str:
    return ".sits/config.yaml"


def pair_outputs(
    order: Sequence[str], formats: Sequence[str], outputs: Sequence[str]
) -> list[tuple[str, str | None]]:
    """``(format, file or None for standard output)``. An output belongs to the format right before it; alone, its
    ending names the format. Raises ``UsageError`` when two reports would share standard output or a file."""
    from sits.validate.writers import format_for

    names, paths = iter(formats), iter(outputs)
    pairs: list[tuple[str, str | None]] = []
    loose: list[str] = []
    for kind in order:
        if kind == "formats":
            pairs.append((next(names), None))
            continue
        path = next(paths)
        if pairs and pairs[-1][1] is None:
            pairs[-1] = (pairs[-1][0], path)
        else:
            loose.append(path)
    for path in loose:  # an output before its format, or on its own
        named = format_for(path)
        waiting = [index for index, (name, target) in enumerate(pairs) if target is None and named in (None, name)]
        if len(waiting) == 1:
            pairs[waiting[0]] = (pairs[waiting[0]][0], path)
            continue
        if named is None:
            raise click.UsageError(f"no format for --output {path}: put --format before it")
        pairs.append((named, path))
    pairs = [(name, None if path == "-" else path) for name, path in pairs]
    if sum(path is None for _, path in pairs) > 1:
        raise click.UsageError("only one report can go to standard output: give the others an --output each")
    files = [str(Path(path).absolute()) for _, path in pairs if path is not None]
    if len(set(files)) < len(files):
        raise click.UsageError("two reports go to the same --output")
    return pairs


def _validate(options: dict[str, Any], targets: list[tuple[str, str | None]]) -> int:
    """Run the validation and write every report, also when it could not judge."""
    report = guarded(lambda: _judge(options), options["config_path"] or _default())
    return deliver(report, targets)


def guarded(work: Callable[[], Report], config: str) -> Report:
    """The report of ``work``; whatever goes wrong becomes a report that says so."""
    from sits.validate.report import Report, problems_of, relative
    from sits.validate.source import Mark, Problem

    try:
        return work()
    except SitsError as error:
        return Report(config=relative(config), problems=problems_of(error, config))
    except MemoryError:
        problem = Problem("not enough memory to read the result", Mark(config), "Judge fewer results at once")
        return Report(config=relative(config), problems=[problem])
    except Exception as error:
        problem = Problem(
            f"internal error: {type(error).__name__}: {error}", Mark(config), "Please report it with the files used"
        )
        return Report(config=relative(config), problems=[problem])


def _judge(options: dict[str, Any]) -> Report:
    from sits.validate.config import load_config
    from sits.validate.evaluate import evaluate, load_context
    from sits.validate.report import report_of

    config = load_config(Path(options["config_path"] or _default()), options["profile"])
    results = [Path(path) for path in options["results"]]
    if options["run"]:
        if results:
            raise InputError("--run and --result exclude each other", "--run judges the result it makes")
        from sits.cli.validate_run import run_benchmark

        results = [run_benchmark(config)]
    context = load_context(config, results, [Path(path) for path in options["baselines"]])
    return report_of(context, evaluate(context, options["fail_on"]))


def deliver(report: Report, targets: list[tuple[str, str | None]]) -> int:
    """Write the report in every format. Standard output carries a report only; the verdict also goes to stderr when
    standard output is taken by a machine's format."""
    from sits.validate.files import write_atomic
    from sits.validate.writers import writer

    exit_code = report.exit_code
    on_stdout = next((name for name, path in targets if path is None), None if targets else "text")
    texts: list[tuple[str, str | None]] = []
    for name, path in targets or [("text", None)]:
        try:
            texts.append((writer(name)(report), path))
        except Exception as error:
            _complain(f"the {name} report could not be made: {type(error).__name__}: {error}")
            exit_code = UNJUDGED
    for text, path in texts:
        if path is not None:
            try:
                write_atomic(Path(path), text)
            except InputError as error:
                _complain(str(error))
                exit_code = UNJUDGED
    if on_stdout not in ("text", "markdown", "github"):
        _say(writer("text")(report), err=on_stdout is not None)
    for text, path in texts:
        if path is None:
            _say(text)
    return exit_code


def _say(text: str, err: bool = False) -> None:
    """Print as UTF-8 whatever the locale: a report must not depend on LANG."""
    click.echo(text.encode("utf-8", "replace"), nl=False, err=err)


def _complain(message: str) -> None:
    click.echo(f"sits-validate: error: {message}", err=True)


def _check_config(paths: list[str], profile: str | None) -> int:
    from sits.validate.config import load_config

    failed = False
    for path in paths or [_default()]:
        try:
            config = load_config(Path(path), profile)
            click.echo(f"{path}: good, {len(config.settings)} rules")
        except SitsError as error:
            failed = True
            click.echo(str(error), err=True)
    return UNJUDGED if failed else 0


def run(arguments: Sequence[str]) -> int:
    """The whole command as a function: arguments to exit code."""
    try:
        code = command.main(args=list(arguments), prog_name="sits-validate", standalone_mode=False)
        return int(code or 0)
    except click.exceptions.Exit as stop:
        return int(stop.exit_code) and UNJUDGED
    except click.ClickException as error:
        _complain(f"{error.format_message()}\nTry: sits-validate --help")
        return UNJUDGED
    except (click.Abort, KeyboardInterrupt):
        _complain("interrupted")
        return 130
    except SitsError as error:
        _complain(str(error))
        return UNJUDGED
    except BrokenPipeError:
        # The reader of standard output went away; nothing was judged as far as it can tell.
        sys.stderr.close()
        return UNJUDGED
    except Exception as error:
        _complain(f"internal error: {type(error).__name__}: {error}")
        return UNJUDGED


def main() -> None:
    """Entry point."""
    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
