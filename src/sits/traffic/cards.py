"""What the vendors promise: memory bandwidth, dense math rates and links of the cards SITS predicts for.

Figures are *theoretical dense* peaks (no 2:4 sparsity). ``read_gbps`` is the best plain read we measured, where we
did. Every entry names its source. Tables rot: :mod:`sits.telemetry.peak` checks the driver's own figure against
this table and warns above 3%.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field

from sits.errors import InputError


@dataclass(frozen=True, slots=True)
class HardwareCard:
    """One device. Rates in GB/s and TFLOP/s (dense), sizes in GB (1e9 bytes) and MB.

    ``link_gbps`` is the one-direction bandwidth to the peers of one host (all links together) and
    ``link_latency_us`` the time one collective takes when it carries almost nothing. ``host_gbps`` is the
    one-direction host link: what reading KV from host memory would run at.
    """

    name: str
    vendor: str
    memory_gb: float
    bandwidth_gbps: float
    tflops: dict[str, float]  # by math type: bf16, fp8, int8, fp32
    source: str
    aliases: tuple[str, ...] = ()
    read_gbps: float | None = None  # measured
    l2_mb: float = 0.0
    link_gbps: float = 0.0
    link_latency_us: float = 10.0
    host_gbps: float = 0.0
    capped_by_power_w: float | None = None
    uncertain: str | None = None  # why the figures of this entry are not settled
    memory_clock_multiplier: int = 2  # transfers per reported clock: HBM3 on MI300 needs 4
    notes: tuple[str, ...] = field(default=())

    def math_rate(self, math: str) -> float:
        """Dense FLOP/s of a math type; a type the card lacks runs at the bf16 (else fp32) rate."""
        for name in (math, "bf16", "fp32"):
            if name in self.tflops:
                return self.tflops[name] * 1e12
        raise InputError(f"card {self.name} has no math rate")

    @property
    def achievable_gbps(self) -> float:
        """Measured read peak, else 0.9 of theoretical (an H200: 0.97 with the best kernel, 0.90 with a sum)."""
        return self.read_gbps if self.read_gbps is not None else 0.9 * self.bandwidth_gbps

    def with_bandwidth(self, theoretical: float | None = None, read: float | None = None) -> HardwareCard:
        """The same card with figures from this machine in place of the table's."""
        return dataclasses.replace(
            self,
            bandwidth_gbps=theoretical or self.bandwidth_gbps,
            read_gbps=read if read is not None else self.read_gbps,
        )


_HOPPER = {"bf16": 989.5, "fp8": 1979.0, "int8": 1979.0, "fp32": 67.0}

# Sources by line: vendor data sheets unless said otherwise; bus x clock where the driver's figures are known.
CARDS: tuple[HardwareCard, ...] = (
    # 6016 bit x 3201 MHz x 2, read from the driver; rates: NVIDIA H200 data sheet. Read peak: the best of the
    # `read_peak_gbps` in benchmarks/results (a kernel that only reads 4 GiB); PyTorch's sum reaches 4.3 TB/s.
    HardwareCard(
        "H200", "nvidia", 141, 4814, _HOPPER, "driver 6016 bit x 3201 MHz x 2; NVIDIA H200 data sheet",
        ("h200-sxm", "nvidia h200"), read_gbps=4647, l2_mb=50, link_gbps=450, host_gbps=64,
    ),
    # 5120 bit x 2619 MHz x 2; NVIDIA H100 data sheet (SXM5).
    HardwareCard(
        "H100", "nvidia", 80, 3352, _HOPPER, "5120 bit x 2619 MHz x 2; NVIDIA H100 data sheet",
        ("h100-sxm", "nvidia h100 80gb hbm3"), l2_mb=50, link_gbps=450, host_gbps=64,
    ),
    # NVIDIA H100 data sheet (PCIe): 2 TB/s, 756 / 1513 TFLOP/s dense.
    HardwareCard(
        "H100-PCIe", "nvidia", 80, 2039, {"bf16": 756, "fp8": 1513, "int8": 1513, "fp32": 51},
        "NVIDIA H100 PCIe data sheet", ("nvidia h100 pcie",),
        l2_mb=50, link_gbps=64, link_latency_us=25, host_gbps=64,
    ),
    # 7680 bit x 3996 MHz x 2 as drivers report it (the data sheet rounds to 8 TB/s); NVIDIA B200 data sheet.
    HardwareCard(
        "B200", "nvidia", 180, 7672, {"bf16": 2250, "fp8": 4500, "int8": 4500, "fp32": 75},
        "7680 bit x 3996 MHz x 2; NVIDIA B200 data sheet", ("nvidia b200",), l2_mb=126, link_gbps=900, host_gbps=64,
    ),
    # 5120 bit x 1593 MHz x 2; NVIDIA A100 data sheet. No fp8 units: fp8 weights run at the bf16 rate.
    HardwareCard(
        "A100", "nvidia", 80, 2039, {"bf16": 312, "int8": 624, "fp32": 19.5},
        "5120 bit x 1593 MHz x 2; NVIDIA A100 80GB data sheet", ("a100-80gb", "nvidia a100-sxm4-80gb"),
        l2_mb=40, link_gbps=300, host_gbps=32,
    ),
    HardwareCard(
        "A100-40GB", "nvidia", 40, 1555, {"bf16": 312, "int8": 624, "fp32": 19.5},
        "5120 bit x 1215 MHz x 2; NVIDIA A100 40GB data sheet", ("nvidia a100-sxm4-40gb",),
        l2_mb=40, link_gbps=300, host_gbps=32,
    ),
    # NVIDIA L40S data sheet: 362 / 733 TFLOP/s dense, 864 GB/s, PCIe Gen4 x16, no NVLink.
    HardwareCard(
        "L40S", "nvidia", 48, 864, {"bf16": 362, "fp8": 733, "int8": 733, "fp32": 91.6},
        "384 bit x 9001 MHz x 2; NVIDIA L40S data sheet", ("nvidia l40s",),
        l2_mb=96, link_gbps=32, link_latency_us=25, host_gbps=32,
    ),
    HardwareCard(
        "L4", "nvidia", 24, 300, {"bf16": 121, "fp8": 242, "int8": 242, "fp32": 30.3},
        "192 bit x 6251 MHz x 2; NVIDIA L4 data sheet", ("nvidia l4",),
        l2_mb=48, link_gbps=32, link_latency_us=25, host_gbps=32,
    ),
    # NVIDIA Ada GPU architecture white paper: 165.2 bf16 and 330.3 fp8 with fp32 accumulation, dense.
    HardwareCard(
        "RTX4090", "nvidia", 24, 1008, {"bf16": 165.2, "fp8": 330.3, "int8": 660.6, "fp32": 82.6},
        "384 bit x 10501 MHz x 2; NVIDIA Ada white paper", ("rtx 4090", "rtx-4090", "nvidia geforce rtx 4090"),
        l2_mb=72, link_gbps=32, link_latency_us=25, host_gbps=32,
    ),
    # 8192 bit x 1300 MHz x 4 (HBM3 reports a quarter of the transfer rate); AMD Instinct MI300X data sheet.
    HardwareCard(
        "MI300X", "amd", 192, 5325, {"bf16": 1307.4, "fp8": 2614.9, "int8": 2614.9, "fp32": 163.4},
        "8192 bit x 1300 MHz x 4; AMD MI300X data sheet", ("amd instinct mi300x", "mi300x oam"),
        l2_mb=256, link_gbps=448, link_latency_us=15, host_gbps=64, memory_clock_multiplier=4,
    ),
    HardwareCard(
        "MI325X", "amd", 256, 6000, {"bf16": 1307.4, "fp8": 2614.9, "int8": 2614.9, "fp32": 163.4},
        "AMD MI325X data sheet", ("amd instinct mi325x",),
        l2_mb=256, link_gbps=448, link_latency_us=15, host_gbps=64, memory_clock_multiplier=4,
    ),
    # Public pages say 280-376 TFLOP/s and 0.4, 1.2 or 1.6 TB/s; nothing here could measure one.
    HardwareCard(
        "910B", "ascend", 64, 1200, {"bf16": 280, "int8": 560, "fp32": 70},
        "public pages, disagreeing (see docs/explain.md)", ("ascend 910b", "ascend910b", "910b3"),
        link_gbps=196, link_latency_us=25, host_gbps=32,
        uncertain="public figures disagree (0.4, 1.2 and 1.6 TB/s); measure it and give --bandwidth",
    ),
    # LPDDR4X-4267 x 32 bit; Cortex-A76 4 cores x 2.4 GHz x 16 fp32 FLOP per cycle.
    HardwareCard(
        "RaspberryPi5", "arm", 8, 17.1, {"fp32": 0.154, "bf16": 0.154, "int8": 0.6}, "LPDDR4X-4267 x 32 bit",
        ("raspberry pi 5", "rpi5"), read_gbps=9.0,
        uncertain="achievable read is about half of theoretical; nothing here could measure one",
    ),
    # A placeholder for an unknown CPU: two DDR5-4800 channels and 8 AVX-512 cores. Measure with doctor telemetry.
    HardwareCard(
        "CPU", "cpu", 32, 76.8, {"fp32": 1.0, "bf16": 1.5, "int8": 3.0}, "2 channels of DDR5-4800 (generic)",
        ("cpu", "generic-cpu"), read_gbps=50.0,
        uncertain="a generic CPU; sits doctor telemetry measures this machine's read bandwidth",
    ),
)  # fmt: skip


def _key(text: str) -> str:
    return "".join(character for character in text.lower() if character.isalnum())


def find_card(name: str) -> HardwareCard | None:
    """The card of a name as a person or a driver writes it, or None. The longest matching name wins."""
    wanted = _key(name)
    best: tuple[int, HardwareCard] | None = None
    for card in CARDS:
        for alias in (card.name, *card.aliases):
            key = _key(alias)
            if key == wanted:
                return card
            if len(key) > 3 and key in wanted and (best is None or len(key) > best[0]):
                best = (len(key), card)
    return best[1] if best else None


def get_card(name: str) -> HardwareCard:
    """Like :func:`find_card`, but an unknown name is an ``InputError`` that lists the known ones."""
    card = find_card(name)
    if card is None:
        raise InputError(
            f"no card called {name!r} in the table",
            "Known: " + ", ".join(known.name for known in CARDS),
        )
    return card
