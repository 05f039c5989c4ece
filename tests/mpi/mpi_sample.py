"""The frames of these tests."""

FRAMES = 60


def frame_bytes(number):
    """Of a length of its own."""
    return bytes((number * 37 + at) % 253 for at in range(100)) * (1 + number % 11 * 60)
