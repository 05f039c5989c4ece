"""H5MD through blocks of its file: equal to MDAnalysis's own reader for every layout that HDF5 has,
and what is wrong with a file is told."""

import pickle
import shutil
import time

import pytest

pytest.importorskip("MDAnalysis", reason="no MDAnalysis: pip install 'zazen[mdanalysis]'")
pytest.importorskip("MDAnalysisTests", reason="no trajectories to compare: pip install MDAnalysisTests")
pytest.importorskip("h5py", reason="no h5py: pip install 'zazen[mdanalysis]'")

import h5py
import MDAnalysis as mda
import numpy as np
import zazen
import zazen.mdanalysis
from h5md_file import ATOMS, FRAMES, write
from MDAnalysis.analysis.rms import RMSD
from MDAnalysisTests import datafiles
from zazen.mdanalysis._h5md import H5mdSource, _level

pytestmark = pytest.mark.filterwarnings("ignore")
LAYOUTS = {
    "a chunk a frame": {"chunks": (1, ATOMS, 3)},
    "several frames a chunk": {"chunks": (4, ATOMS, 3)},
    "several chunks a frame": {"chunks": (3, 100, 2)},
    "compressed": {"chunks": (2, ATOMS, 3), "compression": "gzip"},
    "shuffled and summed": {
        "chunks": (1, ATOMS, 3),
        "shuffle": True,
        "fletcher32": True,
        "compression": "lzf",
    },
    "contiguous": {},
}


def universe_of(trajectory, atoms=ATOMS, **options):
    return mda.Universe.empty(atoms, trajectory=False).load_new(trajectory, **options)


def compare(mine, plain):
    assert len(mine.trajectory) == len(plain.trajectory)
    for frame in [*range(len(plain.trajectory)), 0, 7, -1, 3]:
        found, wanted = mine.trajectory[frame], plain.trajectory[frame]
        assert (found.frame, found.time, found.data["step"]) == (
            wanted.frame,
            wanted.time,
            wanted.data["step"],
        )
        assert np.array_equal(found.dimensions, wanted.dimensions)
        for name in ("positions", "velocities"):
            assert np.array_equal(getattr(found, name), getattr(wanted, name)), (frame, name)
    assert mine.trajectory.dt == plain.trajectory.dt


# HDF5's later formats have other indexes of chunks.
@pytest.mark.parametrize(
    ("layout", "libver"),
    [*((layout, None) for layout in LAYOUTS), ("compressed", "latest"), ("several chunks a frame", "latest")],
)
def test_equal_to_the_plain_reader(layout, libver, backing, node):
    path = write(backing / "md.h5md", libver, **LAYOUTS[layout])
    # Until then a later change may leave no trace in the file's times, so nothing is cached.
    time.sleep(0.1)
    plain = universe_of(str(path))
    mine = universe_of(f"zazen:{path}", open_options={"socket": str(node.socket)})
    compare(mine, plain)
    assert {ts.data["zazen"] for ts in mine.trajectory} <= {"backing", "alien"}
    # Once more, from this node's disk: another opening, in step and by a pickled copy.
    again = pickle.loads(pickle.dumps(mine))
    assert {again.trajectory[frame].data["zazen"] for frame in range(FRAMES)} == {"alien"}
    compare(again, plain)
    direct = {"open_options": {"direct": True}}
    compare(universe_of(f"zazen:{path}", **direct), plain)
    some = np.arange(0, ATOMS, 9)
    part = universe_of(f"zazen:{path}", len(some), sub=some, **direct)
    assert np.array_equal(part.trajectory[5].positions, plain.trajectory[5].positions[::9])


def test_mdanalysis_own_files_and_back_ends(tmp_path):
    path = shutil.copy(datafiles.H5MD_xvf, tmp_path / "cobrotoxin.h5md")
    plain, mine = (mda.Universe(datafiles.TPR_xvf, name) for name in (str(path), f"zazen:{path}"))
    for expected, found in zip(plain.trajectory, mine.trajectory, strict=True):
        for name in ("positions", "velocities", "forces", "dimensions"):
            assert np.array_equal(getattr(found, name), getattr(expected, name)), name
        assert found.data["zazen_bytes"] > 0 and found.time == expected.time
    results = []
    for universe in (plain, mine):
        for how in ({}, {"backend": "multiprocessing", "n_workers": 2}):
            run = RMSD(universe.select_atoms("name CA"), universe.select_atoms("name CA").copy())
            results.append(run.run(**how).results.rmsd)
    assert all(np.array_equal(results[0], other) for other in results[1:])


def test_what_is_wrong_is_told(backing, node):
    options = {"open_options": {"socket": str(node.socket)}}

    def check(path, error, words, **more):
        for each in (options, {"open_options": {"direct": True}}):
            with pytest.raises(error, match=words):
                universe_of(f"zazen:{path}", **each)

    whole = write(backing / "whole.h5md", **LAYOUTS["compressed"])
    data = whole.read_bytes()
    (backing / "cut.h5md").write_bytes(data[: len(data) * 2 // 3])
    check(backing / "cut.h5md", zazen.CorruptError, "cut.h5md cannot be read as H5MD.*truncated")
    (backing / "empty.h5md").write_bytes(b"")
    check(backing / "empty.h5md", zazen.CorruptError, "empty.h5md")
    (backing / "text.h5").write_bytes(b"no HDF5" * 100)
    check(backing / "text.h5", zazen.CorruptError, "text.h5 cannot be read as H5MD")
    check(backing / "none.h5md", zazen.NotFoundError, "none.h5md")
    with h5py.File(backing / "other.h5", "w") as file:
        file["x"] = [1, 2]
    check(backing / "other.h5", zazen.UnsupportedError, "other.h5 is an HDF5 file, but no H5MD .*particles")
    write(backing / "zero.h5md", frames=0, written=0, maxshape=(None, ATOMS, 3), chunks=(1, ATOMS, 3))
    check(backing / "zero.h5md", zazen.UnsupportedError, "no frames")
    # Damage within a chunk that HDF5 has a checksum for, and frames that were never written.
    damaged = write(backing / "damaged.h5md", **LAYOUTS["shuffled and summed"])
    source = H5mdSource(str(damaged), {"direct": True})
    start, end = source._ranges(5)[0]
    source.close()
    with damaged.open("r+b") as file:
        file.seek((start + end) // 2)
        file.write(b"\xff\x00\xff")
    early = write(backing / "early.h5md", written=9, **LAYOUTS["a chunk a frame"])
    for path, bad, words in ((damaged, 5, "frame 5 of zazen:"), (early, 9, "frame 9 of .*never written")):
        universe = universe_of(f"zazen:{path}", **options)
        seen = []
        with pytest.raises(zazen.mdanalysis.ReadError, match=words):
            seen.extend(ts.frame for ts in universe.trajectory)
        assert seen == list(range(bad)) and np.isfinite(universe.trajectory[bad - 1].positions).all()
        with pytest.raises(zazen.mdanalysis.ReadError, match=words):
            universe.trajectory[bad]
    # The file is replaced while it is open: all frames are of the version that was opened, or an
    # error says so.
    long = write(backing / "long.h5md", frames=300, written=300, **LAYOUTS["a chunk a frame"])
    universe = universe_of(f"zazen:{long}", **options)
    write(backing / "other.h5md", frames=300, written=300, **LAYOUTS["contiguous"]).rename(long)
    with pytest.raises(zazen.mdanalysis.ReadError, match=r"long\.h5md.*changed"):
        for ts in universe.trajectory:
            assert ts.n_atoms == ATOMS


def test_what_no_number_of_a_frame_names_is_refused(tmp_path):
    """Each of these would give wrong frames, or bytes whose changes nobody notices."""
    options = {"open_options": {"direct": True}}

    def check(path, words):
        with pytest.raises(zazen.UnsupportedError, match=words):
            universe_of(f"zazen:{path}", **options)

    def changed(name, change):
        path = write(tmp_path / name, **LAYOUTS["a chunk a frame"])
        with h5py.File(path, "r+") as file:
            change(file["particles/all"])
        return path

    def every_second_box(group):
        edges, steps = group["box/edges/value"][::2], group["box/edges/step"][::2]
        for part in ("value", "step"):
            del group[f"box/edges/{part}"]
        group["box/edges/value"], group["box/edges/step"] = edges, steps

    def fixed_box(group):
        del group["box/edges"]
        group["box/edges"] = np.array([40.0, 50.0, 60.0])

    def other_steps(group):
        del group["velocity/step"]
        group["velocity/step"] = np.arange(FRAMES) * 20

    def in_another_file(group):
        del group["position/value"]
        shape = (FRAMES, ATOMS, 3)
        group["position"].create_dataset("value", shape, "f4", external=[(str(tmp_path / "raw"), 0, 1 << 30)])

    def linked(group):
        del group["position/value"]
        group["position/value"] = h5py.ExternalLink(
            str(tmp_path / "whole.h5md"), "particles/all/position/value"
        )

    def virtual(group):
        del group["position/value"]
        layout = h5py.VirtualLayout((FRAMES, ATOMS, 3), "f4")
        layout[:] = h5py.VirtualSource(tmp_path / "whole.h5md", "particles/all/position/value", layout.shape)
        group.create_virtual_dataset("position/value", layout)

    def observable(file, name, every=1):
        element = file.create_group(f"observables/{name}")
        element["step"] = np.arange(FRAMES)[::every] * 10
        element["value"] = np.arange(FRAMES, dtype="f8")[::every]

    def every_second_observable(name):
        return lambda group: observable(group.file, name, every=2)

    def linked_observable(name):
        def change(group):
            group.file[f"observables/{name}/value"] = h5py.ExternalLink(
                "whole.h5md", "observables/energy/value"
            )

        return change

    write(tmp_path / "whole.h5md", **LAYOUTS["contiguous"])
    check(
        changed("half.h5md", every_second_box),
        "box/edges was not written at the steps of position.*12 and 23",
    )
    check(changed("fixed.h5md", fixed_box), "box is the same for all frames")
    check(changed("steps.h5md", other_steps), "velocity was not written at the steps of position")
    for name in ("energy", "solute/energy"):
        steps = every_second_observable(name)
        check(changed("half.h5md", steps), f"observables/{name} was not written .* position .12 and 23")
        check(changed("linked.h5md", linked_observable(name)), f"observables/{name}/value lies in other")
    for name, change in (("external", in_another_file), ("linked", linked), ("virtual", virtual)):
        check(changed(f"{name}.h5md", change), "position/value lies in other files")
    # Observables of the same steps are read, also one group deeper.
    path = changed("observed.h5md", lambda group: [observable(group.file, name) for name in ("a", "b/c")])
    last = universe_of(f"zazen:{path}", **options).trajectory[FRAMES - 1]
    assert (last.data["a"], last.data["b/c"]) == (FRAMES - 1, FRAMES - 1)
    # Of several groups the first is read, as MDAnalysis does it.
    path = changed("two.h5md", lambda group: group.parent.create_group("zeta"))
    compare(universe_of(f"zazen:{path}", **options), universe_of(str(path)))
    with pytest.raises(zazen.CorruptError, match="no group of particles"):
        universe_of(f"zazen:{changed('none.h5md', lambda group: group.parent.pop('all'))}", **options)


def test_a_directory_of_h5md_is_refused(tmp_path):
    """Its frames are positions: the box would be lost without a word."""
    path = write(tmp_path / "md.h5md", **LAYOUTS["a chunk a frame"])
    with pytest.raises(zazen.mdanalysis.ReadError, match=r"positions only.*h5md"):
        universe_of(f"zazen:{path.parent}", open_options={"direct": True})
    other = path.rename(tmp_path / "md.data")
    with pytest.raises(zazen.mdanalysis.ReadError, match=r"positions only.*h5md"):
        universe_of(f"zazen:{other}", open_options={"direct": True})


def test_another_process_never_reads_another_version(tmp_path):
    path = write(tmp_path / "md.h5md", **LAYOUTS["compressed"])
    universe = universe_of(f"zazen:{path}", open_options={"direct": True})
    pickled = pickle.dumps(universe)
    assert pickle.loads(pickled).trajectory[2].frame == 2
    write(tmp_path / "new.h5md", **LAYOUTS["contiguous"]).rename(path)
    with pytest.raises(zazen.mdanalysis.ReadError, match=r"md\.h5md was changed or replaced"):
        pickle.loads(pickled).trajectory[2]


def test_frames_without_an_owner_level_the_load():
    for seed in range(50):
        rng = np.random.default_rng(seed)
        size, count = int(rng.integers(1, 7)), int(rng.integers(0, 60))
        given = rng.integers(-1, size, size=count)
        ranks = _level(given.copy(), size)
        assert ((ranks == given) | (given < 0)).all() and ((ranks >= 0) & (ranks < size)).all()
        before, after = (np.bincount(some[some >= 0], minlength=size) for some in (given, ranks))
        # Nobody who got something has more than one frame above the lowest.
        got = after > before
        assert not got.any() or after[got].max() <= after.min() + 1, seed
