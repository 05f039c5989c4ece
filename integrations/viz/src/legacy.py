"""Whether a file of VTK's legacy format is whole.

VTK's readers notice that a binary file is cut. From a cut file of text they give made-up values,
without a word. So this module compares what the last section of a text file announces with what
follows. The format has no end mark: a file that is cut exactly between two arrays can lack the
others unnoticed.
"""

from __future__ import annotations

import mmap
import os
import re
from dataclasses import dataclass, field

from zazen import _zazen

__all__ = ["check_whole"]

#: Lines that begin a section: a keyword and its words, or the name of a field's array with its
#: counts.
_SECTION = re.compile(
    rb"(?m)^[ \t]*(?:(DATASET|POINTS|[XYZ]_COORDINATES|DIMENSIONS|SPACING|ASPECT_RATIO|ORIGIN|CELLS|"
    rb"CELL_TYPES|OFFSETS|CONNECTIVITY|VERTICES|LINES|POLYGONS|TRIANGLE_STRIPS|POINT_DATA|CELL_DATA|SCALARS|"
    rb"COLOR_SCALARS|LOOKUP_TABLE|VECTORS|NORMALS|TENSORS6?|TEXTURE_COORDINATES|GLOBAL_IDS|"
    rb"PEDIGREE_IDS|EDGE_FLAGS|FIELD|METADATA)\b([^\n]*)"
    rb"|(\S+)[ \t]+(\d+)[ \t]+(\d+)[ \t]+([a-z_]+[0-9]*)[ \t\r]*)$",
    re.IGNORECASE,
)
#: Values of a tuple, by keyword.
_PER_TUPLE = {"VECTORS": 3, "NORMALS": 3, "TENSORS": 9, "TENSORS6": 6, "GLOBAL_IDS": 1, "PEDIGREE_IDS": 1}
#: Keywords whose second word is the type of the values.
_TYPED = {"SCALARS", *_PER_TUPLE}
#: Of larger binary files VTK notices what is missing; a smaller one may end before its first
#: numbers.
_SMALL_BYTES = 1 << 16
#: What each kind of data set can't be without.
_NEEDS = {
    "STRUCTURED_POINTS": {"DIMENSIONS", "ORIGIN"},
    "STRUCTURED_GRID": {"DIMENSIONS", "POINTS"},
    "RECTILINEAR_GRID": {"X_COORDINATES", "Y_COORDINATES", "Z_COORDINATES"},
    "UNSTRUCTURED_GRID": {"POINTS", "CELLS", "CELL_TYPES"},
    "POLYDATA": {"POINTS"},
}


@dataclass
class _Sections:
    """What was announced so far."""

    dataset: str = ""
    seen: set[str] = field(default_factory=set)
    tuples: int = 0
    #: Numbers that the last section announces, and its keyword.
    announced: int = 0
    last: str = ""
    last_end: int = 0
    #: From "CELLS n size" of newer files, whose numbers follow in two sections.
    cells: tuple[int, int] = (0, 0)
    components: int = 1
    #: Whether the last array is one of strings, which may be empty.
    strings: bool = False

    def take(self, keyword: str, words: list[bytes]) -> int:
        """The numbers that follow a keyword."""
        first = _integer(words[0]) if words else 0
        second = _integer(words[1]) if len(words) > 1 else 0
        match keyword:
            case "DATASET":
                self.dataset = words[0].decode(errors="replace").upper() if words else ""
            case "POINTS":
                return 3 * first
            case "X_COORDINATES" | "Y_COORDINATES" | "Z_COORDINATES" | "CELL_TYPES":
                return first
            case "CELLS" | "VERTICES" | "LINES" | "POLYGONS" | "TRIANGLE_STRIPS":
                self.cells = (first, second)
                return second
            case "OFFSETS":
                return self.cells[0]
            case "CONNECTIVITY":
                return self.cells[1]
            case "POINT_DATA" | "CELL_DATA":
                self.tuples = first
                # At least one array follows.
                return 1 if first else 0
            case "SCALARS":
                self.components = _integer(words[2]) if len(words) > 2 else 1
                return self.tuples * self.components
            case "LOOKUP_TABLE":
                # Behind SCALARS it names a table, and the values follow. By itself it is a table
                # with a length.
                return 4 * second if second else self.tuples * self.components
            case "TEXTURE_COORDINATES" | "COLOR_SCALARS":
                return self.tuples * second
            case "FIELD":
                return 1 if second else 0
            case _ if keyword in _PER_TUPLE:
                return self.tuples * _PER_TUPLE[keyword]
        return 0


def _integer(word: bytes) -> int:
    try:
        return max(0, int(word))
    except ValueError:
        return 0


def check_whole(path: str | os.PathLike[str], shown: str) -> None:
    """Raises CorruptError if a legacy file of text ends too early. Binary files are VTK's to
    judge."""
    with open(path, "rb") as file:
        if os.fstat(file.fileno()).st_size == 0:
            raise _zazen.CorruptError(f"{shown}: it is empty")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text:
            head = text[:4096].split(b"\n", 3)
            if len(head) < 4 or not head[0].startswith(b"# vtk DataFile"):
                raise _zazen.CorruptError(f"{shown}: it is cut, or no file of VTK's legacy format")
            binary = head[2].strip().upper() != b"ASCII"
            if binary and len(text) > _SMALL_BYTES:
                return
            why = _why_cut(text, sum(len(line) + 1 for line in head[:3]), binary)
    if why is not None:
        raise _zazen.CorruptError(f"{shown}: it is cut: {why}")


def _why_cut(text: mmap.mmap, begin: int, binary: bool) -> str | None:
    sections = _Sections()
    for found in _SECTION.finditer(text, begin):
        if found[1] is not None:
            keyword = found[1].decode().upper()
            words = found[2].split()
            announced = sections.take(keyword, words)
            # SCALARS may name its lookup table before its values.
            kept = keyword == "LOOKUP_TABLE" and sections.last == "SCALARS" and sections.strings
            sections.strings = kept or (keyword in _TYPED and b"string" in words[1:2])
        else:
            keyword = found[3].decode(errors="replace")
            announced = int(found[4]) * int(found[5])
            sections.strings = found[6].lower() == b"string"
        sections.seen.add(keyword)
        sections.last, sections.announced, sections.last_end = keyword, announced, found.end()
    if not sections.dataset:
        return "no DATASET follows its first lines"
    lacking = sorted(_NEEDS.get(sections.dataset, set()) - sections.seen)
    if lacking:
        return f"no {lacking[0]} of its {sections.dataset} follows"
    if binary:
        return None
    rest = text[sections.last_end :]
    given = len(rest.split())
    if given < sections.announced and not sections.strings:
        return f"{sections.last} announces {sections.announced} numbers, {given} follow"
    if sections.announced and not rest[-1:].isspace():
        # Whoever cut it may have cut this number too.
        return "no line end follows its last number (if it is whole, append one)"
    line = rest[rest.rfind(b"\n") + 1 :].strip()
    if line[:1].isalpha() and line.lower() not in (b"nan", b"inf"):
        return f"its last line is {line[:40].decode(errors='replace')!r}"
    return None
