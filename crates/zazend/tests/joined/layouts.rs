//! Layouts of datasets that have none yet.

use crate::common::*;
use std::net::TcpListener;
use std::path::Path;
use std::time::{Duration, Instant};
use zazen_call::Caller;
use zazen_core::{Credentials, ErrorKind};
use zazen_frames::messages::*;

/// Each frame of a scan asks for the layout. While the search for it fails, the directory is not
/// listed for each of them.
#[test]
fn a_layout_that_cannot_be_had_is_not_looked_for_once_a_frame() {
    const COUNT: u64 = 300;
    let site = Site::default();
    let sim = site.dataset("sim", [], 0);
    let server =
        zazen_backing::served::serve(TcpListener::bind("127.0.0.1:0").unwrap(), &site.backing, None).unwrap();
    let spec = format!("{}=tcp://{}", site.backing.display(), server.addr());
    let _daemon = site.start_with(|args| args.backing = vec![spec]);
    let mut client = site.client();
    let handle = client.open(&sim).unwrap().handle;
    for name in ["cat_0", "cat_1", "dog_0", "dog_1"] {
        std::fs::write(Path::new(&sim).join(name), "x").unwrap();
    }
    settle();
    let before = server.traffic().lists;
    let got = client.scan(handle, &set(0..COUNT), 64);
    assert_eq!(got.len() as u64, COUNT);
    for frame in &got {
        let (code, message) = frame.entry.error.clone().unwrap();
        assert_eq!(code, ErrorKind::InvalidArgument as u32, "{message}");
        assert!(message.contains("dog_{n} (2 files)"), "{message}");
    }
    let lists = server.traffic().lists - before;
    assert!(lists < COUNT / 3, "{lists} listings for {COUNT} frames");
    // Once the search has an answer, the frames are there.
    std::fs::remove_file(Path::new(&sim).join("dog_0")).unwrap();
    std::fs::remove_file(Path::new(&sim).join("dog_1")).unwrap();
    let begun = Instant::now();
    while client.scan(handle, &set([0]), 1)[0].entry.error.is_some() {
        assert!(begun.elapsed() < Duration::from_secs(90), "the error stays");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// What an open dataset's list of frames takes in memory counts against its user.
#[test]
fn long_lists_of_frames_weigh() {
    const OTHER: u32 = 4_054_321;
    let site = Site::default();
    let sim = site.dataset("sim", 0..1, 10);
    let manifest = Path::new(&sim).join("zazen.toml");
    let daemon = site.start();
    let credentials = Credentials { uid: OTHER, gid: OTHER, groups: vec![] };
    let other = Caller { credentials, pid: 1, host: None, connection: u64::MAX };
    let opened = &daemon.node().shares.opened;
    let weight = || {
        let most = 16_384;
        let left = (0..=most).rev().find(|count| opened.take_weighing(&other, *count).is_ok());
        most - left.unwrap()
    };
    set_mode(Path::new(&sim), 0o777);
    let (ask, asked) = std::sync::mpsc::channel();
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        // A thread that is the other user would count as the daemon's own.
        scope.spawn(move || asked.iter().for_each(|()| tell.send(weight()).unwrap()));
        as_user(OTHER, move || {
            let weight = || {
                ask.send(()).unwrap();
                told.recv().unwrap()
            };
            let mut client = site.client();
            for (frames, expected) in [(20_000, 15..60), (10, 1..2), (20_000, 15..60)] {
                let names: Vec<_> = (0..frames).map(|number| format!("{:?}", frame_name(number))).collect();
                std::fs::write(&manifest, format!("files = [{}]\n", names.join(", "))).unwrap();
                let handle = client.open(&sim).unwrap().handle;
                assert_eq!(handle, 1, "the same path takes the same handle");
                let weight = weight();
                assert!(expected.contains(&weight), "{frames} frames weigh {weight}");
            }
            client.tell(frames_fn::CLOSE, &CloseDataset { handle: 1 }).unwrap();
            assert_eq!(weight(), 0);
        });
    });
}
