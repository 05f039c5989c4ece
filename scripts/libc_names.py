#!/usr/bin/env python3
"""Which of libc's names are forwarded: `make check` runs it, `--table` prints what each name is.

A name is forwarded if the preload library defines it. All other names that libc exports are in one
of the classes of crates/zazen-preload/libc-names.txt, the first whose pattern fits. A name in none
of them fails: somebody has to look whether it touches files.
"""

import pathlib
import re
import struct
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
SOURCES = ROOT / "crates/zazen-preload/src"
CLASSES = ROOT / "crates/zazen-preload/libc-names.txt"
KINDS = {"none", "stream", "number", "process", "local", "kernel", "internal"}


def forwarded() -> set[str]:
    """The names that the library defines."""
    found = set()
    for path in SOURCES.rglob("*.rs"):
        text = path.read_text()
        for block in re.findall(r"^hooks! \{$(.*?)^\}$", text, re.M | re.S):
            found |= set(re.findall(r"^    fn (\w+)\(", block, re.M))
        for block in re.findall(r"^\w+! \{$(.*?)^\}$", text, re.M | re.S):
            found |= set(re.findall(r"^    (\w+)(?:\([^)]*\))? = ", block, re.M))
        for block in re.findall(r"^jumps! \{$(.*?)^\}$", text, re.M | re.S):
            found |= set(re.findall(r"^    (\w+) => ", block, re.M))
        no_mangle = r'#\[unsafe\(no_mangle\)\]\n(?:#\[.*\]\n)*(?:pub\S* )?(?:unsafe )?extern "C" fn (\w+)'
        found |= set(re.findall(no_mangle, text))
    return found


def exported(library: pathlib.Path) -> set[str]:
    """The functions that a 64-bit shared library exports."""
    data = library.read_bytes()
    start, size, count = struct.unpack_from("<Q10xHH", data, 40)[0], *struct.unpack_from("<HH", data, 58)
    headers = [struct.unpack_from("<IIQQQQIIQQ", data, start + size * index) for index in range(count)]
    names = set()
    for _, kind, _, _, offset, bytes_, link, *_ in headers:
        if kind != 11:  # SHT_DYNSYM
            continue
        strings = headers[link][4]
        for at in range(offset, offset + bytes_, 24):
            name, info, _, section = struct.unpack_from("<IBBH", data, at)
            if section and info & 15 in (2, 10):  # STT_FUNC, STT_GNU_IFUNC
                end = data.index(b"\0", strings + name)
                names.add(data[strings + name : end].decode())
    return names


def classes() -> list[tuple[str, re.Pattern[str], str]]:
    """Kind, pattern and remark of each line."""
    found = []
    for line in CLASSES.read_text().splitlines():
        if not line or line.startswith("#"):
            continue
        kind, pattern, *remark = line.split(None, 2)
        if kind not in KINDS:
            sys.exit(f"{CLASSES.name}: {kind} is no class; they are {', '.join(sorted(KINDS))}")
        found.append((kind, re.compile(pattern), " ".join(remark)))
    return found


def libc() -> pathlib.Path | None:
    """The GNU C library of this machine; None where there is another one."""
    for line in pathlib.Path("/proc/self/maps").read_text().splitlines():
        if line.endswith("libc.so.6"):
            return pathlib.Path(line.split()[-1])
    return None


def main() -> None:
    """Prints what is wrong, and ends with 1 if anything is."""
    library = libc()
    if library is None:
        print("libc names: skipped, no GNU C library here")
        return
    own, rules = forwarded(), classes()
    unknown, hidden, table = [], [], []
    for name in sorted(exported(library)):
        if name in own:
            hidden += [name for _, rule, _ in rules if rule.fullmatch(name)]
            table.append((name, "forwarded", ""))
            continue
        fits = next((index for index, (_, rule, _) in enumerate(rules) if rule.fullmatch(name)), None)
        if fits is None:
            unknown.append(name)
        else:
            table.append((name, rules[fits][0], rules[fits][2]))
    if "--table" in sys.argv:
        for name, kind, remark in table:
            print(f"{name}\t{kind}\t{remark}".rstrip())
    for name in unknown:
        print(f"libc names: {name} is neither forwarded nor in a class of {CLASSES.name}")
    for name in hidden:
        print(f"libc names: {name} is forwarded, and in a class of {CLASSES.name}, which would hide its loss")
    if unknown or hidden:
        sys.exit(1)
    if "--table" not in sys.argv:
        count = sum(kind == "forwarded" for _, kind, _ in table)
        print(f"libc names: {len(table)} names, {count} of them forwarded")


if __name__ == "__main__":
    main()
