"""Links between regions, in the words of a command line."""

from __future__ import annotations

import re
from typing import Final

from lagom_jax.cluster.hardware import Link
from lagom_jax.errors import ClusterError

_RATES: Final = {"kbps": 1e3, "mbps": 1e6, "gbps": 1e9, "tbps": 1e12}
_TIMES: Final = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
_FORM: Final = re.compile(
    r"(\d+(?:\.\d+)?)(kbps|mbps|gbps|tbps)(?:,(\d+(?:\.\d+)?)(us|ms|s))?", re.IGNORECASE
)


def parse_wan(text: str) -> Link:
    """The link between regions that `text` describes.

    Args:
        text: Bandwidth in bits per second, and latency from one end to the other:
            `10gbps,80ms`. Without a latency there is none.

    Returns:
        A link of the kind `wan`; its bandwidth is that of a whole region.

    Raises:
        ClusterError: The text has another form, or the bandwidth is 0.

    Example:
        >>> link = parse_wan("10gbps,80ms")
        >>> link.bytes_per_s, link.latency_s
        (1250000000.0, 0.08)
    """
    words = text.strip().lower()
    match = _FORM.fullmatch(words)
    if not match or float(match[1]) == 0:
        raise ClusterError(
            f"{text!r} is no link between regions: write bandwidth and latency, such "
            "as 10gbps,80ms"
        )
    latency = float(match[3]) * _TIMES[match[4]] if match[3] else 0.0
    return Link(
        name=words,
        title=f"WAN, {words}",
        kind="wan",
        bytes_per_s=float(match[1]) * _RATES[match[2]] / 8,
        latency_s=latency,
        sources={"bytes_per_s": "given by the user", "latency_s": "given by the user"},
    )
