//! `zazen number`: writes down which file is which frame, for files whose names do not tell.
//!
//! Numbers come from a list that stays: numbers by a listing would change with every file that
//! comes or goes.

use crate::output;
use clap::Args;
use serde_json::json;
use std::collections::HashSet;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use zazen_backing::by_name::is_temporary_name;
use zazen_backing::dataset::{MANIFEST_BYTES_MAX, parse_manifest};
use zazen_backing::{DirectoryBacking, by_name};
use zazen_core::limits::MANIFEST_NAME;
use zazen_core::{Error, ErrorKind, Layout, RelPath, Result};

#[derive(Args)]
#[command(after_help = "EXAMPLES:
  zazen number /lustre/pictures --ending .jpg     # cat_1.jpg, dog_1.jpg, …: frames 0, 1, … by name
  zazen number /lustre/pictures --ending .jpg --update   # append new files
  zazen number /lustre/pictures --pattern '**/*.jpg'     # in folders too

The command writes zazen.toml into the directory. Readers and writers then use it.")]
pub(crate) struct Number {
    /// The dataset's directory
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    /// Only files whose names end with this; may be repeated [default: all but hidden and temporary
    /// files]
    #[arg(long, value_name = "TEXT")]
    ending: Vec<String>,
    /// Files whose paths beneath DIR match this: `*`, `?`, and `**` for any folders
    #[arg(long, value_name = "PATTERN", conflicts_with = "ending")]
    pattern: Option<String>,
    /// Append new files to the list; no file changes its number
    #[arg(long)]
    update: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &Number) -> Result<()> {
    let manifest = arguments.directory.join(MANIFEST_NAME);
    let mut files = arguments.listed(&manifest)?;
    let before = files.len();
    let known: HashSet<String> = files.iter().cloned().collect();
    files.extend(arguments.found()?.into_iter().filter(|name| !known.contains(name)));
    if files.is_empty() {
        let what = format!("{}: has no file to number", arguments.directory.display());
        return Err(Error::new(ErrorKind::NotFound, what));
    }
    let text = print(&files);
    // What is written must be what is read back.
    parse_manifest(&text, &manifest.display().to_string())?;
    let written = write(&manifest, &text, arguments.update);
    written.map_err(|error| Error::io(format!("write {}", manifest.display()), error))?;
    let (total, new) = (files.len(), files.len() - before);
    match arguments.json {
        true => output::json(&json!({"manifest": manifest, "files": total, "new": new})),
        false => output::line(format!("{}: {total} files, {new} of them new", manifest.display())),
    }
    Ok(())
}

impl Number {
    /// The files that the manifest lists.
    fn listed(&self, manifest: &Path) -> Result<Vec<String>> {
        let named = manifest.display();
        let text = match crate::parse::text_file(manifest, MANIFEST_BYTES_MAX, "manifest") {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            text => text?,
        };
        let refuse = |why: &str| Err(Error::new(ErrorKind::Conflict, format!("{named}: {why}")));
        match parse_manifest(&text, &named.to_string())? {
            _ if !self.update => refuse("is there already; --update adds new files to its list"),
            Layout::List(files) => Ok(files.iter().map(|file| file.as_str().to_owned()).collect()),
            _ => refuse("lists no files; remove it first if its frames shall be numbered by a list"),
        }
    }

    /// The files that are there, by name.
    fn found(&self) -> Result<Vec<String>> {
        if let Some(pattern) = &self.pattern {
            let backing = DirectoryBacking::new(&self.directory)?;
            let files = by_name::files(None, &backing, &RelPath::default(), pattern)?;
            return Ok(files.iter().map(|file| file.as_str().to_owned()).collect());
        }
        let within = |error| Error::io(format!("list {}", self.directory.display()), error);
        let mut names = Vec::new();
        for entry in std::fs::read_dir(&self.directory).map_err(within)? {
            let entry = entry.map_err(within)?;
            let kind = entry.file_type().map_err(within)?;
            let Ok(name) = entry.file_name().into_string() else {
                let what = format!("{}: its name is not UTF-8; rename it", entry.path().display());
                return Err(Error::new(ErrorKind::InvalidArgument, what));
            };
            let wanted = self.ending.is_empty() || self.ending.iter().any(|ending| name.ends_with(ending));
            // A FIFO, a socket or a device holds no frame.
            let is_file = kind.is_file() || kind.is_symlink();
            if wanted && is_file && !is_temporary_name(&name) && name != MANIFEST_NAME {
                names.push(name);
            }
        }
        names.sort_unstable();
        Ok(names)
    }
}

fn print(files: &[String]) -> String {
    let mut text =
        "# Frame i is file i. Made by `zazen number`; add files at the end only.\nfiles = [\n".to_owned();
    for file in files {
        text.push_str(&format!("  {},\n", quoted(file)));
    }
    text.push_str("]\n");
    text
}

/// A TOML string.
fn quoted(name: &str) -> String {
    let mut text = String::from("\"");
    for character in name.chars() {
        match character {
            '"' | '\\' => text.extend(['\\', character]),
            control if control.is_control() => text.push_str(&format!("\\u{:04X}", u32::from(control))),
            other => text.push(other),
        }
    }
    text.push('"');
    text
}

/// Puts a whole manifest in place; no link is followed, and without `replace` nothing is replaced.
fn write(manifest: &Path, text: &str, replace: bool) -> std::io::Result<()> {
    let create = |path: &Path| OpenOptions::new().write(true).create_new(true).open(path);
    let fill = |mut file: File| file.write_all(text.as_bytes()).and_then(|()| file.sync_all());
    let fresh = manifest.with_file_name(format!(".{MANIFEST_NAME}.{}", std::process::id()));
    let placed = create(&fresh).and_then(fill).and_then(|()| match replace {
        true => std::fs::rename(&fresh, manifest),
        false => std::fs::hard_link(&fresh, manifest).and_then(|()| std::fs::remove_file(&fresh)),
    });
    if placed.is_err() {
        std::fs::remove_file(&fresh).ok();
    }
    placed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stay_when_files_come() {
        let folder = tempfile::tempdir().unwrap();
        let ask = |update| Number {
            directory: folder.path().to_owned(),
            ending: vec![".jpg".into(), "\".png".into()],
            pattern: None,
            update,
            json: true,
        };
        let touch = |name: &str| std::fs::write(folder.path().join(name), "x").unwrap();
        ["dog_1.jpg", "cat_1.jpg", "README", ".x.jpg", "odd\t\\\".png"].iter().for_each(|name| touch(name));
        run(&ask(false)).unwrap();
        assert_eq!(run(&ask(false)).unwrap_err().kind(), ErrorKind::Conflict);
        touch("ant.jpg");
        let fifo = std::process::Command::new("mkfifo").arg(folder.path().join("fifo.jpg")).status().unwrap();
        assert!(fifo.success());
        std::fs::remove_file(folder.path().join("cat_1.jpg")).unwrap();
        run(&ask(true)).unwrap();
        let text = std::fs::read_to_string(folder.path().join(MANIFEST_NAME)).unwrap();
        let Layout::List(files) = parse_manifest(&text, "m").unwrap() else { panic!("{text}") };
        let names: Vec<&str> = files.iter().map(|file| file.as_str()).collect();
        assert_eq!(names, ["cat_1.jpg", "dog_1.jpg", "odd\t\\\".png", "ant.jpg"]);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 7, "nothing else is left");
    }
}
