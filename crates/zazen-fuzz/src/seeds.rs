//! Seed inputs: golden bytes of the wire, and texts like those that people write.

/// A file of the workspace. It is data of another crate, so it is read when the targets start.
fn file(path: &str) -> String {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../").to_owned() + path;
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// All golden bytes of the wire; a byte before each picks the decoder where a target has several.
pub(crate) fn golden() -> Vec<Vec<u8>> {
    let golden = file("crates/zazen-wire/tests/golden.txt") + &file("crates/zazen-frames/tests/golden.txt");
    let lines = golden.lines().filter_map(|line| line.split_once(" = "));
    let bytes_of = |(pick, (_, hex)): (usize, (&str, &str))| {
        let byte = |at| u8::from_str_radix(&hex[at..at + 2], 16);
        let bytes: Result<Vec<u8>, _> = (0..hex.len()).step_by(2).map(byte).collect();
        bytes.ok().map(|bytes| [&[pick as u8], &bytes[..]].concat())
    };
    let mut found: Vec<Vec<u8>> = lines.enumerate().filter_map(bytes_of).collect();
    assert!(found.len() > 10, "golden bytes are where they were");
    found.push(vec![0; 200]);
    found
}

/// Whole frames of XTC trajectories.
pub(crate) fn xtc_frames() -> Vec<Vec<u8>> {
    let golden = file("crates/zazen-xtc/tests/golden.txt");
    let lines = golden.lines().filter_map(|line| line.split_once(" = "));
    let byte = |hex: &str, at: usize| u8::from_str_radix(&hex[at..at + 2], 16).ok();
    lines.filter_map(|(_, hex)| (0..hex.len()).step_by(2).map(|at| byte(hex, at)).collect()).collect()
}

/// Small files of each format, behind a byte for the format and one for the size of a look.
pub(crate) fn trajectories() -> Vec<Vec<u8>> {
    let golden = file("crates/zazen-trajectory/tests/golden.txt");
    let lines = golden.lines().filter_map(|line| line.split_once(" = "));
    let byte = |hex: &str, at: usize| u8::from_str_radix(&hex[at..at + 2], 16).ok();
    let bytes = |(_, hex): (&str, &str)| (0..hex.len()).step_by(2).map(|at| byte(hex, at)).collect();
    let mut seeds: Vec<Vec<u8>> = lines.filter_map(bytes).collect();
    seeds.extend(texts(&[
        "title\n2\n1ALA CA 1 0 0 0\n1ALA CA 2 0 0 0\n 1 1 1\n",
        "ITEM: TIMESTEP\n0\nITEM: NUMBER OF ATOMS\n1\nITEM: BOX BOUNDS\n0 1\n0 1\n0 1\nITEM: ATOMS id\n1\n",
    ]));
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../zazen-trajectory/tests/h5md");
    let files = std::fs::read_dir(folder).unwrap_or_else(|error| panic!("{folder}: {error}"));
    let mut paths: Vec<_> = files.flatten().map(|entry| entry.path()).collect();
    paths.retain(|path| path.extension().is_some_and(|ending| ending == "h5md"));
    paths.sort();
    assert!(paths.len() > 10, "HDF5 files are where they were");
    seeds.extend(paths.into_iter().filter_map(|path| std::fs::read(path).ok()));
    seeds.into_iter().map(|bytes| [&[0, 200], &bytes[..]].concat()).collect()
}

fn texts(texts: &[&str]) -> Vec<Vec<u8>> {
    texts.iter().map(|text| text.as_bytes().to_vec()).collect()
}

pub(crate) fn manifests() -> Vec<Vec<u8>> {
    texts(&[
        "pattern = \"step{n}/data-{n:07}.vtu\"\n",
        "[[pieces]]\npath = \"t.dcd\"\nfirst = 5\ncount = 3\nstep = 2\noffset = 10\nframe_bytes = 4\n",
        "files = [\"a\", \"b/c\"]\n",
        "[[pieces]]\npath=\"x\"\nfirst=0\ncount=1000000\nframe_bytes=281474976710655\n",
        "[[pieces]]\npath=\"x\"\nfirst=0\ncount=5\nframe_bytes=1\n\
         [[pieces]]\npath=\"y\"\nfirst=5\ncount=9\nframe_bytes=1\n",
    ])
}

pub(crate) fn configs() -> Vec<Vec<u8>> {
    texts(&[
        "cache = \"/ssd/zazen\"\nbacking = [\"/lustre\", \"/data=127.0.0.1:9100\"]\nbudget = \"800G\"\n",
        "listen = \"0.0.0.0:7345\"\nkey = \"/etc/zazen/key\"\nreaders = 8\nvalidate = \"never\"\nfree_floor \
         = \"5%\"\n",
        "cache = \"/c\"\nbacking = [\"/b\"]\nreaders = \"auto\"\nconnections_max = 9\ndrain_seconds = \
         3\nexport = [\"/x\"]\n",
        "cache = \"/c\"\nbacking = [\"/b\"]\n[[plugin]]\npath = \"/p.so\"\nisolate = true\n",
    ])
}

pub(crate) fn headers() -> Vec<Vec<u8>> {
    texts(&[
        "\u{1}/* START-ZAZEN-SCANNER ID=3 INIT=NULL FINI=NULL */\nint f(int a /* in:obj */);\n",
        "\u{0}int f(const char *s /* in:str */, double *x /* out:arr:size=n */, int n /* in:obj */);\n",
        "\u{1}typedef struct { int a; double b[4]; } s_t;\nint g(s_t *s /* inout:ptr */);\n",
        &file("plugins/posix/posix.h"),
    ])
}

/// Packed bytes of several densities.
pub(crate) fn packed() -> Vec<Vec<u8>> {
    let bytes = |kinds: u8| (0..2000u32).map(move |at| (at * at / 7 % 251) as u8 % kinds);
    let packed = |kinds: u8| {
        let mut out = Vec::new();
        zazen_wire::pack::pack(&bytes(kinds).collect::<Vec<u8>>(), &mut out);
        out
    };
    [1, 2, 5, 40, 250].map(packed).to_vec()
}
