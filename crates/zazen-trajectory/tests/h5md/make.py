"""Writes the H5MD files beside it, and `places.txt`: where h5py says that their frames are.

Run it by hand, with h5py. The tests read only what it wrote.
"""

from pathlib import Path

import h5py
import numpy as np

HERE = Path(__file__).parent
ATOMS = 5
# Name, frames that there is room for, frames that are written, libver, and how the array is laid
# out. "latest" has the newer structures.
FILES = {
    "one-piece": (7, 7, None, {}),
    "one-piece-new": (7, 7, "latest", {}),
    "tree": (9, 9, None, {"chunks": (1, ATOMS, 3), "maxshape": (None, ATOMS, 3)}),
    "tree-of-rows": (9, 9, None, {"chunks": (4, ATOMS, 3)}),
    "tree-cut-off": (9, 4, None, {"chunks": (1, ATOMS, 3)}),
    "tree-filtered": (6, 6, None, {"chunks": (1, ATOMS, 3), "shuffle": True, "fletcher32": True}),
    "single": (3, 3, "latest", {"chunks": (3, ATOMS, 3)}),
    "single-filtered": (1, 1, "latest", {"chunks": (1, ATOMS, 3), "fletcher32": True}),
    "fixed-array": (9, 9, "latest", {"chunks": (1, ATOMS, 3)}),
    "fixed-array-filtered": (9, 9, "latest", {"chunks": (1, ATOMS, 3), "fletcher32": True}),
    "extensible-array": (30, 30, "latest", {"chunks": (1, ATOMS, 3), "maxshape": (None, ATOMS, 3)}),
    "extensible-array-filtered": (
        30,
        30,
        "latest",
        {"chunks": (1, ATOMS, 3), "maxshape": (None, ATOMS, 3), "shuffle": True, "fletcher32": True},
    ),
    "implicit": (5, 5, "latest", {"chunks": (1, ATOMS, 3), "early": True}),
}


def write(path, frames, written, libver, layout):
    with h5py.File(path, "w", libver=libver) as file:
        file.create_group("h5md").attrs["version"] = [1, 1]
        group = file.create_group("particles/all/position")
        early = layout.pop("early", False)
        kept = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        kept.set_obj_track_times(False)
        if early:
            kept.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
        data = group.create_dataset("value", (frames, ATOMS, 3), "f4", dcpl=kept, **layout)
        data.attrs["unit"] = "Angstrom"
        for n in range(written):
            data[n] = np.arange(ATOMS * 3, dtype="f4").reshape(ATOMS, 3) + 100 * n
    with h5py.File(path, "r") as file:
        data = file["particles/all/position/value"]
        row = ATOMS * 3 * 4
        for n in range(written):
            if data.chunks is None:
                yield data.id.get_offset() + n * row, row
                continue
            chunk = data.id.get_chunk_info_by_coord((n // data.chunks[0] * data.chunks[0], 0, 0))
            behind = n % data.chunks[0] * row
            yield chunk.byte_offset + behind, row if data.chunks[0] > 1 else chunk.size


with (HERE / "places.txt").open("w") as places:
    places.write("# Written by make.py: file, frame, offset, bytes.\n")
    for name, (frames, written, libver, layout) in FILES.items():
        found = write(HERE / f"{name}.h5md", frames, written, libver, dict(layout))
        for n, (offset, length) in enumerate(found):
            places.write(f"{name} {n} {offset} {length}\n")
