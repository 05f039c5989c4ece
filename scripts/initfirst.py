"""Marks a shared library as the one whose constructors run first, as `ld -z initfirst` does.

zig's linker, which builds the wheel for old versions of glibc, does not take that option.

    initfirst.py LIBRARY             marks it
    initfirst.py --check LIBRARY     ends with 1 unless it is marked
"""

import struct
import sys
from pathlib import Path

_DYNAMIC = 2  # PT_DYNAMIC
_FLAGS_1 = 0x6FFFFFFB  # DT_FLAGS_1
_FIRST = 0x20  # DF_1_INITFIRST


def _place_of_flags(library: bytes | bytearray) -> int:
    """Where the value of the library's DT_FLAGS_1 is. `ValueError` if it has none."""
    if library[:6] != b"\x7fELF\x02\x01":
        raise ValueError("is no ELF file of 64 bits, little-endian")
    (headers,) = struct.unpack_from("<Q", library, 32)
    size, count = struct.unpack_from("<HH", library, 54)
    for number in range(count):
        kind, _, offset, _, _, length = struct.unpack_from("<IIQQQQ", library, headers + number * size)
        if kind != _DYNAMIC:
            continue
        for at in range(offset, offset + length, 16):
            if struct.unpack_from("<Q", library, at)[0] == _FLAGS_1:
                return at + 8
    raise ValueError("has no DT_FLAGS_1 (link it with -z now)")


def is_first(path: Path) -> bool:
    """Whether the library is marked."""
    library = path.read_bytes()
    return bool(struct.unpack_from("<Q", library, _place_of_flags(library))[0] & _FIRST)


def make_first(path: Path) -> None:
    """Marks the library, unless it is."""
    library = bytearray(path.read_bytes())
    at = _place_of_flags(library)
    (flags,) = struct.unpack_from("<Q", library, at)
    struct.pack_into("<Q", library, at, flags | _FIRST)
    path.write_bytes(library)


def main(words: list[str]) -> int:
    checks, path = words[0] == "--check", Path(words[-1])
    try:
        if checks and not is_first(path):
            raise ValueError("its constructors do not run first")
        if not checks:
            make_first(path)
    except (ValueError, struct.error) as error:
        print(f"{path}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
