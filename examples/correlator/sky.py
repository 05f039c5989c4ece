"""What the stations of the example see: known signals, so that every result can be checked.

In every subband each station samples one complex int8 number per time:

    x_s[t] = round( A exp(2πi ν (t - d_s)) + common[t - d_s] + own_s[t] )

a tone that is common to all, noise that is common to all, and noise of the station's own, all
delayed by d_s samples but the last. Correlating two stations must give a fringe in the tone's
channel, with the phase 2πν (d_1 - d_0). Everything repeats after PERIOD samples, so the samples of
any time are known to anybody.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np

PERIOD = 1 << 14
HEADER = struct.Struct("<4sHHQII")  # plugins/stream/src/packet.rs
END = 1


@dataclass(frozen=True)
class Sky:
    """The measures that stations and correlator agree on."""

    stations: int = 2
    subbands: int = 4
    # Samples (times) of a packet.
    packet_samples: int = 64
    # Packets of each station in a block.
    block_packets: int = 16
    # The tone is in channel `tone` of `channels`, in subband `tone_subband`.
    channels: int = 16
    tone: int = 5
    tone_subband: int = 1
    # Station s is `delay` · s samples late.
    delay: int = 3
    amplitude: float = 20.0
    noise: float = 6.0
    seed: int = 1

    def __post_init__(self):
        if PERIOD % self.channels or PERIOD % self.packet_samples:
            raise ValueError(f"channels and samples of a packet must divide {PERIOD}")
        if self.packet_bytes > 65_000:
            raise ValueError(f"packets of {self.packet_bytes} bytes are larger than a datagram")

    @property
    def packet_bytes(self) -> int:
        return self.packet_samples * self.subbands * 2

    @property
    def block_samples(self) -> int:
        return self.packet_samples * self.block_packets

    @property
    def phase(self) -> float:
        """Of the fringe between stations 0 and 1, in radians."""
        return float(np.angle(np.exp(2j * np.pi * self.tone / self.channels * self.delay)))

    def table(self, station: int) -> np.ndarray:
        """One period of a station's samples: int8 of the shape (PERIOD, subbands, 2)."""
        times = np.arange(PERIOD)
        out = np.empty((PERIOD, self.subbands, 2), np.int8)
        late = self.delay * station
        for subband in range(self.subbands):
            common = self._noise(subband, 0)
            signal = np.roll(common, late) + self._noise(subband, 1 + station)
            if subband == self.tone_subband:
                signal = signal + self.amplitude * np.exp(
                    2j * np.pi * self.tone / self.channels * (times - late)
                )
            out[:, subband, 0] = np.clip(np.rint(signal.real), -127, 127)
            out[:, subband, 1] = np.clip(np.rint(signal.imag), -127, 127)
        return out

    def _noise(self, subband: int, source: int) -> np.ndarray:
        generator = np.random.default_rng([self.seed, subband, source])
        return self.noise * (generator.standard_normal(PERIOD) + 1j * generator.standard_normal(PERIOD))


def add_options(parser):
    """The options of a Sky, for programs that must agree on it."""
    group = parser.add_argument_group("what is observed (the same for stations and correlator)")
    default = Sky()
    for name, what in {
        "stations": "stations in all",
        "subbands": "subbands of each station",
        "packet-samples": "times in a packet",
        "block-packets": "packets of each station in a block",
        "channels": "channels of a subband; the tone is in one of them",
        "tone": "the tone's channel",
        "tone-subband": "the tone's subband",
        "delay": "samples by which each station is later than the one before",
        "seed": "of the noise",
    }.items():
        value = getattr(default, name.replace("-", "_"))
        group.add_argument(f"--{name}", type=int, default=value, help=f"{what} (default {value})")


def of_options(arguments) -> Sky:
    names = [name for name in Sky.__dataclass_fields__ if hasattr(arguments, name)]
    return Sky(**{name: getattr(arguments, name) for name in names})
