"""``sits doctor telemetry``: what can be measured on this machine, and for the rest why not and what to do."""

from __future__ import annotations

import json

import click


@click.command(name="telemetry")
@click.option("--json", "as_json", is_flag=True, help="Print the table as JSON.")
@click.option("--no-measure", is_flag=True, help="Skip the measurement of this CPU's read bandwidth (about 2 s).")
@click.option("--prometheus", is_flag=True, help="Sample for one second and print the gauges as Prometheus text.")
def command(as_json: bool, no_measure: bool, prometheus: bool) -> None:
    """Show which hardware counters work here, and the exact fix for each that does not.

    Exit code 0 also when nothing is available: that is an answer, not a failure.
    """
    import time

    from sits.telemetry.discover import probe_all, usable

    probed = probe_all()
    rows = [row for _, found in probed for row in found]
    if prometheus:
        from sits.telemetry.prometheus_text import write_metrics
        from sits.telemetry.sampler import Sampler

        sampler = Sampler(usable(probed))
        sampler.start()
        time.sleep(1.2)
        sampler.stop()
        click.echo(
            write_metrics(sampler.samples(), sampler.readings(), sampler.dropped(), sampler.cpu_seconds), nl=False
        )
        return
    measured = None
    if not no_measure:
        from sits.telemetry.cpu_peak import measure_read_peak

        measured = measure_read_peak()
    peaks = {device: peak for collector, _ in probed for device, peak in collector.peaks().items()}
    if as_json:
        document = {
            "capabilities": [row.to_dict() for row in rows],
            "peaks": {
                device: {
                    "theoretical_gbps": peak.theoretical_gbps,
                    "source": peak.source,
                    "achievable_gbps": peak.achievable_gbps,
                    "achievable_source": peak.achievable_source,
                    "warning": peak.warning,
                }
                for device, peak in peaks.items()
            },
            "cpu_read_peak": measured,
        }
        click.echo(json.dumps(document, indent=1))
        return
    click.echo(_table(rows))
    for device, peak in peaks.items():
        theoretical = "unknown" if peak.theoretical_gbps is None else f"{peak.theoretical_gbps:.0f} GB/s"
        reached = "" if peak.achievable_gbps is None else f", a read reaches {peak.achievable_gbps:.0f} GB/s"
        click.echo(f"peak of {device}: {theoretical} ({peak.source}){reached} ({peak.achievable_source})")
        if peak.warning:
            click.echo(f"  note: {peak.warning}")
    if measured is not None:
        click.echo(
            f"this CPU reads {measured['best_gbps']:.1f} GB/s "
            f"(measured just now, best of read and add, {measured['threads']:.0f} threads)"
        )
    if not any(row.metric == "dram_bandwidth" and row.status != "unavailable" for row in rows):
        click.echo("No DRAM bandwidth counter is readable here: MABU shows the required ratio only.")


def _table(rows: list) -> str:  # type: ignore[type-arg]
    """Aligned text; the reason and the fix are on lines of their own, so that nothing is cut."""
    lines = [f"{'collector':<13}{'device':<22}{'metric':<16}{'status':<12}source"]
    last: tuple[str, str | None, str | None] | None = None
    for row in rows:
        device = row.device if len(row.device) <= 20 else row.device[:17] + "..."
        why = (row.collector, row.reason, row.fix)
        if last is not None and why != last:
            lines.extend(_why(last))
        lines.append(f"{row.collector:<13}{device:<22}{row.metric:<16}{row.status:<12}{row.source}")
        last = why
    if last is not None:
        lines.extend(_why(last))
    return "\n".join(lines)


def _why(entry: tuple[str, str | None, str | None]) -> list[str]:
    _, reason, fix = entry
    return ([f"    why: {reason}"] if reason else []) + ([f"    fix: {fix}"] if fix else [])
