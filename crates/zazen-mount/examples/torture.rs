//! Long random work on mounts, as the tests do it in short.
//!
//! `torture fsx SEED OPERATIONS PATH…` (one file, through one or more mounts; `map:PATH` with
//! mappings, `size:BYTES` for the longest file), `torture names SEED OPERATIONS MOUNTED PLAIN`.
#![allow(clippy::print_stderr, clippy::print_stdout)]

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use zazen_mount::contract::{fsx, names};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |text: &String| text.parse::<u64>().unwrap_or(1);
    let started = std::time::Instant::now();
    let done = match arguments.as_slice() {
        [kind, seed, operations, paths @ ..] if kind == "fsx" && !paths.is_empty() => {
            let map = paths.iter().any(|path| path.starts_with("map:"));
            let size = paths.iter().find_map(|path| path.strip_prefix("size:")?.parse().ok());
            let bytes_max = size.unwrap_or(fsx::BYTES_MAX);
            let paths = paths.iter().filter(|path| !path.starts_with("size:"));
            let paths = paths.map(|path| PathBuf::from(path.trim_start_matches("map:"))).collect();
            let (seed, operations) = (number(seed), number(operations));
            let work = fsx::Work { paths, seed, operations, bytes_max, map };
            fsx::run(&work)
        }
        [kind, seed, operations, mounted, plain] if kind == "names" => {
            names::run(Path::new(mounted), Path::new(plain), number(seed), number(operations))
        }
        _ => Err("torture fsx SEED OPERATIONS PATH… | torture names SEED OPERATIONS MOUNTED PLAIN".into()),
    };
    match done {
        Ok(()) => {
            println!("{} as expected in {:.1} s", arguments.join(" "), started.elapsed().as_secs_f64());
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
