"""The frames of these tests."""

FRAMES = 40
PATTERN = "frame-{n:07}.bin"


def frame_bytes(number):
    """Every frame has bytes and a length of its own; some are small enough to be packed, some are
    not."""
    return bytes((number * 31 + at) % 251 for at in range(64)) * (1 + number % 7 * 120)
