"""What an endpoint says of itself, and what it accepts: found out with a few tiny requests before a run."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from sits.bench.client import RequestSpec, TargetInfo
from sits.bench.http.address import API_PATHS
from sits.bench.http.answer import Answer, error_text
from sits.bench.http.connection import Failure
from sits.bench.http.prompts import WordText, fit
from sits.bench.http.transport import Transport
from sits.errors import InputError, SitsError, UntrustedResultError

if TYPE_CHECKING:
    from sits.bench.http.client import HttpClient

_SHORT_WORDS, _LONG_WORDS = 32, 256
_PATIENCE_S = 60.0
_PAUSES_S = (0.1, 0.3, 1.0)
_PASSING = {"stream_error", "closed_midstream", "truncated", "no_tokens"}
_RETRIED = "the server failed some of the probe's requests"
_HINTS = {
    "connect": "Is the server running, and is the port right?",
    "dns": "Check the spelling of the host",
    "tls": "Use http:// if the server has no TLS; a private CA needs `ca_file` or `verify_tls: false` in a scenario",
    "proxy": "Check http_proxy/https_proxy, or add the host to no_proxy",
    "timeout_connect": "Is a firewall in between?",
    "protocol": "Does something else than an HTTP server listen there? For a TLS port write https://",
    "closed": "Does something else than an HTTP server listen there? For a TLS port write https://",
    "not_api": "Give the API's base URL, usually ending in /v1",
    "redirect": "Give the URL it redirects to",
    "no_tokens": "The model answered with nothing; is it a generation model?",
}


async def probe_endpoint(client: HttpClient, transport: Transport) -> TargetInfo:
    """Ask for the models, then send one tiny request, adapting to rejected fields. Raises ``InputError``."""
    options, endpoint, style = client.options, client.endpoint, client.style
    try:
        listing = await client.get_json(endpoint.at("/models"))
    except Failure as failure:
        raise unusable(failure, str(endpoint.base)) from None
    models = _models(listing)
    if not style.model:
        if not models:
            raise InputError(
                f"{endpoint.at('/models')} lists no model",
                "Is the base URL right (most end in /v1)? If so, name the model with --served-model",
            )
        style.model = str(models[0]["id"])
        if len(models) > 1:
            client.notes.append(f"{len(models)} models are served; the first, {style.model}, is measured")
    info = TargetInfo("endpoint", style.model)
    entry = next((row for row in models if row.get("id") == style.model), {})
    limit = entry.get("max_model_len") or entry.get("context_length")
    info.max_context = limit if isinstance(limit, int) and limit > 0 else None
    info.card = {"served_model": style.model, "api": client.api, "url": str(client.url)}
    if models and not entry:
        known = ", ".join(str(row.get("id")) for row in models[:5])
        client.notes.append(f"the server does not list {style.model!r} (it lists {known})")
    transport.redirected_to = None  # the list of models may lie elsewhere; what counts is where requests go
    await _learn_style(client, transport)
    if style.dropped & {"ignore_eos"}:
        client.notes.append("output lengths are the server's choice, not the workload's")
    if transport.redirected_to is not None:
        client.notes.append(
            f"every request is redirected to {transport.redirected_to}, which costs a round trip: give that URL"
        )
    if options.pool.proxy != "none" and transport.pool.through_proxy(client.url.origin):
        client.notes.append("requests go through an HTTP proxy; its latency is part of every figure")
    return info


async def _learn_style(client: HttpClient, transport: Transport) -> None:
    request = RequestSpec("probe", max_tokens=4, prompt=WordText()(_SHORT_WORDS, 1), seed=0)
    for _ in range(8):
        answer = await _ask(client, transport, request)
        text = error_text(answer.document) if answer.status != 200 else ""
        if answer.status == 200:
            if not answer.streamed:
                client.notes.append("the server does not stream: TTFT is the whole latency and there is no ITL")
            if answer.log.counts.output is None:
                client.notes.append("the server reports no usage: tokens are counted as chunks")
            await _learn_prompt_length(client, transport, answer.log.counts.prompt)
            return
        if answer.status in (400, 422) and client.style.adapt(text):
            continue
        raise _rejected(client, answer.status, text)
    raise InputError(
        f"{client.url} rejects every form of request that was tried", "See `sits bench --help` for --api"
    )


async def _ask(client: HttpClient, transport: Transport, request: RequestSpec) -> Answer:
    """One small request; what may pass (overload, a broken answer) is tried again before giving up."""
    limit = client.options.first_token_timeout_s
    patience = _PATIENCE_S if limit is None else min(limit, _PATIENCE_S)
    for pause in (*_PAUSES_S, None):
        body = client.style.encode(request)
        try:
            answer = await asyncio.wait_for(transport.exchange("POST", client.url, body, client.api), patience)
        except Failure as failure:
            if failure.kind not in _PASSING or pause is None:
                raise unusable(failure, str(client.url)) from None
        except TimeoutError:
            late = Failure("timeout_first_token", f"no answer to a tiny request within {patience:g} s")
            raise unusable(late, str(client.url)) from None
        else:
            if answer.status not in (429, 500, 502, 503, 504) or pause is None:
                return answer
        if _RETRIED not in client.notes:
            client.notes.append(_RETRIED)
        await asyncio.sleep(pause)
    raise AssertionError("unreachable")


async def _learn_prompt_length(client: HttpClient, transport: Transport, short: int | None) -> None:
    """A second, longer probe: from the two usages follow the template's tokens and the tokens of a word."""
    if short is not None:
        request = RequestSpec("probe", max_tokens=1, prompt=WordText()(_LONG_WORDS, 2), seed=0)
        answer = await _ask(client, transport, request)
        long = answer.log.counts.prompt
        maker = fit([(_SHORT_WORDS, short), (_LONG_WORDS, long)]) if answer.status == 200 and long else None
        if maker is not None:
            client.text = maker
            return
    client.notes.append("prompt lengths are estimates: the server's usage could not calibrate them")


def unusable(failure: Failure, where: str) -> SitsError:
    """A failure of the probe as an error the user can act on."""
    text, hint = f"{where} cannot be measured: {failure.message}", _HINTS.get(failure.kind)
    # A server that answers, but with nothing to measure, is no mistake of the user's.
    broken = failure.kind in _PASSING or failure.kind.startswith("timeout_first")
    return UntrustedResultError(text, hint or "Look at the server's log") if broken else InputError(text, hint)


def _rejected(client: HttpClient, status: int, text: str) -> SitsError:
    detail = f": {text}" if text else ""
    if status in (401, 403):
        hint = "Give the name of the variable that holds the key with --api-key-env"
    elif status in (404, 405):
        others = ", ".join(name for name in API_PATHS if name != client.api)
        hint = f"Check the base URL and the model name; other APIs: {others} (--api)"
    elif status >= 500 or status == 429:
        hint = "The server answers, but not with tokens; look at its log"
        return UntrustedResultError(f"{client.url} answered HTTP {status}{detail}", hint)
    else:
        hint = "Check --served-model and the request fields of the scenario"
    return InputError(f"{client.url} answered HTTP {status}{detail}", hint)


def _models(listing: Any) -> list[dict[str, Any]]:
    rows = listing.get("data") if isinstance(listing, dict) else listing
    if not isinstance(rows, list):
        return []
    return [row for row in rows if isinstance(row, dict) and row.get("id")]
