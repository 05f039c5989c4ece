//! Every locator against the contract.

use crate::fake_webhdfs::{FakeWebHdfs, Large};
use zazen_core::ErrorKind;
use zazen_locate::{Hdfs, HdfsUrl, HostsTable, Locator, contract, open_index};

#[test]
fn a_table_of_hosts_keeps_the_contract() {
    let dir = tempfile::tempdir().unwrap();
    for (file, bytes) in [("s0/a.vtu", 10), ("s0/b.vtu", 20), ("s1/a.vtu", 0)] {
        std::fs::create_dir_all(dir.path().join(file).parent().unwrap()).unwrap();
        std::fs::write(dir.path().join(file), vec![0; bytes]).unwrap();
    }
    let table = dir.path().join("hosts");
    std::fs::write(&table, "# where\ns0/a.vtu n1 n2\ns0/ n3\n").unwrap();
    let mut locator = HostsTable::read(&table, dir.path()).unwrap();
    contract::holds(
        &mut locator,
        &[("s0/a.vtu", 10, &["n1", "n2"]), ("s0/b.vtu", 20, &["n3"]), ("s1/a.vtu", 0, &[])],
        &[],
    );
}

#[test]
fn hdfs_keeps_the_contract() {
    let fake = FakeWebHdfs::start(&[
        ("/ocean/s 0/a.vtu", &[(10, &["n1", "n2", "n3"])]),
        ("/ocean/b.vtu", &[(20, &["n4"])]),
        ("/ocean/empty.vtu", &[]),
    ]);
    let mut locator = Hdfs::new(fake.url("/ocean"), Some("a user".into()));
    let held: [(&str, u64, &[&str]); 3] =
        [("s 0/a.vtu", 10, &["n1", "n2", "n3"]), ("b.vtu", 20, &["n4"]), ("empty.vtu", 0, &[])];
    contract::holds(&mut locator, &held, &[]);
    let asked = fake.asked();
    assert!(asked.iter().all(|line| line.contains("user.name=a%20user")), "{asked:?}");
}

#[test]
fn a_file_of_several_blocks_is_weighted_by_its_bytes() {
    let fake = FakeWebHdfs::start(&[("/o/a", &[(64, &["n1", "n2"]), (64, &["n2", "n3"]), (6, &["n1"])])]);
    let found = Hdfs::new(fake.url("/o"), None).locate(&["a".to_owned()]).unwrap();
    let file = &found.files[0];
    assert_eq!((file.bytes, file.blocks, file.holders()), (134, 3, vec!["n2".to_owned()]));
    assert_eq!((file.remote_bytes("n2"), file.remote_bytes("n1"), file.remote_bytes("n9")), (6, 64, 134));
}

#[test]
fn a_data_node_that_fails_is_left_out_and_another_asked() {
    let fake = FakeWebHdfs::start(&[]);
    let hdfs = Hdfs::new(fake.url("/o"), None);
    let mut file = tempfile::tempfile().unwrap();
    std::io::Write::write_all(&mut file, b"what an earlier try left").unwrap();
    // The name node names 127.0.0.1, where nobody listens, until it is told to leave that out.
    assert_eq!(hdfs.fetch("two/a.vtu", 5, &mut file).unwrap(), 5);
    std::io::Seek::rewind(&mut file).unwrap();
    assert_eq!(std::io::read_to_string(&file).unwrap(), "bytes");
    assert!(fake.asked().iter().any(|line| line.contains("excludedatanodes=127.0.0.1")));
    assert_eq!(hdfs.read("two/a.vtu", 5).unwrap(), b"bytes");
    let short = hdfs.read("two/a.vtu", 4).unwrap_err();
    assert!(short.to_string().contains("more than 4 bytes"), "{short}");
    let cut = hdfs.fetch("two/a.vtu", 6, &mut file).unwrap_err();
    assert!(cut.to_string().contains("gave 5 bytes of 6"), "{cut}");
    assert_eq!(hdfs.fetch("gone.vtu", 5, &mut file).unwrap_err().kind(), ErrorKind::NotFound);
    let none = hdfs.fetch("broken/status", 5, &mut file).unwrap_err();
    assert!(none.to_string().contains("name node") && none.to_string().contains("status 500"), "{none}");
}

/// Bytes of which no piece is like another.
fn many_bytes(count: usize) -> Vec<u8> {
    (0..count as u64).map(|at| (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u8).collect()
}

/// Fetches `/large`; what was asked for its bytes.
fn fetch_large(large: Large) -> (zazen_core::Result<Vec<u8>>, Vec<String>) {
    let expected = large.bytes.len() as u64;
    let fake = FakeWebHdfs::with(Vec::new(), large);
    let mut file = tempfile::tempfile().unwrap();
    std::io::Write::write_all(&mut file, b"what an earlier try left").unwrap();
    let got = Hdfs::new(fake.url("/"), None).fetch_from_all("large", expected, &mut file).map(|count| {
        assert_eq!(count, expected);
        let mut read = Vec::new();
        std::io::Seek::rewind(&mut file).unwrap();
        std::io::Read::read_to_end(&mut file, &mut read).unwrap();
        read
    });
    let asked = fake.asked().into_iter().filter(|line| line.contains("/piece?")).collect();
    (got, asked)
}

#[test]
fn a_large_file_comes_from_all_its_data_nodes() {
    for count in [(1 << 20) + 1, 3_000_001, 40 << 20] {
        let bytes = many_bytes(count);
        let (got, asked) = fetch_large(Large { bytes: bytes.clone(), ..Large::default() });
        assert!(got.unwrap() == bytes, "{count}");
        for node in ["127.0.0.1", "127.0.0.2"] {
            assert!(asked.iter().any(|line| line.contains(&format!("of={node}&"))), "{node}: {asked:?}");
        }
        assert!(asked.len() >= 3 && asked.iter().all(|line| line.contains("&length=")), "{asked:?}");
    }
}

#[test]
fn a_small_file_comes_from_one_data_node() {
    let bytes = many_bytes(1 << 20);
    let (got, asked) = fetch_large(Large { bytes: bytes.clone(), ..Large::default() });
    assert!(got.unwrap() == bytes);
    assert_eq!(asked.len(), 1, "{asked:?}");
}

#[test]
fn a_data_node_that_gives_no_pieces_leaves_them_to_the_others() {
    for (dead, after_ms) in [("127.0.0.1", 0), ("127.0.0.2", 0), ("127.0.0.1", 1000)] {
        let bytes = many_bytes(5 << 20);
        let dead_after = std::time::Duration::from_millis(after_ms);
        let large = Large { bytes: bytes.clone(), dead: Some(dead), dead_after, ..Large::default() };
        let (got, asked) = fetch_large(large);
        assert!(got.unwrap() == bytes);
        // One piece, also if the others were done by then; and nothing comes as a whole.
        let of_dead = asked.iter().filter(|line| line.contains(&format!("of={dead}&"))).count();
        assert!(of_dead == 1 && asked.iter().all(|line| line.contains("&length=")), "{asked:?}");
    }
}

/// Another file took its name while pieces came: it comes as a whole, from one data node.
#[test]
fn pieces_of_two_files_are_not_mixed() {
    let bytes = many_bytes(5 << 20);
    let large = Large { bytes: bytes.clone(), replaced_after: Some(1), ..Large::default() };
    let (got, asked) = fetch_large(large);
    assert!(got.unwrap() == bytes);
    assert_eq!(asked.iter().filter(|line| !line.contains("&length=")).count(), 1, "{asked:?}");
}

/// A data node's folder with one replica of the block 1073741825, and its checksums.
fn data_node(bytes: &[u8]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("current/BP-1/current/finalized/subdir0/subdir0");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("blk_1073741825"), bytes).unwrap();
    // Version 1, CRC-32C, chunks of 512 bytes, and the checksum of "bytes".
    let meta = [0, 1, 2, 0, 0, 2, 0, 0xd0, 0x6e, 0x9c, 0x92];
    std::fs::write(folder.join("blk_1073741825_1001.meta"), meta).unwrap();
    dir
}

/// Answers about one file of a name node, and its folder.
fn one_block(block: &str, status: &str) -> FakeWebHdfs {
    let blocks = format!(
        r#"{{"LocatedBlocks":{{"fileLength":5,"isLastBlockComplete":true,"isUnderConstruction":false,
        "locatedBlocks":[{block}]}}}}"#
    );
    FakeWebHdfs::answering(vec![
        ("/o/s/a.vtu".to_owned(), "op=GET_BLOCK_LOCATIONS", blocks),
        ("/o/s".to_owned(), "op=GETFILESTATUS", format!(r#"{{"FileStatus":{{"length":0{status}}}}}"#)),
        ("/o/".to_owned(), "op=GETFILESTATUS", r#"{"FileStatus":{"length":0}}"#.to_owned()),
    ])
}

const BLOCK: &str = r#"{"block":{"blockId":1073741825,"blockPoolId":"BP-1","generationStamp":1001,
    "numBytes":5},"isCorrupt":false,"startOffset":0}"#;

#[test]
fn a_replica_of_this_host_is_opened_as_a_file() {
    let (fake, node) = (one_block(BLOCK, ""), data_node(b"bytes"));
    let files = ["s/a.vtu".to_owned(), "s/gone.vtu".to_owned(), "gone.vtu".to_owned()];
    let blocks = Hdfs::new(fake.url("/o"), None).blocks(&files).unwrap();
    assert_eq!((blocks.len(), &blocks[1], &blocks[2]), (3, &None, &None));
    let block = blocks[0].as_ref().unwrap();
    let replica = block.open(&["/nowhere".into(), node.path().to_owned()]).unwrap();
    assert_eq!(std::io::read_to_string(replica).unwrap(), "bytes");
    assert!(block.open(&[]).is_none());
}

#[test]
fn a_replica_that_may_not_be_the_file_is_left_to_the_data_node() {
    let with = |from: &str, to: &str| BLOCK.replace(from, to);
    let cases = [
        ("another version", with("1001", "1002"), "", &b"bytes"[..]),
        ("another pool", with("BP-1", "BP-2"), "", b"bytes"),
        ("a way out", with("BP-1", "../BP-1"), "", b"bytes"),
        ("erasure-coded", with("1073741825", "-1073741825"), "", b"bytes"),
        ("corrupt", with("false", "true"), "", b"bytes"),
        ("two blocks", format!("{BLOCK},{BLOCK}"), "", b"bytes"),
        ("no block", String::new(), "", b"bytes"),
        ("a block that is not the file", with("numBytes\":5", "numBytes\":4"), "", b"byte"),
        ("encrypted", BLOCK.to_owned(), r#","encBit":true"#, b"bytes"),
        ("cut", BLOCK.to_owned(), "", b"byte"),
        ("changed", BLOCK.to_owned(), "", b"bytez"),
    ];
    for (what, block, status, on_disk) in cases {
        let (fake, node) = (one_block(&block, status), data_node(on_disk));
        let blocks = Hdfs::new(fake.url("/o"), None).blocks(&["s/a.vtu".to_owned()]).unwrap();
        let opened = blocks[0].as_ref().and_then(|block| block.open(&[node.path().to_owned()]));
        assert!(opened.is_none(), "{what}");
    }
    let broken = FakeWebHdfs::start(&[]);
    let error = Hdfs::new(broken.url("/broken/status"), None).blocks(&["a.vtu".to_owned()]).unwrap_err();
    assert!(error.to_string().contains("name node") && error.to_string().contains("status 500"), "{error}");
}

#[test]
fn an_index_in_hdfs_names_files_in_hdfs() {
    let fake = FakeWebHdfs::start(&[]);
    let index = fake.url("/two/index.csv");
    let opened = open_index(std::path::Path::new(&index.to_string())).unwrap();
    assert_eq!(opened.place.steps, [vec!["a.vtu"]]);
    assert_eq!(opened.directory(), fake.url("/two").to_string());
    assert_eq!(opened.index_files, ["index.csv"]);
}

#[test]
fn a_name_node_that_fails_is_named() {
    let fake = FakeWebHdfs::start(&[]);
    for (path, words) in [
        ("/broken/json", "not in HDFS's form"),
        ("/broken/status", "status 500"),
        ("/broken/cut", "name node"),
    ] {
        let error = Hdfs::new(fake.url(path), None).locate(&["x".to_owned()]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert!(error.to_string().contains(words) && error.to_string().contains("name node"), "{error}");
    }
    let closed = HdfsUrl { authority: "127.0.0.1:1".into(), path: "/o".into() };
    let error = Hdfs::new(closed, None).locate(&["x".to_owned()]).unwrap_err();
    assert!(error.to_string().contains("127.0.0.1:1"), "{error}");
}

#[test]
fn patterns_are_indexes() {
    let dir = tempfile::tempdir().unwrap();
    for file in ["step0/block0.vtu", "step0/block1.vtu", "step7/block0.vtu", "step7/notes"] {
        std::fs::create_dir_all(dir.path().join(file).parent().unwrap()).unwrap();
        std::fs::write(dir.path().join(file), "x").unwrap();
    }
    let opened = open_index(&dir.path().join("step{t}/block{b}.vtu")).unwrap();
    let times: Vec<f64> = opened.index.steps.iter().map(|step| step.time).collect();
    assert_eq!(times, [0.0, 7.0]);
    assert_eq!(opened.place.steps, [vec!["step0/block0.vtu", "step0/block1.vtu"], vec!["step7/block0.vtu"]]);
    assert_eq!(opened.place.directory, dir.path().to_str().unwrap());
    let note = opened.note.unwrap();
    assert!(note.contains("1 of 2 time steps") && note.contains("step 7 block 1"), "{note}");
    assert_eq!(opened.index.steps[1].tree.blocks_of_files(1), ["/0"]);
    let none = open_index(&dir.path().join("stop{t}/block{b}.vtu")).unwrap_err();
    assert_eq!(none.kind(), ErrorKind::NotFound);
    assert_eq!(open_index(&dir.path().join("gone.vtm")).unwrap_err().kind(), ErrorKind::NotFound);
}

#[test]
fn an_index_may_lie_in_a_folder_with_braces() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("run{1}");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("t.csv"), "time,file\n0,a.vtu\n").unwrap();
    let opened = open_index(&folder.join("t.csv")).unwrap();
    assert_eq!(opened.place.directory, folder.to_str().unwrap());
    assert_eq!(opened.place.steps, [vec!["a.vtu"]]);
}
