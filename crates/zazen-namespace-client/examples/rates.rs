//! Rates of the library, as JSON: `rates SOCKET DIRECTORY COUNT`. `make bench-namespace` runs it.
//! `rates SOCKET DIRECTORY COUNT PREFIX` only creates, one at a time, and prints the seconds.
//!
//! Each line is one measurement: its name, operations, seconds. The rows take turns, so that a busy
//! machine slows them alike; the caller runs it several times.
#![allow(clippy::print_stderr, clippy::print_stdout)]

use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;
use zazen_namespace_client::Namespace;
use zazen_namespace_client::core::operation::{Create, Mode, Operation};
use zazen_namespace_client::core::{Errno, InodeId, Kind, Name};

type Done = Result<(), Errno>;

fn tell(what: &str, count: usize, since: Instant) {
    println!(r#"{{"what": "{what}", "count": {count}, "seconds": {:.6}}}"#, since.elapsed().as_secs_f64());
}

fn names(prefix: &str, count: usize) -> Result<Vec<Name>, Errno> {
    (0..count).map(|number| Name::new(format!("{prefix}{number}").as_bytes())).collect()
}

fn measure(ns: &Namespace, directory: &str, count: usize) -> Done {
    ns.mkdir_all(None, directory.as_bytes(), 0o755)?;
    let parent = ns.directory(None, directory.as_bytes())?;

    let single = names("one", count)?;
    let since = Instant::now();
    for name in &single {
        ns.make_node(None, parent, name, Kind::File, 0o644, 0)?;
    }
    tell("create", count, since);

    let opened = names("open", count / 4)?;
    let mode = Mode { read: false, write: true, truncate: false };
    let since = Instant::now();
    for name in &opened {
        ns.create(None, parent, name, 0o644, mode.clone(), true)?.close()?;
    }
    tell("create, open and close", opened.len(), since);

    let many = names("many", count * 8)?;
    let since = Instant::now();
    for part in many.chunks(64) {
        ns.create_many(None, parent, part, 0o644)?.into_iter().collect::<Result<Vec<InodeId>, _>>()?;
    }
    tell("create_many(64)", many.len(), since);

    // 64 separate operations in one call.
    let batch = names("batch", count * 2)?;
    let since = Instant::now();
    for part in batch.chunks(64) {
        let create = |name: &Name| Operation::Create(Create::file(parent, name.clone()));
        ns.ask_many(None, part.iter().map(create).collect()).into_iter().collect::<Result<Vec<_>, _>>()?;
    }
    tell("64 creates in a call", batch.len(), since);

    let paths: Vec<String> = (0..count).map(|number| format!("{directory}/one{number}")).collect();
    let since = Instant::now();
    for path in &paths {
        ns.stat(None, path.as_bytes(), true)?;
    }
    tell("stat", count, since);

    let bytes: Vec<&[u8]> = paths.iter().map(String::as_bytes).collect();
    let since = Instant::now();
    ns.stat_many(None, &bytes, true).into_iter().collect::<Result<Vec<_>, _>>()?;
    tell("stat_many", count, since);

    let since = Instant::now();
    for path in &bytes[..count / 2] {
        ns.remove(None, path)?;
    }
    tell("unlink", count / 2, since);
    let since = Instant::now();
    ns.remove_many(None, &bytes[count / 2..]).into_iter().collect::<Result<Vec<_>, _>>()?;
    tell("remove_many", count - count / 2, since);
    Ok(())
}

fn only_create(ns: &Namespace, directory: &str, prefix: &str, count: usize) -> Done {
    ns.mkdir_all(None, directory.as_bytes(), 0o755)?;
    let parent = ns.directory(None, directory.as_bytes())?;
    let all = names(prefix, count)?;
    let since = Instant::now();
    for name in &all {
        ns.make_node(None, parent, name, Kind::File, 0o644, 0)?;
    }
    println!("{:.6}", since.elapsed().as_secs_f64());
    Ok(())
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [socket, directory, count, prefix @ ..] = arguments.as_slice() else {
        eprintln!("rates SOCKET DIRECTORY COUNT [PREFIX]");
        return ExitCode::from(2);
    };
    let done = Namespace::local(Path::new(socket)).map_err(|error| error.to_string()).and_then(|ns| {
        let count = count.parse().unwrap_or(1000);
        let done = match prefix.first() {
            Some(prefix) => only_create(&ns, directory, prefix, count),
            None => measure(&ns, directory, count),
        };
        done.map_err(|errno| errno.to_string())
    });
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{directory}: {error}");
            ExitCode::FAILURE
        }
    }
}
