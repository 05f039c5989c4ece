//! Mounts the namespace of a daemon: `mount_namespace SOCKET MOUNTPOINT [direct]`.
#![allow(clippy::print_stderr)]

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use zazen_mount::Options;
use zazen_mount::namespace::NamespaceTree;

fn run(socket: &str, mountpoint: &str, direct: bool) -> zazen_core::Result<()> {
    let tree = NamespaceTree::through(Path::new(socket))?;
    let options = Options {
        source: "zazen".into(),
        allow_other: tree.vouches(),
        read_only: false,
        passthrough: !direct,
    };
    zazen_mount::mount::serve(Arc::new(tree), Path::new(mountpoint), &options, || {})
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [socket, mountpoint, rest @ ..] = arguments.as_slice() else {
        eprintln!("mount_namespace SOCKET MOUNTPOINT [direct]");
        return ExitCode::from(2);
    };
    match run(socket, mountpoint, !rest.is_empty()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
