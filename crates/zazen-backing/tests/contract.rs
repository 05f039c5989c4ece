//! The promises of every backing store, tested on each kind, and datasets found through each kind.

// The exemption for tests does not reach their helpers.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

mod bucket;

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use zazen_backing::dataset::{self, DatasetDescription, parse_manifest};
use zazen_backing::served::{FileServer, serve};
use zazen_backing::trajectory::{Finder, Indexes};
use zazen_backing::{Backing, DirectoryBacking, Rights, ServedBacking};
use zazen_core::{Credentials, ErrorKind, FrameNo, Layout, PARTS_PER_STEP_MAX, RelPath, RunSet};

/// A store of one kind over a directory of its own.
struct Stand {
    backing: Box<dyn Backing>,
    root: PathBuf,
    _dir: tempfile::TempDir,
    _server: Option<FileServer>,
}

/// The names of a listing, sorted.
fn sorted(names: impl Into<Vec<String>>) -> Vec<String> {
    let mut names: Vec<String> = names.into();
    names.sort_unstable();
    names
}

/// A stand of each kind. Their directories are open to all from the root down.
fn stands() -> Vec<Stand> {
    ["directory", "unwatched directory", "served"].map(stand).into()
}

/// As [`stands`], and a bucket where there is an object store for tests: without links and modes.
fn all_stands() -> Vec<Stand> {
    let mut all = stands();
    if bucket::is_there() {
        all.push(stand("bucket"));
    }
    all
}

fn stand(kind: &str) -> Stand {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("root");
    std::fs::create_dir(&root).unwrap();
    set_mode(dir.path(), 0o755);
    let mut server = None;
    let backing: Box<dyn Backing> = match kind {
        "directory" => Box::new(DirectoryBacking::new(&root).unwrap()),
        "bucket" => Box::new(bucket::Mirror::of(&root)),
        "unwatched directory" => Box::new(DirectoryBacking::with_deadline(&root, None).unwrap()),
        _ => {
            let running = serve(TcpListener::bind("127.0.0.1:0").unwrap(), &root, None).unwrap();
            let backing = ServedBacking::connect(&format!("tcp://{}", running.addr())).unwrap();
            server = Some(running);
            Box::new(backing)
        }
    };
    Stand { backing, root, _dir: dir, _server: server }
}

fn set_mode(path: &Path, mode: u32) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

fn describe(
    backing: &dyn Backing,
    directory: &RelPath,
    pattern: Option<&str>,
) -> zazen_core::Result<DatasetDescription> {
    dataset::describe(finder(&Indexes::in_memory()), backing, directory, pattern)
}

fn layout(
    backing: &dyn Backing,
    directory: &RelPath,
    pattern: Option<&str>,
) -> zazen_core::Result<Option<Layout>> {
    dataset::layout(finder(&Indexes::in_memory()), backing, directory, pattern)
}

fn finder(indexes: &Indexes) -> Finder<'_> {
    Finder { indexes, store: "/", stops: None }
}

fn path(text: &str) -> RelPath {
    RelPath::new(text).unwrap()
}

fn pattern_bytes(length: usize) -> Vec<u8> {
    (0..length as u64).map(|i| (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect()
}

/// How long after its last change a file's times tell it from a later change.
const SETTLED: std::time::Duration =
    std::time::Duration::from_nanos(zazen_core::frame::TICK_NS as u64 + 5_000_000);

#[test]
fn files_are_read_as_they_are() {
    for Stand { backing, root, .. } in all_stands() {
        let bytes = pattern_bytes(9_000_001);
        std::fs::create_dir(root.join("sim")).unwrap();
        std::fs::write(root.join("sim/frame"), &bytes).unwrap();
        // Both looks at the file come after its times are settled, however slow the machine is.
        std::thread::sleep(SETTLED);
        let file = backing.open(&path("sim/frame")).unwrap();
        assert_eq!(file.stat(), backing.stat(&path("sim/frame")).unwrap());
        assert_eq!(file.stat().validator.size, bytes.len() as u64);
        assert!(!file.stat().is_dir && backing.stat(&path("sim")).unwrap().is_dir);
        std::thread::scope(|scope| {
            for start in [0usize, 4_100_000] {
                let (file, bytes) = (&file, &bytes);
                scope.spawn(move || {
                    let mut at = start;
                    let mut buffer = vec![0; 5 << 20];
                    loop {
                        let read = file.read_at(&mut buffer, at as u64).unwrap();
                        assert!(
                            buffer[..read] == bytes[at..at + read],
                            "differs within {read} bytes at {at}"
                        );
                        at += read;
                        if read == 0 {
                            break;
                        }
                    }
                    assert_eq!(at, bytes.len());
                });
            }
        });
        assert_eq!(file.read_at(&mut [0; 8], 1 << 40).unwrap(), 0);
        let (reads, traffic) = backing.traffic();
        assert!(reads >= 4 && traffic >= bytes.len() as u64, "{reads} {traffic}");
        if let Some(fd) = file.descriptor() {
            let mut head = [0; 100];
            rustix::io::pread(&fd, &mut head, 50).unwrap();
            assert_eq!(head, bytes[50..150]);
        }
    }
}

#[test]
fn what_is_not_there_or_not_a_file_is_told_apart() {
    for Stand { backing, root, .. } in all_stands() {
        std::fs::create_dir(root.join("sim")).unwrap();
        std::fs::write(root.join("sim/a"), "a").unwrap();
        let kind = |result: zazen_core::Result<()>| result.err().map(|error| error.kind());
        let missing = Some(ErrorKind::NotFound);
        assert_eq!(kind(backing.stat(&path("none")).map(|_| ())), missing);
        assert_eq!(kind(backing.open(&path("sim/none")).map(|_| ())), missing);
        assert_eq!(kind(backing.open(&path("sim/a/b")).map(|_| ())), missing);
        assert_eq!(kind(backing.list(&path("none")).map(|_| ())), missing);
        assert_eq!(kind(backing.list(&path("sim/a")).map(|_| ())), missing);
        assert_eq!(kind(backing.open(&path("sim")).map(|_| ())), Some(ErrorKind::InvalidArgument));
        let stats = backing.stat_many(&[path("sim/a"), path("x"), path("sim"), path("")]).unwrap();
        let found: Vec<_> = stats.iter().map(|stat| stat.as_ref().map(|stat| stat.is_dir).ok()).collect();
        assert_eq!(found, [Some(false), None, Some(true), Some(true)]);
        let many: Vec<RelPath> = (0..3000).map(|n| path(&format!("sim/{n}"))).collect();
        assert_eq!(backing.stat_many(&many).unwrap().len(), 3000);
        assert!(backing.stat_many(&[]).unwrap().is_empty());
    }
}

#[test]
fn links_out_of_the_root_are_refused() {
    for Stand { backing, root, .. } in stands() {
        std::fs::write(root.join("../secret"), "s").unwrap();
        std::fs::write(root.join("a"), "a").unwrap();
        for (link, target) in [("out", "../secret"), ("abs", "/etc/passwd"), ("in", "a"), ("loop", "loop")] {
            std::os::unix::fs::symlink(target, root.join(link)).unwrap();
        }
        std::os::unix::fs::symlink("..", root.join("up")).unwrap();
        for leaving in ["out", "abs", "loop", "up/secret"] {
            let refused = backing.open(&path(leaving)).map(|_| ()).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::PermissionDenied, "{refused}");
            assert!(backing.stat(&path(leaving)).is_err(), "{leaving}");
        }
        assert_eq!(backing.stat(&path("in")).unwrap().validator.size, 1);
    }
}

#[test]
fn names_are_listed() {
    for Stand { backing, root, .. } in all_stands() {
        for name in ["a", "b", ".hidden", "ü"] {
            std::fs::write(root.join(name), "").unwrap();
        }
        std::fs::create_dir(root.join("sub")).unwrap();
        assert_eq!(sorted(backing.list(&path("")).unwrap()), [".hidden", "a", "b", "sub", "ü"]);
        assert_eq!(sorted(backing.list_files(&path("")).unwrap()), [".hidden", "a", "b", "ü"]);
        assert!(backing.list(&path("sub")).unwrap().is_empty());
    }
}

const OTHER: u32 = 4_054_321;

/// The store as another user sees it; `None` (with a reason) if this process may not act for
/// others.
fn as_other(backing: &dyn Backing, groups: &[u32]) -> Option<std::sync::Arc<dyn Backing>> {
    if !zazen_env::Identity::can_be_assumed() {
        println!("skipped: acting for another user needs CAP_SETUID and CAP_SETGID");
        return None;
    }
    let who = Credentials { uid: OTHER, gid: OTHER, groups: groups.to_vec() };
    Some(backing.seen_by(&who).unwrap())
}

#[test]
fn a_view_has_its_users_rights() {
    for Stand { backing, root, .. } in stands() {
        std::fs::create_dir_all(root.join("open/closed/inner")).unwrap();
        std::fs::create_dir(root.join("through")).unwrap();
        for file in
            ["open/public", "open/mine", "open/group", "open/secret", "open/closed/public", "through/f"]
        {
            std::fs::write(root.join(file), file).unwrap();
        }
        set_mode(&root.join("open/closed"), 0o700);
        set_mode(&root.join("through"), 0o711);
        let Some(view) = as_other(&*backing, &[64_900]) else { return };
        let own = |file: &str, uid, gid, mode| {
            std::os::unix::fs::chown(root.join(file), Some(uid), Some(gid)).unwrap();
            set_mode(&root.join(file), mode);
        };
        own("open/mine", OTHER, 0, 0o600);
        own("open/group", 0, 64_900, 0o640);
        own("open/secret", 0, 0, 0o600);
        let expected =
            [("public", true), ("mine", true), ("group", true), ("secret", false), ("closed/public", false)];
        let paths: Vec<RelPath> = expected.iter().map(|(name, _)| path(name)).collect();
        let probed = view.probe_beneath(&path("open"), &paths.into()).unwrap();
        for ((name, may), probe) in expected.iter().zip(probed) {
            let refused = |kind| [None, Some(ErrorKind::PermissionDenied)][usize::from(!may)] == kind;
            assert!(refused(probe.err().map(|error| error.kind())), "{name}");
            let file = path(&format!("open/{name}"));
            assert!(refused(view.open(&file).err().map(|error| error.kind())), "{name}");
            assert_eq!(view.allows(&file, Rights::READ).unwrap(), *may, "{name}");
            // The process itself is who it was.
            assert!(backing.open(&file).is_ok(), "{name}");
        }
        let searched = [("", true), ("open", true), ("open/closed", false), ("open/closed/inner", false)];
        for (folder, may) in searched {
            assert_eq!(view.allows(&path(folder), Rights::SEARCH).unwrap(), may, "{folder}");
        }
        assert!(!view.allows(&path("open"), Rights::WRITE.and(Rights::SEARCH)).unwrap());
        let folders = [path("open"), path("through"), path("none")];
        let listed: Vec<_> = view.allows_many(&folders, Rights::READ).unwrap();
        assert!(matches!(listed[..], [Ok(true), Ok(false), Err(_)]), "{listed:?}");
        assert!(view.open(&path("through/f")).is_ok());
        assert_eq!(view.list(&path("through")).err().unwrap().kind(), ErrorKind::PermissionDenied);
        assert_eq!(view.allows(&path("none"), Rights::SEARCH).unwrap_err().kind(), ErrorKind::NotFound);
    }
}

#[test]
fn an_access_list_counts() {
    let Stand { backing, root, .. } = &stand("directory");
    let file = root.join("listed");
    std::fs::write(&file, "x").unwrap();
    set_mode(&file, 0o600);
    let Some(view) = as_other(&**backing, &[]) else { return };
    assert!(view.open(&path("listed")).is_err());
    // Version 2; then (tag, rights, id) of owner, one user, owning group, mask and others.
    let mut list = 2u32.to_le_bytes().to_vec();
    for (tag, rights, id) in
        [(1u16, 6u16, u32::MAX), (2, 4, OTHER), (4, 0, u32::MAX), (16, 4, u32::MAX), (32, 0, u32::MAX)]
    {
        list.extend([&tag.to_le_bytes()[..], &rights.to_le_bytes(), &id.to_le_bytes()].concat());
    }
    let set = rustix::fs::setxattr(&file, "system.posix_acl_access", &list, rustix::fs::XattrFlags::empty());
    if let Err(errno) = set {
        println!("skipped: this file system has no access lists ({errno})");
        return;
    }
    assert!(view.open(&path("listed")).is_ok());
}

#[test]
fn what_could_hang_or_tell_on_the_process_is_refused() {
    let backing = zazen_backing::DirectoryBacking::new("/").unwrap();
    for own in ["proc/self/environ", "proc/self/maps", "proc/sys/kernel/ostype", "sys/kernel/uevent_seqnum"] {
        if let Err(error) = backing.open(&path(own)) {
            assert!(
                matches!(error.kind(), ErrorKind::InvalidArgument | ErrorKind::NotFound),
                "{own}: {error}"
            );
        } else {
            panic!("{own} was opened");
        }
    }
    assert_eq!(backing.list(&path("proc")).err().unwrap().kind(), ErrorKind::InvalidArgument);
}

#[test]
fn a_directory_closed_above_the_root_is_closed() {
    let Stand { backing, root, .. } = &stand("directory");
    set_mode(root.parent().unwrap(), 0o700);
    let Some(view) = as_other(&**backing, &[]) else { return };
    assert!(!view.allows(&path(""), Rights::SEARCH).unwrap());
    assert_eq!(view.list(&path("")).err().unwrap().kind(), ErrorKind::PermissionDenied);
}

#[test]
fn a_root_of_folders_alone_is_not_empty() {
    let Stand { backing, root, .. } = &stand("directory");
    std::fs::create_dir(root.join("sim")).unwrap();
    assert_eq!(sorted(backing.list(&path("")).unwrap()), ["sim"]);
    assert!(backing.list_files(&path("")).unwrap().is_empty());
}

#[test]
fn a_server_that_goes_is_unavailable_and_may_come_back() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("a"), "1").unwrap();
    let mut server = serve(TcpListener::bind("127.0.0.1:0").unwrap(), dir.path(), None).unwrap();
    let addr = server.addr();
    let backing = ServedBacking::connect(&addr.to_string()).unwrap();
    assert!(backing.stat(&path("a")).is_ok());
    server.stop();
    let gone = backing.stat(&path("a")).unwrap_err();
    assert_eq!(gone.kind(), ErrorKind::Unavailable, "{gone}");
    assert!(gone.to_string().contains(&addr.to_string()), "{gone}");
    let server = serve(TcpListener::bind(addr).unwrap(), dir.path(), Some(1 << 30)).unwrap();
    assert!(backing.stat(&path("a")).is_ok());
    assert_eq!(backing.server_traffic().unwrap(), server.traffic());
    assert_eq!(backing.server_traffic().unwrap().rate_bytes_per_s, 1 << 30);
    for bad in ["nowhere", "host:", ":1", "tcp://x:99999"] {
        assert_eq!(ServedBacking::connect(bad).err().unwrap().kind(), ErrorKind::Config, "{bad}");
    }
}

#[test]
fn a_served_file_that_is_replaced_while_it_is_read_is_stale() {
    let Stand { backing, root, .. } = &stand("served");
    std::fs::write(root.join("a"), "old").unwrap();
    let file = backing.open(&path("a")).unwrap();
    // Another file is read on the same connection, so the server no longer holds the first one
    // open.
    std::fs::write(root.join("b"), "b").unwrap();
    backing.open(&path("b")).unwrap().read_at(&mut [0; 8], 0).unwrap();
    std::fs::write(root.join("new"), "newer").unwrap();
    std::fs::rename(root.join("new"), root.join("a")).unwrap();
    assert_eq!(file.read_at(&mut [0; 8], 0).unwrap_err().kind(), ErrorKind::Stale);
}

#[test]
fn a_stranger_on_the_port_is_turned_away() {
    use std::io::{Read, Write};
    let dir = tempfile::tempdir().unwrap();
    let server = serve(TcpListener::bind("127.0.0.1:0").unwrap(), dir.path(), None).unwrap();
    for junk in [&b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"[..], &[0xff; 200][..]] {
        let mut stream = std::net::TcpStream::connect(server.addr()).unwrap();
        let padded = [junk, &[b' '; 64]].concat();
        stream.write_all(&padded).unwrap();
        let mut answer = Vec::new();
        // Closed or reset, never answered.
        stream.read_to_end(&mut answer).ok();
        assert!(answer.is_empty());
    }
    let backing = ServedBacking::connect(&server.addr().to_string()).unwrap();
    assert!(backing.list(&path("")).unwrap().is_empty());
}

#[test]
fn datasets_are_described_by_names_pattern_or_manifest() {
    for Stand { backing, root, .. } in all_stands() {
        let sim = root.join("sim");
        std::fs::create_dir(&sim).unwrap();
        let check = |pattern: Option<&str>, expected: Option<&str>, numbers: &[u64]| {
            let found = describe(&*backing, &path("sim"), pattern).unwrap();
            let named = |layout: &Layout| match layout {
                Layout::Files(template) => template.to_string(),
                Layout::Pieces(pieces) => format!("{} pieces", pieces.len()),
                Layout::List(files) => format!("{} files", files.len()),
                Layout::Trajectory(found) => format!("{} trajectories", found.files.len()),
                Layout::Blocks(blocks) => format!("blocks of {}", blocks.path),
            };
            assert_eq!(found.layout.as_ref().map(named).as_deref(), expected);
            assert_eq!(found.extent, numbers.iter().copied().collect::<RunSet>());
            assert_eq!(layout(&*backing, &path("sim"), pattern).unwrap(), found.layout);
        };
        check(None, None, &[]);
        check(Some("f{n:03}.x"), Some("f{n:03}.x"), &[]);
        for name in ["f001.x", "f002.x", "f010.x", ".f011.x", "f012.x.tmp", "f013.x~", "notes9.txt"] {
            std::fs::write(sim.join(name), "x").unwrap();
        }
        std::fs::create_dir(sim.join("f099.x")).unwrap();
        check(None, Some("f{n:03}.x"), &[1, 2, 10]);
        check(Some("notes{n}.txt"), Some("notes{n}.txt"), &[9]);
        for step in [3, 4, 11] {
            std::fs::create_dir(sim.join(format!("step{step}"))).unwrap();
        }
        std::fs::write(sim.join("step3/data.vtu"), "").unwrap();
        std::fs::write(sim.join("step11/data.vtu"), "").unwrap();
        check(Some("step{n}/data.vtu"), Some("step{n}/data.vtu"), &[3, 11]);
        check(Some("later/f{n}"), Some("later/f{n}"), &[]);
        std::fs::write(sim.join("zazen.toml"), "pattern = \"step{n}/data.vtu\"\n").unwrap();
        check(None, Some("step{n}/data.vtu"), &[3, 11]);
        check(Some("f{n:03}.x"), Some("f{n:03}.x"), &[1, 2, 10]);
        for name in
            ["out/s04/b0.vtu", "out/s04/b7.vtu", "out/s04/b07.vtu", "out/s5/b1.vtu", "out/s11/b1.vtu/x"]
        {
            std::fs::create_dir_all(sim.join(name).parent().unwrap()).unwrap();
            std::fs::write(sim.join(name), "x").unwrap();
        }
        let part = |step: u64, block: u64| step * PARTS_PER_STEP_MAX + block;
        let (deep, twice) = ("out/s{t:02}/b{b}.vtu", "step{t}/d{t}_{b}/data.vtu");
        check(Some(deep), Some(deep), &[part(4, 0), part(4, 7)]);
        check(Some(twice), Some(twice), &[]);
        for name in ["step3/d3_0/data.vtu", "step3/d4_1/data.vtu", "step3/d3_2/other.vtu"] {
            std::fs::create_dir_all(sim.join(name).parent().unwrap()).unwrap();
            std::fs::write(sim.join(name), "x").unwrap();
        }
        check(Some(twice), Some(twice), &[part(3, 0)]);
        check(Some("later{t}/{b}"), Some("later{t}/{b}"), &[]);
        std::fs::write(sim.join("zazen.toml"), "files = [\"f010.x\", \"notes9.txt\"]\n").unwrap();
        check(None, Some("2 files"), &[0, 1]);
        let pieces =
            "[[pieces]]\npath = \"t.dcd\"\nfirst = 5\ncount = 3\nstep = 2\noffset = 10\nframe_bytes = 4\n";
        std::fs::write(sim.join("zazen.toml"), pieces).unwrap();
        check(None, Some("1 pieces"), &[5, 7, 9]);
        let told = layout(&*backing, &path("sim"), None).unwrap().unwrap();
        let source = told.source(FrameNo::new(9).unwrap()).unwrap();
        assert_eq!((source.path.as_str(), source.offset, source.length), ("t.dcd", 18, Some(4)));

        for missing in ["none", "sim/f001.x"] {
            for pattern in [None, Some("a{n}")] {
                let refused = describe(&*backing, &path(missing), pattern).unwrap_err();
                assert_eq!(refused.kind(), ErrorKind::NotFound, "{refused}");
            }
        }
        // If the names are ambiguous, the call fails and asks for a pattern.
        std::fs::remove_file(sim.join("zazen.toml")).unwrap();
        std::fs::write(sim.join("g001.x"), "x").unwrap();
        std::fs::write(sim.join("g002.x"), "x").unwrap();
        for refused in
            [describe(&*backing, &path("sim"), None).err(), layout(&*backing, &path("sim"), None).err()]
        {
            let refused = refused.unwrap();
            assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
            let said = refused.to_string();
            assert!(
                said.contains("f{n:03}.x (3 files), g{n:03}.x (2 files)") && said.contains("sim"),
                "{said}"
            );
        }
    }
}

#[test]
fn files_are_numbered_by_their_names() {
    for Stand { backing, root, .. } in stands() {
        let names = [
            "dog/img 1.jpg",
            "cat/img_003.jpg",
            "cat/img_001.JPG",
            "cat/deep/er/x.jpg",
            "top.jpg",
            "top-2.jpg",
            "notes.txt",
            ".hidden.jpg",
            ".git/a.jpg",
            "cat/half.jpg.tmp",
            "zazen.toml",
            "cat/zazen.toml",
        ];
        for name in names {
            let file = root.join("d").join(name);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(file, "x").unwrap();
        }
        std::os::unix::fs::symlink("..", root.join("d/loop")).unwrap();
        let check = |pattern: &str, expected: &[&str]| {
            let found = describe(&*backing, &path("d"), Some(pattern)).unwrap();
            let Some(Layout::List(files)) = &found.layout else { panic!("{pattern}: {:?}", found.layout) };
            let names: Vec<&str> = files.iter().map(|file| file.as_str()).collect();
            assert_eq!(names, expected, "{pattern}");
            assert_eq!(found.extent.len(), expected.len() as u64);
            assert_eq!(layout(&*backing, &path("d"), Some(pattern)).unwrap(), found.layout, "{pattern}");
        };
        check("*.jpg", &["top-2.jpg", "top.jpg"]);
        check("top?2.jpg", &["top-2.jpg"]);
        check("*/*.jpg", &["cat/img_003.jpg", "dog/img 1.jpg"]);
        check("cat/*.[jJ][pP][gG]", &["cat/img_001.JPG", "cat/img_003.jpg"]);
        let all = ["cat/deep/er/x.jpg", "cat/img_003.jpg", "dog/img 1.jpg", "top-2.jpg", "top.jpg"];
        check("**/*.jpg", &all);
        check("cat/**/*.jpg", &["cat/deep/er/x.jpg", "cat/img_003.jpg"]);
        check("cat/**", &["cat/deep/er/x.jpg", "cat/img_001.JPG", "cat/img_003.jpg", "cat/zazen.toml"]);
        check("none/*", &[]);
        check("cat/img_003.jpg/*", &[]);
        for bad in ["../*", "/*", "a**/x", "[*", "*/./x"] {
            let refused = layout(&*backing, &path("d"), Some(bad)).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::InvalidArgument, "{bad}: {refused}");
            assert!(refused.to_string().contains(bad), "{refused}");
        }
        for missing in ["none", "d/top.jpg"] {
            assert!(layout(&*backing, &path(missing), Some("*")).is_err(), "{missing}");
        }
        // A folder that cannot be listed changes the numbers of all files behind its own.
        if !rustix::process::geteuid().is_root() {
            let closed = root.join("d/cat");
            set_mode(&closed, 0o000);
            let refused = layout(&*backing, &path("d"), Some("**/*.jpg")).unwrap_err();
            set_mode(&closed, 0o700);
            assert_eq!(refused.kind(), ErrorKind::PermissionDenied, "{refused}");
        }
    }
}

#[test]
fn a_bad_manifest_says_what_is_wrong() {
    let check = |text: &str, expected: &str| {
        let refused = parse_manifest(text, "sim/zazen.toml").unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Config, "{refused}");
        let said = refused.to_string();
        assert!(said.starts_with("dataset manifest sim/zazen.toml: ") && said.contains(expected), "{said}");
    };
    check("", "none of `pattern`, `files`, `trajectories` and [[pieces]]");
    check("files = [\"a\", \"a\"]", "listed twice");
    check("files = [\"../a\"]", "`..`");
    check("files = [\"a\"]\npattern = \"a{n}\"", "keep one");
    check("pattern = \"a{n}\"\n[[pieces]]\npath=\"x\"\nfirst=0\ncount=1\nframe_bytes=1", "keep one");
    check("pattern = \"abc\"", "pattern");
    check("patern = \"a{n}\"", "unknown field `patern`");
    check("[[pieces]]\npath=\"../x\"\nfirst=0\ncount=1\nframe_bytes=1", "`..`");
    check("[[pieces]]\npath=\"\"\nfirst=0\ncount=1\nframe_bytes=1", "empty path");
    check("[[pieces]]\npath=\"x\"\nfirst=0\nframe_bytes=1", "missing field `count`");
    let twice = "[[pieces]]\npath=\"x\"\nfirst=0\ncount=5\nframe_bytes=1\n";
    check(&format!("{twice}{}", twice.replace("\"x\"", "\"y\"")), "0");
}

#[test]
fn a_huge_or_binary_manifest_is_refused() {
    for Stand { backing, root, .. } in all_stands() {
        let manifest = std::fs::File::create(root.join("zazen.toml")).unwrap();
        manifest.set_len((16 << 20) + 1).unwrap();
        let refused = layout(&*backing, &path(""), None).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::TooLarge, "{refused}");
        std::fs::write(root.join("zazen.toml"), [0xff, 0xfe]).unwrap();
        assert_eq!(layout(&*backing, &path(""), None).unwrap_err().kind(), ErrorKind::Config);
    }
}
