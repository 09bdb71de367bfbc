"""Peak memory bandwidth of a device: the driver's own figures first, then the table, then a measurement.

Both the theoretical peak and what a plain read achieves are kept; they are never mixed.
"""

from __future__ import annotations

from sits.telemetry.samples import Peak
from sits.traffic.cards import find_card

TABLE_TOLERANCE = 0.03


def resolve_peak(
    name: str, driver_gbps: float | None = None, driver_source: str = "driver", measured_gbps: float | None = None
) -> Peak:
    """Put the three sources together. ``name`` is the device name as the driver reports it.

    A driver figure that differs from the table by more than 3% carries a warning: one of them is wrong (a table
    that rotted, or a clock whose transfers per cycle are not 2).
    """
    card = find_card(name)
    warning = None
    if driver_gbps is not None and driver_gbps > 0:
        theoretical: float | None = driver_gbps
        source = driver_source
        if card is not None and abs(driver_gbps / card.bandwidth_gbps - 1) > TABLE_TOLERANCE:
            warning = (
                f"{driver_source} says {driver_gbps:.0f} GB/s, the table's {card.name} has "
                f"{card.bandwidth_gbps:.0f}: check which is right before trusting MABU"
            )
    elif card is not None:
        theoretical, source = card.bandwidth_gbps, f"table:{card.name}"
        warning = card.uncertain
    elif measured_gbps is not None:
        theoretical, source = None, "measured"
    else:
        theoretical, source = None, "none"
    if measured_gbps is not None:
        achievable, achievable_source = measured_gbps, "measured"
    elif card is not None and card.read_gbps is not None:
        achievable, achievable_source = card.read_gbps, f"table:{card.name}"
    else:
        achievable, achievable_source = None, "none"
    return Peak(theoretical, source, achievable, achievable_source, warning)
