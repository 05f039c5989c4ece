"""The samples of these tests: what each holds, and their numbers, which have gaps and do not begin
at 0."""

FRAMES = 300
PATTERN = "sample-{n:05}.bin"


def content(number: int) -> bytes:
    return number.to_bytes(4, "little") * 25


def numbers() -> list[int]:
    return [7 + at + at // 10 for at in range(FRAMES)]
