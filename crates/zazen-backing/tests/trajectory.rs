//! Trajectory files that change while a dataset of them is open, and hostile ones.

// The exemption for tests does not reach their helpers.
#![allow(clippy::unwrap_used)]

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::{Duration, SystemTime};
use zazen_backing::trajectory::{Confirmed, Finder, Indexes, Stops, confirm, goes_on, layout};
use zazen_backing::{Backing, DirectoryBacking, SourceFile};
use zazen_core::trajectory::Format;
use zazen_core::{ErrorKind, RelPath, Result, SourceStat, Trajectory};
use zazen_trajectory::FileIndex;

/// A directory with trajectory files that were written a minute ago.
struct TestDirectory {
    folder: tempfile::TempDir,
    backing: DirectoryBacking,
    indexes: Indexes,
}

impl TestDirectory {
    fn new() -> TestDirectory {
        let folder = tempfile::tempdir().unwrap();
        let backing = DirectoryBacking::with_deadline(folder.path(), None).unwrap();
        TestDirectory { folder, backing, indexes: Indexes::in_memory() }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn put(&self, name: &str, bytes: &[u8]) {
        fs::write(self.at(name), bytes).unwrap();
        let file = OpenOptions::new().write(true).open(self.at(name)).unwrap();
        file.set_modified(SystemTime::now() - Duration::from_secs(60)).unwrap();
    }

    fn open(&self, names: &[&str]) -> Result<Trajectory> {
        let files: Vec<RelPath> = names.iter().map(|name| RelPath::new(name).unwrap()).collect();
        let found = layout(self.finder(), &self.backing, &RelPath::default(), &files, names.len() == 1)?;
        Ok(found.trajectory().unwrap().clone())
    }

    fn confirm(&self, trajectory: &Trajectory, number: u64) -> Result<()> {
        let source = trajectory.source(number).unwrap();
        let file = self.backing.open(&source.path).unwrap();
        confirm(&*file, trajectory, number, &source, &Confirmed::default())
    }

    /// A DCD of 200 frames, each a hole behind its first mark. Each is looked at on its own.
    fn put_many_frames(&self, name: &str) {
        let (atoms, whole) = (20_000, dcd(20_000, 1, 0).bytes);
        let frame_bytes = 3 * (4 * atoms + 8);
        let begin = whole.len() - frame_bytes;
        self.put(name, &whole);
        let file = OpenOptions::new().write(true).open(self.at(name)).unwrap();
        for frame in 1..200 {
            file.write_all_at(&whole[begin..begin + 4], (begin + frame * frame_bytes) as u64).unwrap();
        }
        file.set_len((begin + 200 * frame_bytes) as u64).unwrap();
    }

    fn finder(&self) -> Finder<'_> {
        Finder { indexes: &self.indexes, store: "/s", stops: None }
    }
}

/// A whole file.
struct Sample {
    format: Format,
    bytes: Vec<u8>,
}

fn be(values: &[u32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_be_bytes()).collect()
}

/// XTC of at most 9 atoms, which is not compressed.
fn xtc(n_atoms: u32, count: u32) -> Sample {
    let frame = |step| {
        [be(&[1995, n_atoms, step, 0]), be(&[0; 9]), be(&[n_atoms]), be(&vec![1; 3 * n_atoms as usize])]
    };
    Sample { format: Format::Xtc, bytes: (0..count).flat_map(frame).flatten().collect() }
}

/// DCD of CHARMM without a unit cell.
fn dcd(n_atoms: u32, count: u32, fixed: u32) -> Sample {
    let record = |values: &[u32]| {
        let mark = 4 * values.len() as u32;
        [&[mark], values, &[mark]].concat()
    };
    let mut control = [0; 21];
    (control[0], control[1], control[9], control[20]) = (u32::from_le_bytes(*b"CORD"), count, fixed, 24);
    let mut title = [0; 21];
    title[0] = 1;
    let mut words = [record(&control), record(&title), record(&[n_atoms])].concat();
    if fixed > 0 {
        words.extend(record(&vec![1; (n_atoms - fixed) as usize]));
    }
    for step in 0..count {
        let atoms = if step == 0 { n_atoms } else { n_atoms - fixed } as usize;
        (0..3).for_each(|_| words.extend(record(&vec![step; atoms])));
    }
    Sample { format: Format::Dcd, bytes: words.iter().flat_map(|word| word.to_le_bytes()).collect() }
}

/// AMBER NetCDF whose only variable has this name of 4 letters. `records`: how many it says it has.
fn ncdf(name: &[u8; 4], n_atoms: u32, count: u32, records: u32) -> Sample {
    let mut bytes =
        [&b"CDF\x01"[..], &be(&[records, 10, 2, 5]), b"frame\0\0\0", &be(&[0, 4]), b"atom"].concat();
    bytes.extend(be(&[n_atoms, 0, 0, 11, 1, 4]));
    bytes.extend(name);
    bytes.extend(be(&[2, 0, 1, 0, 0, 5, 4 * n_atoms]));
    let begin = bytes.len() as u32 + 4;
    bytes.extend(be(&[begin]));
    bytes.extend(vec![1; (4 * n_atoms * count) as usize]);
    Sample { format: Format::Ncdf, bytes }
}

fn text(format: Format, n_atoms: usize, count: usize) -> Sample {
    let atoms = "C 1 2 3\n".repeat(n_atoms);
    let frame = match format {
        Format::Xyz => format!("{n_atoms}\nx\n{atoms}"),
        Format::Gro => format!("x\n {n_atoms}\n{atoms}1 1 1\n"),
        _ => format!("ITEM: TIMESTEP\n0\nITEM: NUMBER OF ATOMS\n{n_atoms}\nITEM: ATOMS id x y z\n{atoms}"),
    };
    Sample { format, bytes: frame.repeat(count).into_bytes() }
}

/// A file of each format, with this many frames.
fn every_format(count: u32) -> Vec<Sample> {
    let texts = [Format::Xyz, Format::Gro, Format::Lammps].map(|format| text(format, 4, count as usize));
    [xtc(5, count), dcd(5, count, 0), ncdf(b"xyzs", 6, count, count)].into_iter().chain(texts).collect()
}

fn is_stale(found: Result<()>, what: &str) {
    assert_eq!(found.expect_err(what).kind(), ErrorKind::Stale, "{what}");
}

#[test]
fn a_file_that_grew_keeps_its_frames() {
    for (before, after) in every_format(3).into_iter().zip(every_format(5)) {
        let place = TestDirectory::new();
        let name = &*format!("a.{}", before.format);
        place.put(name, &before.bytes);
        let trajectory = place.open(&[name]).unwrap();
        fs::write(place.at(name), &after.bytes).unwrap();
        for number in 0..3 {
            place.confirm(&trajectory, number).unwrap();
        }
        let later = place.open(&[name]).unwrap();
        assert!(goes_on(before.format, &trajectory.files[0], &later.files[0]));
    }
}

#[test]
fn a_file_that_is_rewritten_in_place_is_stale() {
    for sample in every_format(3) {
        let (place, name) = (TestDirectory::new(), &*format!("a.{}", sample.format));
        place.put(name, &sample.bytes);
        let trajectory = place.open(&[name]).unwrap();
        // The same inode, the same size, the same frames' headers: nobody can say that it grew.
        fs::write(place.at(name), &sample.bytes).unwrap();
        is_stale(place.confirm(&trajectory, 1), name);
        let later = place.open(&[name]).unwrap();
        assert!(!goes_on(sample.format, &trajectory.files[0], &later.files[0]), "{name}");
    }
}

/// Opens the file after its bytes were changed in place, and compares the places of its frames.
/// Whether they are those of the same index as `before`: it keeps the seed of its samples.
fn same_index(place: &TestDirectory, name: &str, before: &FileIndex) -> bool {
    let path = RelPath::new(name).unwrap();
    let later = place.indexes.of(&place.backing, "/s", &path, None).unwrap();
    later.anchors.seed == before.anchors.seed
}

#[test]
fn counters_that_change_alone_leave_an_index_as_it_is() {
    for sample in every_format(5) {
        let (place, name) = (TestDirectory::new(), &*format!("a.{}", sample.format));
        place.put(name, &sample.bytes);
        let path = RelPath::new(name).unwrap();
        let before = place.indexes.of(&place.backing, "/s", &path, None).unwrap();
        // The same bytes again: a later time is all that differs.
        fs::write(place.at(name), &sample.bytes).unwrap();
        assert!(same_index(&place, name, &before), "{name}");
        let mut bytes = sample.bytes;
        if sample.format == Format::Dcd {
            (bytes[8], bytes[20]) = (77, 78);
            fs::write(place.at(name), &bytes).unwrap();
            assert!(same_index(&place, name, &before), "{name}: counters");
            bytes[8 + 4 * 9] ^= 1;
        } else {
            *bytes.last_mut().unwrap() ^= 1;
        }
        fs::write(place.at(name), &bytes).unwrap();
        assert!(!same_index(&place, name, &before), "{name}: another file of the same length");
    }
}

#[test]
fn another_longer_run_in_the_same_file_is_stale() {
    let others = [
        (xtc(5, 3), xtc(6, 9)),
        (text(Format::Xyz, 4, 3), text(Format::Xyz, 5, 9)),
        (text(Format::Gro, 4, 3), text(Format::Gro, 5, 9)),
        (text(Format::Lammps, 4, 3), text(Format::Lammps, 5, 9)),
        (ncdf(b"xyzs", 6, 3, 3), ncdf(b"xyzs", 7, 9, 9)),
        (ncdf(b"xyzs", 6, 3, 3), ncdf(b"vels", 6, 9, 9)),
        (dcd(5, 3, 0), dcd(6, 9, 0)),
    ];
    for (before, after) in others {
        let place = TestDirectory::new();
        let name = &*format!("a.{}", before.format);
        place.put(name, &before.bytes);
        let trajectory = place.open(&[name]).unwrap();
        fs::write(place.at(name), &after.bytes).unwrap();
        is_stale(place.confirm(&trajectory, 1), name);
    }
    // The same frames behind a header that says something else.
    let (before, mut after) = (dcd(5, 3, 0), dcd(5, 9, 0));
    let place = TestDirectory::new();
    place.put("a", &before.bytes);
    let trajectory = place.open(&["a"]).unwrap();
    after.bytes[8 + 4 * 9] = 7;
    fs::write(place.at("a"), &after.bytes).unwrap();
    is_stale(place.confirm(&trajectory, 1), "another time of a step");
}

#[test]
fn a_longer_rewrite_with_the_same_header_is_stale() {
    // The frames are as long as before, at the same places, and of as many atoms.
    for (before, after) in every_format(40).into_iter().zip(every_format(50)) {
        let (place, name) = (TestDirectory::new(), &*format!("a.{}", before.format));
        place.put(name, &before.bytes);
        let trajectory = place.open(&[name]).unwrap();
        fs::write(place.at(name), &after.bytes).unwrap();
        place.confirm(&trajectory, 1).unwrap();
        let source = trajectory.source(39).unwrap();
        let mut bytes = after.bytes;
        // A number of the last frame's coordinates.
        let at = (source.offset + source.length.unwrap()) as usize - 6;
        bytes[at] = if bytes[at] == b'1' { b'2' } else { b'1' };
        fs::write(place.at(name), &bytes).unwrap();
        is_stale(place.confirm(&trajectory, 1), name);
    }
}

#[test]
fn a_look_is_compared_once() {
    let (before, after) = (dcd(5000, 40, 0), dcd(5000, 50, 0));
    let place = TestDirectory::new();
    place.put("a", &before.bytes);
    let trajectory = place.open(&["a"]).unwrap();
    place.put("a", &after.bytes);
    std::thread::sleep(Duration::from_nanos(zazen_core::frame::TICK_NS as u64 + 5_000_000));
    let confirmed = Confirmed::default();
    let source = trajectory.source(7).unwrap();
    let file = Counting(place.backing.open(&source.path).unwrap(), AtomicU64::new(0));
    let now = file.stat_now().unwrap().validator;
    assert!(!confirmed.knows(&trajectory, 7, &now));
    confirm(&file, &trajectory, 7, &source, &confirmed).unwrap();
    let first = file.1.swap(0, Relaxed);
    confirm(&file, &trajectory, 7, &source, &confirmed).unwrap();
    assert!(first > 64 << 10 && file.1.load(Relaxed) < 2 << 10, "{first}, {:?}", file.1);
    assert!(confirmed.knows(&trajectory, 7, &now));
}

/// A file, and how many bytes of it were read.
struct Counting(Box<dyn SourceFile>, AtomicU64);

impl SourceFile for Counting {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        let read = self.0.read_at(buffer, offset)?;
        self.1.fetch_add(read as u64, Relaxed);
        Ok(read)
    }
    fn stat(&self) -> SourceStat {
        self.0.stat()
    }
    fn stat_now(&self) -> Result<SourceStat> {
        self.0.stat_now()
    }
    fn descriptor(&self) -> Option<OwnedFd> {
        None
    }
}

#[test]
fn nobody_looks_for_frames_when_nobody_waits() {
    let place = TestDirectory::new();
    place.put_many_frames("a");
    let asked = AtomicU64::new(0);
    let stops = || asked.fetch_add(1, Relaxed) > 1;
    let stops: Stops<'_> = Some(&stops);
    let path = RelPath::new("a").unwrap();
    let error = place.indexes.of(&place.backing, "/s", &path, stops).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ShuttingDown, "{error}");
    assert!(asked.load(Relaxed) < 5);
    assert_eq!(place.open(&["a"]).unwrap().extent().len(), 200);
}

#[test]
fn who_waits_for_the_index_of_another_may_give_up() {
    let place = TestDirectory::new();
    place.put_many_frames("a");
    let path = RelPath::new("a").unwrap();
    let (ends, begun) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let stops = || {
                begun.store(true, Relaxed);
                while !ends.load(Relaxed) {
                    std::thread::sleep(Duration::from_millis(1));
                }
                true
            };
            let stops: Stops<'_> = Some(&stops);
            place.indexes.of(&place.backing, "/s", &path, stops).unwrap_err();
        });
        while !begun.load(Relaxed) {
            std::thread::sleep(Duration::from_millis(1));
        }
        let stops: Stops<'_> = Some(&|| true);
        let error = place.indexes.of(&place.backing, "/s", &path, stops).unwrap_err();
        ends.store(true, Relaxed);
        assert_eq!(error.kind(), ErrorKind::ShuttingDown, "{error}");
    });
}

#[test]
fn an_open_file_that_is_rewritten_is_stale() {
    let (place, sample) = (TestDirectory::new(), xtc(5, 3));
    place.put("a", &sample.bytes);
    let trajectory = place.open(&["a"]).unwrap();
    let source = trajectory.source(1).unwrap();
    let file = place.backing.open(&source.path).unwrap();
    confirm(&*file, &trajectory, 1, &source, &Confirmed::default()).unwrap();
    let mut writer = OpenOptions::new().write(true).truncate(true).open(place.at("a")).unwrap();
    writer.write_all(&sample.bytes).unwrap();
    is_stale(
        confirm(&*file, &trajectory, 1, &source, &Confirmed::default()),
        "the descriptor was opened before",
    );
}

#[test]
fn files_that_one_header_does_not_tell_are_refused() {
    let place = TestDirectory::new();
    place.put("a", &dcd(5, 3, 2).bytes);
    place.put("b", &dcd(5, 3, 2).bytes);
    place.open(&["a"]).unwrap();
    let refused = place.open(&["a", "b"]).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
    assert!(refused.to_string().contains("fixed atoms"), "{refused}");
}

#[test]
fn ten_to_the_twelve_frames_in_a_hole_are_counted_at_once() {
    let place = TestDirectory::new();
    // One byte for each record: 2^39 frames.
    let mut bytes =
        [&b"CDF\x02"[..], &be(&[u32::MAX, 10, 2, 5]), b"frame\0\0\0", &be(&[0, 4]), b"atom"].concat();
    bytes.extend(be(&[1, 0, 0, 11, 1, 4]));
    bytes.extend(b"xyzs");
    bytes.extend(be(&[1, 0, 0, 0, 1, 4, 0]));
    let begin = bytes.len() as u64 + 4;
    bytes.extend(be(&[begin as u32]));
    for (frames, good) in [(1u64 << 39, true), ((1 << 40) + 1, false)] {
        place.put("a", &bytes);
        OpenOptions::new().write(true).open(place.at("a")).unwrap().set_len(begin + frames).unwrap();
        match place.open(&["a"]) {
            Ok(found) => assert!(good && found.extent().len() == frames),
            Err(error) => assert!(!good && error.kind() == ErrorKind::TooLarge, "{error}"),
        }
    }
}

#[test]
fn equal_headers_are_held_once() {
    let place = TestDirectory::new();
    place.put("a", &dcd(5, 3, 0).bytes);
    place.put("b", &dcd(5, 3, 0).bytes);
    let found = place.open(&["a", "b"]).unwrap();
    assert!(std::sync::Arc::ptr_eq(&found.files[0].header, &found.files[1].header));
    assert!(!found.header().is_empty());
}
