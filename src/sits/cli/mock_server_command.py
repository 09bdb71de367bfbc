"""``sits mock-server``: try the benchmark, or test a client, without a model."""

from __future__ import annotations

import click

_EPILOG = """\b
Examples:
  sits mock-server --ttft 40 --itl 8
  sits bench --endpoint http://127.0.0.1:8100 --served-model mock
  sits bench --endpoint http://127.0.0.1:8100 --served-model mock:crlf,ttft=20,itl=5
A model name or the request header x-mock changes one answer: MODE and ttft=, itl=, tokens=, fault_rate=.
"""


@click.command("mock-server", epilog=_EPILOG)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on; :: for IPv6.")
@click.option("--port", default=8100, show_default=True, type=click.IntRange(0, 65535), help="0 picks a free one.")
@click.option("--ttft", default=20.0, show_default=True, type=click.FloatRange(0), help="Time to first token, ms.")
@click.option("--itl", default=5.0, show_default=True, type=click.FloatRange(0), help="Time between tokens, ms.")
@click.option("--tokens", default=0, type=click.IntRange(0), help="Tokens per answer; 0: what the request asks for.")
@click.option("--mode", default="normal", show_default=True, help="Fault or stream form; see --list-modes.")
@click.option("--fault-rate", default=1.0, type=click.FloatRange(0, 1), help="Share of answers that get --mode.")
@click.option("--slots", default=0, type=click.IntRange(0), help="Answers at once; more queue up. 0: no limit.")
@click.option("--model", "models", multiple=True, help="Model names to list (default: mock). May be repeated.")
@click.option("--api-key", help="Demand this bearer token.")
@click.option(
    "--metrics", default="vllm", type=click.Choice(["vllm", "sglang", "tgi", "sits"]), help="/metrics names."
)
@click.option(
    "--keep-alive-requests", default=0, type=click.IntRange(0), help="Close after so many answers. 0: never."
)
@click.option(
    "--tls-cert", type=click.Path(exists=True, dir_okay=False), help="Serve https with this PEM certificate."
)
@click.option("--tls-key", type=click.Path(exists=True, dir_okay=False), help="Its private key, if in another file.")
@click.option("--list-modes", is_flag=True, help="Print every mode and leave.")
def command(
    host: str,
    port: int,
    ttft: float,
    itl: float,
    tokens: int,
    mode: str,
    fault_rate: float,
    slots: int,
    models: tuple[str, ...],
    api_key: str | None,
    metrics: str,
    keep_alive_requests: int,
    tls_cert: str | None,
    tls_key: str | None,
    list_modes: bool,
) -> int:
    """An OpenAI-compatible endpoint with scripted timing and faults: chat, completions, responses, /metrics."""
    from sits.bench.mock.script import MODES, Script

    if list_modes:
        width = max(map(len, MODES))
        for name, text in MODES.items():
            click.echo(f"{name:<{width}}  {text}")
        return 0
    from sits.bench.mock.process import run_event_loop, serve
    from sits.bench.mock.server import MockSettings

    script = Script().override(f"{mode},ttft={ttft},itl={itl},tokens={tokens},fault_rate={fault_rate}")
    settings = MockSettings(
        script=script,
        models=models or ("mock",),
        slots=slots,
        api_key=api_key,
        metrics_flavor=metrics,
        keep_alive_requests=keep_alive_requests,
    )
    scheme = "https" if tls_cert else "http"

    def announce(bound: int) -> None:
        address = f"[{host}]" if ":" in host else host
        click.echo(f"mock server on {scheme}://{address}:{bound}/v1  model {settings.models[0]}  ", nl=False)
        click.echo(f"mode {script.mode}  TTFT {ttft:g} ms  ITL {itl:g} ms  (Ctrl-C ends it)")

    try:
        run_event_loop(serve(settings, host, port, _tls(tls_cert, tls_key), announce))
    except KeyboardInterrupt:
        click.echo("")
    return 0


def _tls(certificate: str | None, key: str | None) -> object | None:
    if certificate is None:
        return None
    import ssl

    from sits.errors import InputError

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(certificate, key)
    except (ssl.SSLError, OSError) as error:
        raise InputError(f"cannot use certificate {certificate}: {error}", "PEM with its key is needed") from None
    return context
