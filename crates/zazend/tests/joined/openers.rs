//! What other users than the daemon's are given and may push, message by message. Skipped, with a
//! reason, without root.

use crate::common::*;
use std::os::unix::fs::{FileExt, PermissionsExt, chown};
use std::path::Path;
use zazen_core::{ErrorKind, Origin};
use zazen_frames::messages::*;
use zazen_wire::{Message, service};

/// A user who is nobody here.
const OTHER: u32 = 4_054_321;
/// Short enough to be packed.
const SMALL: usize = 3_000;
const LARGE: usize = 140_000;

/// One batch of all frames as it came: entries, descriptors, bulk bytes.
fn batch(client: &mut Client, handle: u32) -> (Vec<BatchEntry>, Vec<std::fs::File>, Vec<u8>) {
    let ask = ScanOpen { handle, set: set(0..8) };
    let scan: ScanOpened = client.ask(frames_fn::SCAN_OPEN, &ask).unwrap();
    let next = ScanNext { scan: scan.scan, frames_max: 64, bytes_max: 16 << 20 };
    let reply = client.raw(service::FRAMES, frames_fn::SCAN_NEXT, &next.encode(), &[]).unwrap();
    let entries = ScanBatch::decode(&reply.payload).unwrap().entries;
    (entries, reply.fds.into_iter().map(Into::into).collect(), reply.bulk)
}

#[test]
fn a_descriptor_shows_nothing_but_its_frame() {
    let site = Site::default();
    let (small, large) = (site.dataset("small", 0..8, SMALL), site.dataset("large", 0..8, LARGE));
    let _daemon = site.start();
    let mut own = site.client();
    for dataset in [&small, &large] {
        let handle = own.open(dataset).unwrap().handle;
        own.fetch(handle, set(0..8), Origin::Native);
        let (entries, files, bulk) = batch(&mut own, handle);
        assert!(entries.iter().all(|entry| !entry.path.is_empty() && entry.fd.is_some()) && bulk.is_empty());
        assert_eq!(files.len(), if *dataset == small { 1 } else { 8 });
    }
    as_user(OTHER, || {
        let mut other = site.client();
        let handle = other.open(&small).unwrap().handle;
        let (entries, files, bulk) = batch(&mut other, handle);
        assert!(files.is_empty() && entries.len() == 8);
        for entry in entries {
            assert_eq!((entry.delivery, entry.fd, entry.path.as_str()), (Delivery::Native, None, ""));
            let bytes = &bulk[entry.offset as usize..][..SMALL];
            assert!(bytes == frame_bytes(entry.number, SMALL));
        }
        let handle = other.open(&large).unwrap().handle;
        let (entries, files, bulk) = batch(&mut other, handle);
        assert!(bulk.is_empty() && files.len() == 8);
        for entry in entries {
            use std::os::fd::AsRawFd;
            let file = &files[usize::from(entry.fd.unwrap())];
            assert_eq!((entry.path.as_str(), entry.offset), ("", 0));
            assert_eq!(file.metadata().unwrap().len(), LARGE as u64, "nothing else is in it");
            let again = format!("/proc/self/fd/{}", file.as_raw_fd());
            let reopened = std::fs::File::open(&again).unwrap();
            let mut bytes = vec![0; LARGE];
            reopened.read_exact_at(&mut bytes, 0).unwrap();
            assert!(bytes == frame_bytes(entry.number, LARGE));
            assert!(std::fs::OpenOptions::new().write(true).open(&again).is_err());
            assert!(file.write_at(b"x", 0).is_err());
        }
    });
}

#[test]
fn only_who_could_have_written_a_source_pushes_its_frame() {
    let site = Site::default();
    let sim = site.dataset("sim", 0..3, LARGE);
    let folder = Path::new(&sim);
    let _daemon = site.start();
    let path = |number| folder.join(frame_name(number));
    let push_to = |dataset: &str, number: u64, uid: u32| {
        let mut got = None;
        as_user(OTHER, || {
            let bytes = frame_bytes(number + 100, LARGE);
            let mut own = meta(number, &bytes, None);
            (own.uid, own.gid) = (uid, OTHER);
            got = Some(kind(site.client().push_as(dataset, source(number), own, &bytes)));
        });
        got
    };
    let (may, denied) = (Some(None), Some(Some(ErrorKind::PermissionDenied)));
    let check = |number, expected: Option<Option<ErrorKind>>, why: &str| {
        let got = push_to(&sim, number, OTHER);
        assert!(got.is_none() || got == expected, "{why}: {got:?}");
    };
    if push_to(&sim, 5, OTHER).is_none() {
        return;
    }
    check(5, denied, "a directory that it may not write to");
    set_mode(folder, 0o1777);
    check(0, denied, "another's file in a directory that all may write to");
    set_mode(&path(0), 0o666);
    check(0, may, "the kernel would let it write this file");
    check(5, may, "nobody's file yet");
    chown(path(1), Some(OTHER), Some(OTHER)).unwrap();
    check(1, may, "its own file");
    std::os::unix::fs::symlink(frame_name(2), path(7)).unwrap();
    check(7, denied, "a link to another's file");
    set_mode(folder, 0o755);
    check(6, denied, "at once, not after a while");
    assert_eq!(push_to(&sim, 1, 0), denied, "a frame that claims to be another's");
    let new = site.backing.join("new/deep").to_str().unwrap().to_owned();
    assert_eq!(push_to(&new, 0, OTHER), denied, "a dataset to come where it may not write");
    set_mode(&site.backing, 0o777);
    assert_eq!(push_to(&new, 0, OTHER), may);
}

#[test]
fn the_cache_is_closed_to_others() {
    let site = Site::default();
    let _daemon = site.start();
    assert_eq!(site.cache.metadata().unwrap().permissions().mode() & 0o777, 0o700);
}
